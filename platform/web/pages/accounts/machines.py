"""The page of one's machines and tokens. A new secret is in the answer to the POST that made it, and nowhere else."""

import re
from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST
from msgspec.structs import replace

from accounts import machine_control, selectors, services
from accounts.models import Machine, Person, Token
from accounts.services import IssuedToken
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.messages import Instructions
from web.agent_package import pip_call
from web.http.faults import status_of
from web.http.requester import person_in
from web.pages.accounts.forms import MachineNameForm, TokenForm
from web.run_picture import counts
from web.run_picture.own_machines import OwnMachine, own_machines, runs_to_move_to
from web.words import titled_in_words_of_page

SLUG = re.compile(r"[-a-z0-9_]{1,80}")


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def machine_list(request: HttpRequest) -> HttpResponse:
    """My machines; POST makes a one-time token for another."""
    person = person_in(request)
    issued = services.create_machine_token(person=person) if request.method == "POST" else None
    return _page(request, person, machine_token=issued)


@login_required
@require_POST
def change_machine(request: HttpRequest, machine_id: UUID) -> HttpResponse:
    """Rename, pause, move, revoke or let back one of my machines."""
    machine = selectors.machine_of(person_in(request), machine_id)
    if machine is None:
        raise Http404
    if "revoke" in request.POST:
        services.revoke_machine(machine=machine)
        return redirect("web:machines")
    if "back" in request.POST:
        return _let_back(request, machine)
    if (asked := _asked(request.POST)) is not None:
        machine_control.change(machine=machine, to=asked)
        return redirect("web:machines")
    form = MachineNameForm(request.POST)
    if not form.is_valid():
        return _page(request, person_in(request), name_fault=_("A machine's name has 1 to 60 characters."), status=400)
    services.rename_machine(machine=machine, name=form.cleaned_data["name"])
    return redirect("web:machines")


def _asked(form: QueryDict) -> Callable[[Instructions], Instructions] | None:
    """What the machine is to do; None where the form is about something else. Where there is no such run it says so."""
    if "pause" in form or "resume" in form:
        return partial(replace, pause="pause" in form, finish=False, move_to="")
    if "finish" in form:
        return partial(replace, finish=True, move_to="")
    slug = form.get("move", "")
    return partial(replace, finish=False, move_to=slug) if SLUG.fullmatch(slug) else None


def _let_back(request: HttpRequest, machine: Machine) -> HttpResponse:
    try:
        services.let_back_machine(machine=machine)
    except Problem as problem:
        return _page(
            request,
            person_in(request),
            name_fault=titled_in_words_of_page(problem.fault),
            status=status_of(problem.fault.code),
        )
    return redirect("web:machines")


@never_cache
@login_required
@require_POST
def personal_tokens(request: HttpRequest) -> HttpResponse:
    """A token with which a program reads as me."""
    person, form = person_in(request), TokenForm(request.POST)
    if not form.is_valid():
        return _page(request, person, token_form=form, status=400)
    issued = services.create_token(person=person, purpose=Token.Purpose.API, label=form.cleaned_data["label"])
    return _page(request, person, api_token=issued)


@login_required
@require_POST
def revoke_personal_token(request: HttpRequest, token_id: int) -> HttpResponse:
    """End one of my tokens."""
    token = selectors.open_tokens_of(person_in(request)).filter(pk=token_id).first()
    if token is None:
        raise Http404
    services.revoke_token(token=token)
    return redirect("web:machines")


def _page(
    request: HttpRequest,
    person: Person,
    *,
    machine_token: IssuedToken | None = None,
    api_token: IssuedToken | None = None,
    token_form: TokenForm | None = None,
    name_fault: str = "",
    status: int = 200,
) -> HttpResponse:
    rows = own_machines(person)
    working = [row for row in rows if row.machine.revoked_at is None]
    facts = {
        "rows": rows,
        "sentence": _sentence(working),
        "has_some": bool(working),
        "tokens": selectors.open_tokens_of(person),
        "machine_token": machine_token,
        "api_token": api_token,
        "token_form": token_form or TokenForm(),
        "typed": "",
        "name_fault": name_fault,
        "site": request.build_absolute_uri("/").rstrip("/"),
        "pip_call": pip_call(request),
        "runs": runs_to_move_to(person) if any(row.is_online for row in working) else [],
    }
    return render(request, "web/accounts/machines.html", facts, status=status)


def _sentence(working: list[OwnMachine]) -> str:
    """“2 machines, 1 online. 18,949 samples so far.”"""
    if not working:
        return _("You have no machines yet. Approve one and it can join any run.")
    online, samples = sum(row.is_online for row in working), sum(row.samples for row in working)
    facts = {
        "machines": counts.machines(len(working)),
        "online": f"{online:,}",
        "samples": counts.samples(samples),
    }
    if samples:
        return _("%(machines)s, %(online)s online. %(samples)s so far.") % facts
    return _("%(machines)s, %(online)s online.") % facts

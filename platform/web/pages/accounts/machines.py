"""The page of the user's machines and tokens. A new secret is shown once, in the response to its POST."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet, Sum
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST
from msgspec.structs import replace

from accounts import machine_control, selectors, services
from accounts.machine_control import NO_CONTROL, Control, controls_of
from accounts.models import Machine, Person, Token
from accounts.selectors import machines_of
from accounts.services import IssuedToken
from coordination import presence
from coordination.presence import AUXILIARY, RELAY, TRAINER, OnlinePeer
from peer_agent.machine.energy import in_watt_hours
from peer_agent.machine.resting import in_words as reason_in_words
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.messages import Instructions
from peer_agent.protocol.messages.machine import Why
from runs.access import helped_runs, listed_runs
from runs.ledger.totals import in_words
from runs.models import Run
from runs.states import HOSTED
from web.agent_package import pip_call
from web.http.faults import status_of
from web.http.requester import person_in
from web.pages.accounts.forms import MachineNameForm, TokenForm
from web.run_picture import counts
from web.words import in_bytes, titled_in_words_of_page

HOUR_S = 3600
PAUSES = {"1h": HOUR_S, "2h": 2 * HOUR_S, "8h": 8 * HOUR_S}  # any other value: until the owner resumes it
PAUSE_CHOICES = (  # the form field's values and their names
    ("1h", gettext_lazy("For 1 hour")),
    ("2h", gettext_lazy("For 2 hours")),
    ("8h", gettext_lazy("For 8 hours")),
    ("open", gettext_lazy("Until I resume it")),
)
SLUG = re.compile(r"[-a-z0-9_]{1,80}")
MOST_CHOICES = 50  # most runs offered for a machine to move to
MOST_RUNS = 500  # most runs in which the user's machines are searched for, newest first


# Each machine's current work and past contributions


class OwnMachine(NamedTuple):
    """A machine's row on the page. `run` is the run that it is in now. `samples` and `averaged` are sums over all runs.

    `number` is greater than 1 if the owner has older machines with the same name.
    """

    machine: Machine
    run: Run | None
    state: str
    is_online: bool
    speed: str
    samples: int
    averaged: str
    control: Control
    number: int = 1

    @property
    def is_paused(self) -> bool:
        """True if the owner has paused the machine, even if it is not connected now."""
        return self.control.wanted.pause

    @property
    def asked(self) -> str:
        """Text about an instruction from the owner that the connected machine has yet to confirm, or ""."""
        control = self.control
        if control.report is None or control.is_heard:
            return ""
        if self.control.rest.why is Why.PAUSED and not control.wanted.pause:
            return _("Resuming…")
        if control.wanted.move_to:
            return _("Moving to another run…")
        if control.wanted.finish:
            return _("Finishing…")
        return _("Pausing…") if control.wanted.pause else _("Applying new limits…")

    @property
    def used(self) -> str:
        """Text on the electricity and upload used by the machine in its run, or "" if it reports no electricity."""
        report = self.control.report
        if report is None or not report.energy_wh:
            return ""
        facts = {"energy": in_watt_hours(report.energy_wh), "size": in_words(report.sent_bytes) or in_bytes(0)}
        return _("About %(energy)s and %(size)s up so far") % facts

    @property
    def could_not(self) -> str:
        """The error that kept the machine from moving to another run, as text, or ""."""
        code = self.control.report.could_not if self.control.report is not None else ""
        return f"{Fault(code, '').title} ({code})" if code else ""


def own_machines(person: Person) -> list[OwnMachine]:
    machines = list(machines_of(person))
    runs = {run.pk: run for run in helped_runs(person).filter(state__in=HOSTED).order_by("-created_at")[:MOST_RUNS]}
    mine = {machine.peer_id for machine in machines}
    here: dict[str, tuple[Run, OnlinePeer]] = {}
    for run_id, peers in presence.online_in(runs.values()).items():
        here |= {peer.peer: (runs[run_id], peer) for peer in peers if peer.peer in mine}
    controls = controls_of(machines)
    given = _sums(person.totals.all(), "samples")
    averaged = _sums(person.averaged.all(), "bytes_averaged")
    return [
        _own_row(
            machine,
            here.get(machine.peer_id),
            given.get(machine.pk, 0),
            averaged.get(machine.pk, 0),
            controls.get(machine.pk, NO_CONTROL),
        )._replace(number=_number_of(machine, machines))
        for machine in machines
    ]


def _number_of(machine: Machine, machines: Iterable[Machine]) -> int:
    """Return the machine's number, counting from 1, among machines with the same name, oldest first."""
    return 1 + sum(other.name == machine.name and other.created_at < machine.created_at for other in machines)


def runs_to_move_to(person: Person) -> list[Run]:
    """Return the open runs that the user's machines could move to, newest first."""
    open_ones = helped_runs(person).filter(pk__in=listed_runs(person).values("pk"), state__in=HOSTED)
    return list(open_ones.order_by("-created_at").only("slug", "title")[:MOST_CHOICES])


def _sums(rows: QuerySet[Any], name: str) -> dict[UUID, int]:
    return dict(rows.order_by().values("machine").annotate(given=Sum(name)).values_list("machine", "given"))


def _own_row(
    machine: Machine, here: tuple[Run, OnlinePeer] | None, samples: int, averaged: int, control: Control
) -> OwnMachine:
    run, peer = here if here is not None else (None, None)
    if control.rest:  # a host may still show the machine for a moment
        reason = reason_in_words(control.rest)
        state = reason if control.rest.why is Why.PAUSED else _("On hold. %(reason)s") % {"reason": reason}
        return OwnMachine(machine, run, state, True, "", samples, in_words(averaged), control)  # noqa: FBT003
    speed = _speed(peer) if peer is not None and peer.samples_per_s else ""
    return OwnMachine(machine, run, _state(run, peer), peer is not None, speed, samples, in_words(averaged), control)


def _speed(peer: OnlinePeer) -> str:
    return _("%(number)s samples/s") % {"number": f"{peer.samples_per_s:,.1f}"}


def _state(run: Run | None, peer: OnlinePeer | None) -> str:
    if run is None or peer is None:
        return pgettext("what a machine does", "Offline")
    if peer.role == RELAY:
        return pgettext("what a machine does", "Relaying")
    if peer.role == AUXILIARY:
        return pgettext("what a machine does", "Averaging")
    if run.state == Run.State.PAUSED:
        return _("Waiting: the run is paused")
    assert peer.role == TRAINER, peer.role
    return (
        pgettext("what a machine does", "Loading the model")
        if peer.state == "syncing"
        else pgettext("what a machine does", "Training")
    )


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def machine_list(request: HttpRequest) -> HttpResponse:
    person = person_in(request)
    issued = services.create_machine_token(person=person) if request.method == "POST" else None
    return _page(request, person, machine_token=issued)


@login_required
@require_POST
def change_machine(request: HttpRequest, machine_id: UUID) -> HttpResponse:
    """Rename, pause, resume, move, revoke or restore one of the user's machines, or let it finish and leave."""
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
        from_run = request.POST.get("run", "")
        return redirect("web:run", from_run) if SLUG.fullmatch(from_run) else redirect("web:machines")
    form = MachineNameForm(request.POST)
    if not form.is_valid():
        return _page(request, person_in(request), name_fault=_("Enter a name of 1 to 60 characters."), status=400)
    services.rename_machine(machine=machine, name=form.cleaned_data["name"])
    return redirect("web:machines")


def _asked(form: QueryDict) -> Callable[[Instructions], Instructions] | None:
    """Return the change to a machine's instructions that a form requests, or None if it requests something else.

    The run that a slug names is not looked up: the machine itself reports an unknown run.
    """
    if "pause" in form or "resume" in form:
        length_s = PAUSES.get(form.get("pause", ""), 0)
        until = int(timezone.now().timestamp()) + length_s if length_s else 0
        return partial(replace, pause="pause" in form, pause_until=until, finish=False, move_to="")
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
    person, form = person_in(request), TokenForm(request.POST)
    if not form.is_valid():
        return _page(request, person, token_form=form, status=400)
    issued = services.create_token(person=person, purpose=Token.Purpose.API, label=form.cleaned_data["label"])
    return _page(request, person, api_token=issued)


@login_required
@require_POST
def revoke_personal_token(request: HttpRequest, token_id: int) -> HttpResponse:
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
    rows = sorted(own_machines(person), key=lambda row: (row.machine.revoked_at is not None, not row.is_online))
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
        "pauses": PAUSE_CHOICES,
        "runs": runs_to_move_to(person) if any(row.is_online for row in working) else [],
    }
    return render(request, "web/accounts/machines.html", facts, status=status)


def _sentence(working: list[OwnMachine]) -> str:
    """Return a sentence such as “2 machines, 1 online. 18,949 samples so far.”"""
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

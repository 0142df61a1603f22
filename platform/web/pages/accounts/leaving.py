"""Exporting everything that the site stores about the user, and deleting the account."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from allauth.socialaccount.models import SocialAccount
from django import forms
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.core.handlers.asgi import ASGIRequest
from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from accounts.machine_control import wanted_in
from accounts.models import MachineControl, Person
from coordination import presence
from notices.selectors import exported as exported_notices
from peer_agent.protocol.errors import Fault, Problem
from runs.departure import delete_account as forget
from runs.lifecycle.roles import successors
from runs.models import HubAccount, LedgerEntry, NamedVolunteer
from web.http import rate_limits
from web.http.files import in_turns
from web.http.requester import person_in

AT_ONCE = 2000  # ledger rows in memory at a time
LEDGER = ("run__slug", "step", "machine__name", "samples", "tokens", "credit", "weight", "entry__digest", "reason")


class DeleteForm(forms.Form):
    """The form for deleting an account. It asks for the user's name and, if the account has one, the password."""

    name = forms.CharField(
        label=gettext_lazy("Your name"), max_length=30, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )
    password = forms.CharField(
        label=gettext_lazy("Password"),
        strip=False,
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )

    def __init__(self, *args: Any, person: Person, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.person = person
        self.fields["name"].help_text = _("Type %(name)s to confirm.") % {"name": person.username}
        if not person.has_usable_password():
            del self.fields["password"]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if given.get("name") != self.person.username:
            self.add_error("name", _("That's not your name."))
        if "password" in self.fields and not self.person.check_password(given.get("password", "")):
            self.add_error("password", _("That's not your password."))
        return given


@never_cache
@login_required
@rate_limits.limited("exports", rate_limits.person, methods=("GET", "HEAD"))
@require_safe
def export(request: HttpRequest) -> HttpResponseBase:
    person = person_in(request)
    parts = _exported(person)
    body = in_turns(parts) if isinstance(request, ASGIRequest) else parts
    answer = StreamingHttpResponse(body, content_type="application/json")
    answer.headers["Content-Disposition"] = 'attachment; filename="manyhands-export.json"'
    return answer


@never_cache
@sensitive_post_parameters()
@login_required
@rate_limits.limited("log-ins of this name", rate_limits.person, failures_only=True)
@require_http_methods(["GET", "HEAD", "POST"])
def delete_account(request: HttpRequest) -> HttpResponse:
    person, fault = person_in(request), None
    form = DeleteForm(request.POST or None, person=person)
    if request.method == "POST" and form.is_valid():
        try:
            name = forget(person=person)
        except Problem as problem:
            fault = problem.fault
        else:
            presence.forget_plans(name)
            logout(request)
            return redirect("web:runs")
    return _asked(request, form, fault)


def _asked(request: HttpRequest, form: DeleteForm, fault: Fault | None) -> HttpResponse:
    status = 409 if fault else 400 if form.errors else 200
    facts = {"form": form, "fault": fault, "heirs": successors(person_in(request))}
    return render(request, "web/accounts/delete_account.html", facts, status=status)


def _exported(person: Person) -> Iterator[str]:
    facts = {
        "name": person.username,
        "joined": person.date_joined,
        "last_login": person.last_login,
        "page_is_public": person.has_public_page,
        "connected": [account.provider for account in SocialAccount.objects.filter(user=person)],
        "machines": list(person.machines.values("name", "kind", "created_at", "last_seen_at", "revoked_at")),
        "limits": [
            {"machine": row.machine.name, **msgspec.to_builtins(wanted_in(row))}
            for row in MachineControl.objects.filter(machine__person=person).select_related("machine")
        ],
        "tokens": list(person.tokens.values("label", "purpose", "created_at", "expires_at", "used_at", "revoked_at")),
        "organized": list(person.runs.values("slug", "title", "created_at")),
        "roles": list(person.run_roles.values("run__title", "role", "invited_at", "accepted_at")),
        "memberships": list(person.memberships.values("run__title", "joined_at", "removed_at")),
        "join_requests": list(person.join_requests.values("run__title", "message", "asked_at", "declined_at")),
        "totals": list(person.totals.values("run__slug", "machine__name", "samples", "tokens", "credit", "rounds")),
        "teams": list(person.in_teams.values("team__name", "joined_day", "left_day")),
        "uploads": list(person.uploads.values("filename", "size", "touched_at")),
        "datasets": list(person.datasets.values("title", "filename", "licence", "size")),
        "hub_account": list(HubAccount.objects.filter(person=person).values("name", "namespaces", "saved_at")),
        "named_on_cards": list(NamedVolunteer.objects.filter(person=person).values("run__slug", "agreed_at")),
        "notifications": exported_notices(person),
        "averaged": list(person.averaged.values("run__slug", "machine__name", "bytes_averaged")),
    }
    yield json.dumps(facts, cls=DjangoJSONEncoder)[:-1] + ', "ledger": ['
    rows, last, between = LedgerEntry.objects.filter(person=person).order_by("pk").values("pk", *LEDGER), 0, ""
    while some := list(rows.filter(pk__gt=last)[:AT_ONCE]):
        last = some[-1]["pk"]
        named = ({name: row[name] for name in LEDGER} for row in some)
        yield between + ", ".join(json.dumps(row, cls=DjangoJSONEncoder) for row in named)
        between = ", "
    yield "]}\n"

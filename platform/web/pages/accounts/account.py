"""The account page: password, other sessions, external logins. Also the page that a password link opens."""

from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import deactivation, external_logins
from accounts.selectors import machines_of, open_tokens_of
from accounts.teams import team_of
from peer_agent.protocol.errors import Fault, Problem
from runs.lifecycle.roles import roles_of
from web.http.faults import answer
from web.http.requester import person_in
from web.pages.accounts.external_login import connections, login_providers
from web.pages.accounts.forms import NewPasswordForm, PasswordForm

DONE = {
    "password": gettext_lazy("Your password was changed. You are logged out everywhere else."),
    "sessions": gettext_lazy("Done. You are now logged in only here."),
    "page": gettext_lazy("Saved."),
    "connected": gettext_lazy("Connected. You can now log in with it too."),
    "disconnected": gettext_lazy("Disconnected. It can no longer be used to log in."),
}
ROLES = 50  # roles shown on the page
BACKEND = "django.contrib.auth.backends.ModelBackend"


@never_cache
@login_required
@require_safe
def account_page(request: HttpRequest) -> HttpResponse:
    return _page(request, done=str(DONE.get(request.GET.get("done", ""), "")))


@sensitive_post_parameters()
@login_required
@require_POST
def change_password(request: HttpRequest) -> HttpResponse:
    person = person_in(request)
    form = PasswordForm(request.POST, has_password=person.has_usable_password())
    if not form.is_valid():
        return _page(request, form=form, status=400)
    try:
        deactivation.change_password(person=person, **form.cleaned_data)
    except ValidationError as error:
        form.add_error(None, error)
        return _page(request, form=form, status=400)
    update_session_auth_hash(request, person)
    return redirect("/account/?done=password")


@login_required
@require_POST
def end_other_sessions(request: HttpRequest) -> HttpResponse:
    person = person_in(request)
    deactivation.end_sessions(person=person)
    update_session_auth_hash(request, person)
    return redirect("/account/?done=sessions")


@login_required
@require_POST
def disconnect(request: HttpRequest, provider_id: str) -> HttpResponse:
    known = {connection.provider: connection.name for connection in connections(person_in(request))}
    if provider_id not in known:
        raise Http404
    try:
        external_logins.disconnect(
            person=person_in(request),
            provider=provider_id,
            name=known[provider_id],
            open_here=[provider.provider for provider in login_providers()],
        )
    except Problem as problem:
        return _page(request, fault=problem.fault, status=409)
    return redirect("/account/?done=disconnected")


@never_cache
@sensitive_post_parameters()
@require_http_methods(["GET", "HEAD", "POST"])
def new_password(request: HttpRequest, person_id: str, token: str) -> HttpResponse:
    """Set a new password through an operator's one-time link, and log in."""
    try:
        person = deactivation.person_of_reset(person_id=person_id, token=token)
    except Problem as problem:
        return answer(request, problem.fault)
    form = NewPasswordForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            deactivation.set_password(person=person, password=form.cleaned_data["password"])
        except ValidationError as error:
            form.add_error("password", error)
        else:
            login(request, person, backend=BACKEND)
            return redirect("/account/?done=password")
    return render(
        request, "web/accounts/new_password.html", {"form": form, "person": person}, status=400 if form.errors else 200
    )


def _page(
    request: HttpRequest,
    *,
    form: PasswordForm | None = None,
    fault: Fault | None = None,
    done: str = "",
    status: int = 200,
) -> HttpResponse:
    person = person_in(request)
    facts = {
        "form": form or PasswordForm(has_password=person.has_usable_password()),
        "has_password": person.has_usable_password(),
        "done": done,
        "fault": fault,
        "connections": connections(person),
        "machines": machines_of(person).filter(revoked_at=None).count(),
        "team": team_of(person),
        "roles": roles_of(person)[:ROLES],
        "tokens": open_tokens_of(person).count(),
    }
    return render(request, "web/accounts/account.html", facts, status=status)

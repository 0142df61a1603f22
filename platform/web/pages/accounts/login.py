"""Login, logout and sign-up. Also the one-time page for the site's first operator."""

import secrets
from pathlib import Path

from django.conf import settings
from django.contrib.auth import login, logout, views
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from accounts import services
from accounts.selectors import has_operator
from config.environment import kept_secret
from notices import services as notices
from notices.models import Event, Way
from web import strokes
from web.http import rate_limits, sign_up_work
from web.http.requester import address_of
from web.pages.accounts.forms import LoginForm, SignUpForm
from web.run_picture.picture import TINTS

NOT_DONE = gettext_lazy("Your browser has to do some work first, to keep out automated sign-ups. Please try again.")
CROWD = [place * 5 % TINTS for place in range(36)]  # tints of the strokes drawn next to a newcomer's place

log_in = rate_limits.limited("log-ins", address_of, failures_only=True)(
    rate_limits.limited("log-ins of this name", rate_limits.address_and_name, failures_only=True)(
        views.LoginView.as_view(
            template_name="web/accounts/login.html",
            authentication_form=LoginForm,
            redirect_authenticated_user=True,
            extra_context={"drawing": strokes.places(CROWD, len(CROWD))},
        )
    )
)


@rate_limits.limited("sign-ups", address_of)
@require_http_methods(["GET", "POST"])
def sign_up(request: HttpRequest) -> HttpResponse:
    if request.user.is_authenticated:
        return redirect(after_login(request))
    form, bits = SignUpForm(request.POST or None), settings.SIGN_UP_BITS
    if request.method == "POST" and form.is_valid() and _has_worked(request, form):
        try:
            person = services.sign_up(**form.cleaned_data)
        except ValidationError as error:
            form.add_error(None, error)
        else:
            login(request, person)
            return redirect(after_login(request))
    facts = {
        "form": form,
        "next": request.GET.get("next", ""),
        "drawing": strokes.places(CROWD, len(CROWD) + 1),
        "bits": bits,
        "work": sign_up_work.challenge() if bits else "",
    }
    return render(request, "web/accounts/signup.html", facts)


def _has_worked(request: HttpRequest, form: SignUpForm) -> bool:
    """Return True if the browser has done the work that this site asks for. Otherwise, add an error to the form."""
    bits, said = settings.SIGN_UP_BITS, request.POST
    if not bits or sign_up_work.is_done(said.get("work", ""), said.get("answer", ""), bits):
        return True
    form.add_error(None, NOT_DONE)
    return False


@require_POST
def log_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("web:runs")


def after_login(request: HttpRequest) -> str:
    """Return the address to open after a login: the requested one, or the front page if that is not on this site."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    is_here = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return wanted if is_here else "web:runs"


def operator_secret() -> str:
    """Return the secret in the first operator's sign-up link, which `serve` prints."""
    return kept_secret(Path(settings.DATA) / "keys" / "operator").hex()


@require_http_methods(["GET", "POST"])
def first_operator(request: HttpRequest, secret: str) -> HttpResponse:
    """Let the holder of the secret link create the site's first operator. Afterwards, the link returns status 404."""
    if has_operator() or not secrets.compare_digest(secret.encode(), operator_secret().encode()):
        raise Http404
    form = SignUpForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            person = services.make_first_operator(**form.cleaned_data)
        except ValidationError as error:
            form.add_error(None, error)
        else:
            notices.choose(person=person, wanted=[(Event.TROUBLE, way) for way in Way])
            login(request, person)
            return redirect("web:runs")
    return render(request, "web/accounts/first_operator.html", {"form": form})

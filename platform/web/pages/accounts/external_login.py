"""Login through another site. allauth talks to that site; this module finds the user's account on this site."""

from typing import Any, NamedTuple
from urllib.parse import urlencode

from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.providers.base import AuthError
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2Adapter, OAuth2CallbackView, OAuth2LoginView
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.contrib.auth import login
from django.core import signing
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe
from requests import RequestException

from accounts import external_logins
from accounts.models import Person
from peer_agent.protocol.errors import Fault, Problem
from web.http import rate_limits
from web.http.faults import answer
from web.http.requester import address_of
from web.pages.accounts.forms import NameForm

CONNECT = "connect"  # allauth's name for adding a login to a logged-in user's account
MARK_S = 3600  # seconds that links for connecting a login work; older account pages must be reloaded
PENDING = "outside"  # session key for a newcomer yet to choose a name
COUNTED = "log-ins by another site"
MALFORMED = (AttributeError, KeyError, TypeError, ValueError)  # from a response that has another form


class LoginProvider(NamedTuple):
    provider: str
    name: str


class Connection(NamedTuple):
    """An external login on the account page. `start` is the address for connecting it, or empty if it is connected."""

    provider: str
    name: str
    start: str


class Newcomer(NamedTuple):
    """A person whom the other site has identified, but who has no account on this site yet."""

    provider: str
    uid: str
    name: str
    wanted: str


def login_providers() -> list[LoginProvider]:
    apps = [(kind, app) for kind, found in settings.SOCIALACCOUNT_PROVIDERS.items() for app in found["APPS"]]
    return [LoginProvider(app.get("provider_id", kind), app["name"]) for kind, app in apps]


def connections(person: Person) -> list[Connection]:
    """Return the external logins that a user can connect, and those already connected, even if no longer offered."""
    names = {provider.provider: provider.name for provider in login_providers()}
    known = external_logins.connected(person)
    shown = {**names, **{provider: names.get(provider, provider) for provider in known}}
    return [Connection(each, name, "" if each in known else _start(person, each)) for each, name in shown.items()]


def _start(person: Person, provider: str) -> str:
    """Return a signed address that works only for this person, so that no link can connect someone else's account."""
    mark = signing.dumps(person.pk, salt=f"connect {provider}")
    return f"{reverse('openid_connect_login', args=[provider])}?{urlencode({'process': CONNECT, 'mark': mark})}"


def _may_connect(request: HttpRequest, provider: str) -> bool:
    try:
        marked = signing.loads(request.GET.get("mark", ""), salt=f"connect {provider}", max_age=MARK_S)
    except signing.BadSignature:
        return False
    return bool(marked == request.user.pk)


def providers_shown(_: HttpRequest) -> dict[str, Any]:
    """Return the sites through which people can log in, as a template context."""
    return {"login_providers": login_providers()}


class CheckedOpenID(OpenIDConnectOAuth2Adapter):  # type: ignore[misc] # allauth has no types
    """OpenID Connect with stricter checks than allauth's.

    It verifies the ID token's signature, whereas allauth relies on TLS. The other site's two responses must be about
    the same person.
    """

    def complete_login(self, request: HttpRequest, app: Any, token: Any, **kwargs: Any) -> Any:
        """Complete a login as allauth does, and also check the ID token. Raises OAuth2Error."""
        self.did_fetch_access_token = False  # False makes allauth verify the token's signature
        found = super().complete_login(request, app, token, **kwargs)
        told = found.account.extra_data
        if not told.get("id_token") or told["id_token"].get("sub") != found.account.uid:
            raise OAuth2Error("the ID token is missing or about somebody else")
        return found


class OutsideAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc] # allauth has no types
    """The hook that replaces allauth's pages and tables once the other site has identified the user."""

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Log the user in, or connect the login to their account. Always raises ImmediateHttpResponse."""
        account, wanted = sociallogin.account, sociallogin.state.get("next") or ""
        external_logins.forget_details(provider=account.provider, uid=account.uid)
        if sociallogin.state.get("process") == CONNECT:
            raise ImmediateHttpResponse(connect(request, account.provider, account.uid))
        name = sociallogin.user.username if not sociallogin.is_existing else ""
        raise ImmediateHttpResponse(come_in(request, Newcomer(account.provider, account.uid, name, wanted)))

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> None:
        """Report a failed login. Always raises ImmediateHttpResponse, which skips allauth's own page."""
        state = (extra_context or {}).get("state") or {}
        if error == AuthError.CANCELLED:
            raise ImmediateHttpResponse(redirect("web:account" if state.get("process") == CONNECT else "web:login"))
        reason = str(exception or "the answer does not belong to a login that began in this browser")
        raise ImmediateHttpResponse(unconfirmed(request, provider.name, reason))


@never_cache
@rate_limits.limited(COUNTED, address_of, methods=("GET",))
@require_safe
def start(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Redirect to the other site. A stale link for connecting a login leads back to the account page."""
    if request.GET.get("process") == CONNECT and not _may_connect(request, provider_id):
        return redirect("web:account")
    return _ask(request, provider_id, OAuth2LoginView)


@never_cache
@rate_limits.limited(COUNTED, address_of, methods=("GET",))
@require_safe
def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    return _ask(request, provider_id, OAuth2CallbackView)


@never_cache
@rate_limits.limited(COUNTED, address_of)
@require_http_methods(["GET", "HEAD", "POST"])
def choose_name(request: HttpRequest) -> HttpResponse:
    """Ask a newcomer for a name, because their name on the other site is taken or invalid here."""
    if PENDING not in request.session:
        return redirect("web:login")
    newcomer = Newcomer(*request.session[PENDING])
    form = NameForm(request.POST or None, initial={"username": newcomer.name})
    if request.method == "POST" and form.is_valid():
        try:
            person = join(newcomer._replace(name=form.cleaned_data["username"]))
        except ValidationError as error:
            form.add_error(None, error)
        else:
            return let_in(request, person, newcomer.wanted)
    facts = {"form": form, "name": newcomer.name, "provider": provider_named(newcomer.provider)}
    return render(request, "web/accounts/choose_name.html", facts, status=400 if form.errors else 200)


def come_in(request: HttpRequest, newcomer: Newcomer) -> HttpResponse:
    """Log in a user whom the other site has confirmed. If they are new and need a different name, ask for one."""
    person = external_logins.person_known_as(provider=newcomer.provider, uid=newcomer.uid)
    if person is None:
        try:
            person = join(newcomer)
        except ValidationError:
            request.session[PENDING] = list(newcomer)
            return redirect("web:choose_name")
    return let_in(request, person, newcomer.wanted)


def connect(request: HttpRequest, provider: str, uid: str) -> HttpResponse:
    if not isinstance(request.user, Person):
        return redirect("web:login")
    try:
        external_logins.connect(person=request.user, provider=provider, uid=uid, name=provider_named(provider).name)
    except Problem as problem:
        return answer(request, problem.fault)
    return redirect("/account/?done=connected")


def join(newcomer: Newcomer) -> Person:
    return external_logins.join_from_outside(provider=newcomer.provider, uid=newcomer.uid, username=newcomer.name)


def let_in(request: HttpRequest, person: Person, wanted: str) -> HttpResponse:
    """Log the user in, unless the account is closed."""
    request.session.pop(PENDING, None)
    if not person.is_active:
        return answer(request, Fault.of("E336"))
    login(request, person, backend="django.contrib.auth.backends.ModelBackend")
    is_here = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    return redirect(wanted if is_here else "web:runs")


def unconfirmed(request: HttpRequest, name: str, reason: str) -> HttpResponse:
    return answer(request, Fault.of("E335", name=name, reason=reason))


def provider_named(provider_id: str) -> LoginProvider:
    """Return the login site with this id. Raises Http404 if there is none."""
    found = next((provider for provider in login_providers() if provider.provider == provider_id), None)
    if found is None:
        raise Http404
    return found


def _ask(request: HttpRequest, provider_id: str, view: Any) -> HttpResponse:
    provider = provider_named(provider_id)
    try:
        answered: HttpResponse = view.adapter_view(_adapter(request, provider_id))(request)
    except RequestException as error:
        return unconfirmed(request, provider.name, f"it does not answer: {type(error).__name__}")
    except MALFORMED as error:
        return unconfirmed(request, provider.name, f"its answer makes no sense: {type(error).__name__}")
    return answered


def _adapter(request: HttpRequest, provider_id: str) -> OAuth2Adapter:
    return GitHubOAuth2Adapter(request) if provider_id == "github" else CheckedOpenID(request, provider_id)

"""Light or dark, and the language, where a reader chose one: kept in a cookie, so that a page comes in it at once."""

from collections.abc import Container

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import get_language, get_language_bidi, pgettext_lazy
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

COOKIE = "theme"
THEMES = {
    "": pgettext_lazy("theme", "System"),
    "light": pgettext_lazy("theme", "Light"),
    "dark": pgettext_lazy("theme", "Dark"),
}
YEAR_S = 365 * 86_400


def tastes(request: HttpRequest) -> dict[str, object]:
    """What templates know of them."""
    chosen, language = request.COOKIES.get(COOKIE, ""), get_language() or settings.LANGUAGE_CODE
    chosen = chosen if chosen in THEMES else ""
    return {
        "theme": chosen,
        "themes": [(name, title, name == chosen) for name, title in THEMES.items()],
        "language": language,
        "direction": "rtl" if get_language_bidi() else "ltr",
        "languages": [(name, title, name == language) for name, title in settings.LANGUAGES],
    }


@csrf_exempt  # it changes how this reader's pages look, and nothing else
@require_POST
def choose_theme(request: HttpRequest) -> HttpResponse:
    """Keep the choice, and go back to where it was made."""
    return _kept(request, COOKIE, request.POST.get("theme", ""), THEMES)


@csrf_exempt  # the same
@require_POST
def choose_language(request: HttpRequest) -> HttpResponse:
    """Keep the choice, and go back to where it was made."""
    return _kept(request, settings.LANGUAGE_COOKIE_NAME, request.POST.get("language", ""), dict(settings.LANGUAGES))


def _kept(request: HttpRequest, cookie: str, chosen: str, known: Container[str]) -> HttpResponse:
    back = request.POST.get("back", "")
    is_ours = url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure())
    if not is_ours or not back.startswith("/"):
        back = "/"
    answer = HttpResponseRedirect(back)
    if chosen and chosen in known:
        answer.set_cookie(cookie, chosen, max_age=YEAR_S, samesite="Lax", secure=request.is_secure(), httponly=True)
    else:
        answer.delete_cookie(cookie)
    return answer

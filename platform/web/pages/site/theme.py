"""Light or dark, where a reader chose one: kept in a cookie, so that a page comes in it from its first pixel."""

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

COOKIE = "theme"
THEMES = {"": "System", "light": "Light", "dark": "Dark"}
YEAR_S = 365 * 86_400


def theme(request: HttpRequest) -> dict[str, object]:
    """What templates know of it."""
    chosen = request.COOKIES.get(COOKIE, "")
    chosen = chosen if chosen in THEMES else ""
    return {"theme": chosen, "themes": [(name, title, name == chosen) for name, title in THEMES.items()]}


@csrf_exempt  # it changes how this reader's pages look, and nothing else
@require_POST
def choose_theme(request: HttpRequest) -> HttpResponse:
    """Keep the choice, and go back to where it was made."""
    back = request.POST.get("back", "")
    is_ours = url_has_allowed_host_and_scheme(back, {request.get_host()}, require_https=request.is_secure())
    if not is_ours or not back.startswith("/"):
        back = "/"
    answer, chosen = HttpResponseRedirect(back), request.POST.get("theme", "")
    if chosen in THEMES and chosen:
        answer.set_cookie(COOKIE, chosen, max_age=YEAR_S, samesite="Lax", secure=request.is_secure(), httponly=True)
    else:
        answer.delete_cookie(COOKIE)
    return answer

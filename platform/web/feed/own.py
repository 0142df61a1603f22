"""What a page shows to its reader alone. The feed is the same for all who watch, so it is asked for beside it."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from runs.access import access_run, may_manage
from web.http import rate_limits
from web.http.access import run_or_404
from web.http.requester import address_of
from web.run_picture import presence
from web.run_picture.own_links import links_shown
from web.run_picture.own_place import Own, own_bars, own_words


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def own_links(request: HttpRequest, slug: str) -> HttpResponse:
    """What the links of the reader's machines carry; to the organizer of all."""
    run = run_or_404(access_run, request, slug)
    links = links_shown(run, request.user, sees_all=may_manage(run, request.user))
    return JsonResponse(links, headers={"Cache-Control": "private, no-store"})


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def own_place(request: HttpRequest, slug: str) -> HttpResponse:
    """The reader's line of the leaderboard, and the bars of their machines."""
    run = run_or_404(access_run, request, slug)
    own = Own(run, request.user)
    found = {"you": own_words(own, ()), "bars": own_bars(own, presence.online(run))}
    return JsonResponse(found, headers={"Cache-Control": "private, no-store"})

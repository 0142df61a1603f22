"""Requests that a page makes in addition to its WebSocket.

If WebSockets are blocked, the page polls the same picture here. It also fetches facts that only its reader may see.
The database is read once a second and once for each step, no matter how many readers poll.
"""

import gzip
import hashlib
import time
from typing import NamedTuple
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import condition, require_safe

from coordination import presence
from runs.access import access_run, may_manage
from runs.models import Run
from web.feed.changes import picture_message
from web.http import rate_limits
from web.http.requester import address_of, run_or_404
from web.run_picture.loading import ENGLISH, known_language, picture_in
from web.run_picture.own import Own, links_shown, own_bars, own_words

KEEP_S = 1.0
REST_S = 0.25  # least seconds between reads, however fast steps are
MOST = 256  # most pictures that are kept


class Kept(NamedTuple):
    """A picture as it is sent, with the time it was made and the index of the run's log at that time."""

    at_s: float
    entry: int
    content: bytes
    packed: bytes  # compressed once, for all readers
    etag: str


_kept: dict[tuple[UUID, str], Kept] = {}  # by run and language


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def polled_feed(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the picture as JSON, or status 304 if the client already has it."""
    language = known_language(request.GET.get("language", ""))
    kept = recent_picture(run_or_404(access_run, request, slug), language)

    @condition(etag_func=lambda _: kept.etag)
    def answer(_: HttpRequest) -> HttpResponse:
        headers = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("Accept-Encoding", ""):
            return HttpResponse(kept.content, content_type="application/json", headers=headers)
        return HttpResponse(
            kept.packed, content_type="application/json", headers={**headers, "Content-Encoding": "gzip"}
        )

    return answer(request)


def recent_picture(run: Run, language: str = ENGLISH) -> Kept:
    """Return a picture that is at most a second old. After a new step, the picture is renewed sooner."""
    now, index = time.monotonic(), run.head.index
    key = run.pk, language
    kept = _kept.get(key)
    if kept is None or now - kept.at_s >= (KEEP_S if kept.entry == index else REST_S):
        content = picture_message(0, picture_in(language, run)).encode()
        packed = gzip.compress(content, 5, mtime=0)
        kept = Kept(now, index, content, packed, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        if len(_kept) >= MOST:
            _kept.clear()
        _kept[key] = kept
    return kept


# Facts that only one reader may see. The feed is the same for all watchers, so a page requests these facts separately.


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def own_links(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the connections of the reader's machines, or of all machines if the reader manages the run."""
    run = run_or_404(access_run, request, slug)
    links = links_shown(run, request.user, sees_all=may_manage(run, request.user))
    return JsonResponse(links, headers={"Cache-Control": "private, no-store"})


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def own_place(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the reader's own leaderboard line, and the progress bars of the reader's machines."""
    run = run_or_404(access_run, request, slug)
    own = Own(run, request.user)
    found = {"you": own_words(own, ()), "bars": own_bars(own, presence.online(run))}
    return JsonResponse(found, headers={"Cache-Control": "private, no-store"})

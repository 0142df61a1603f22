"""What pages ask beside their sockets: the same picture where sockets are blocked, and what is their reader's alone.

One look a second and one for each step, however many ask.
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
REST_S = 0.25  # between looks at least, however fast steps are made
MOST = 256  # pictures that are kept


class Kept(NamedTuple):
    """A picture as it is sent, when it was made, and at which entry of the log."""

    at_s: float
    entry: int
    content: bytes
    packed: bytes  # the same compressed: once, however many ask
    etag: str


_kept: dict[tuple[UUID, str], Kept] = {}  # by run and language


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def polled_feed(request: HttpRequest, slug: str) -> HttpResponse:
    """The picture as JSON, or 304 where the asker has it."""
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
    """The picture of a second ago, or a new one; nobody waits that second for a step."""
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


# What a page shows to its reader alone. The feed is the same for all who watch, so it is asked for beside it


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

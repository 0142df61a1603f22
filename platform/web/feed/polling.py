"""The polled feed, for pages whose WebSockets are blocked. It sends the same whole message as a WebSocket.

The database is read once a second and once per step, no matter how many readers poll.
"""

import gzip
import hashlib
import time
from typing import NamedTuple
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import condition, require_safe

from runs.access import access_run
from runs.models import Run
from web.feed.live import Live, live_page, whole_message
from web.http import rate_limits
from web.http.requester import address_of, run_or_404
from web.run_picture.loading import ENGLISH, known_language

KEEP_S = 1.0
REST_S = 0.25  # minimum seconds between reads, however fast steps are
MOST = 256  # most live pages kept


class Kept(NamedTuple):
    """A live page as sent, with the time when it was made and the index of the run's log at that time."""

    at_s: float
    entry: int
    live: Live
    content: bytes
    packed: bytes  # compressed once for all readers
    etag: str


_kept: dict[tuple[UUID, str], Kept] = {}  # by run and language


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def polled_feed(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the whole live page as JSON, or status 304 if the client already has it."""
    language = known_language(request.GET.get("language", ""))
    kept = recent_page(run_or_404(access_run, request, slug), language)

    @condition(etag_func=lambda _: kept.etag)
    def answer(_: HttpRequest) -> HttpResponse:
        headers = {"Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("Accept-Encoding", ""):
            return HttpResponse(kept.content, content_type="application/json", headers=headers)
        return HttpResponse(
            kept.packed, content_type="application/json", headers={**headers, "Content-Encoding": "gzip"}
        )

    return answer(request)


def recent_page(run: Run, language: str = ENGLISH) -> Kept:
    """Return the cached live page. Build a new one if it is over a second old, or earlier after a new step."""
    now, index = time.monotonic(), run.head.index
    key = run.pk, language
    kept = _kept.get(key)
    if kept is None or now - kept.at_s >= (KEEP_S if kept.entry == index else REST_S):
        live = live_page(run, language, kept.live if kept else None)
        content = whole_message(0, live).encode()
        packed = gzip.compress(content, 5, mtime=0)
        kept = Kept(now, index, live, content, packed, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
        if len(_kept) >= MOST:
            _kept.clear()
        _kept[key] = kept
    return kept

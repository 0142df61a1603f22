"""The same picture for pages whose sockets are blocked: one look a second and one for each step, however many ask."""

import gzip
import hashlib
import time
from typing import NamedTuple
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import condition, require_safe

from runs.access import access_run
from runs.models import Run
from web.feed.messages import picture_message
from web.http import rate_limits
from web.http.access import run_or_404
from web.http.requester import address_of
from web.run_picture.loading import ENGLISH, known_language, picture_in

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

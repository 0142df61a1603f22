"""The same picture for pages whose sockets are blocked."""

import hashlib

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import condition, require_safe

from runs.access import access_run
from web.feed.looking import seen_of
from web.feed.messages import picture_message
from web.feed.picture import picture_of
from web.runs_pages import found


@require_safe
def polled_feed(request: HttpRequest, slug: str) -> HttpResponse:
    """The picture as JSON, or 304 where the asker has it."""
    content = picture_message(0, picture_of(seen_of(found(access_run, request, slug)))).encode()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    @condition(etag_func=lambda _: etag)
    def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(content, content_type="application/json", headers={"Cache-Control": "private, no-cache"})

    return answer(request)

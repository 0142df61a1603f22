"""The guard before Django: a body that is too long, or has no length, is refused before a byte of it is read.

Django itself would first write every body to disk. Knows lengths and addresses only.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse

from peer_agent.protocol.errors import Problem
from runs.uploads import FORM_ALLOWANCE, length_fault, upload_limit
from web.admission import admit_snapshot
from web.faults import answer

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

BODILESS = {"GET", "HEAD", "OPTIONS", "DELETE"}
WITH_TEXT = re.compile(r"/runs/(new|[-\w]+/edit)/\Z")  # forms that may carry a whole text
SNAPSHOT = re.compile(r"/api/v1/runs/(?P<slug>[-\w]+)/snapshots/\d+\Z")


class LengthGuard:
    """Lets requests of a known, fitting length through to `inner`."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            try:
                await check(scope["method"], scope["path"], headers_of(scope))
            except Problem as problem:
                await _send(await sync_to_async(refusal)(scope, problem), send)
                return
        await self.inner(scope, receive, send)


async def check(method: str, path: str, headers: Mapping[str, str]) -> None:
    """Raises Problem with the reason why the body is not read."""
    length = headers.get("content-length")
    if match := SNAPSHOT.match(path) if method == "PUT" else None:
        await sync_to_async(_admit)(match["slug"], length, headers)
        return
    if "transfer-encoding" not in headers and (length is None or method in BODILESS):
        length = length or "0"  # no body at all
    limit, allowance = (upload_limit(), FORM_ALLOWANCE) if WITH_TEXT.match(path) else (FORM_ALLOWANCE, 0)
    if fault := length_fault(length, limit=limit, allowance=allowance):
        raise Problem(fault)


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def refusal(scope: Scope, problem: Problem) -> HttpResponse:
    """The answer to a request whose body is not read."""
    request = HttpRequest()
    request.method, request.path = scope["method"], scope["path"]
    return answer(request, problem.fault)


def _admit(slug: str, length: str | None, headers: Mapping[str, str]) -> None:
    authorization, site = headers.get("authorization"), headers.get("host", "")
    try:
        admit_snapshot(slug=slug, authorization=authorization, content_length=length, site=site)
    finally:
        close_old_connections()


async def _send(response: HttpResponse, send: Send) -> None:
    # The connection goes too: what the client is still sending would be taken for its next request.
    headers = [(b"connection", b"close"), (b"content-length", str(len(response.content)).encode())]
    kept = [(name.lower().encode(), value.encode()) for name, value in response.items()]
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": [*kept, *headers],
            "trailers": False,
        }
    )
    await send({"type": "http.response.body", "body": response.content, "more_body": False})

"""A guard that checks the length of a request's body before Django reads it.

Django would write every body to disk before checking who sent it. The guard rejects a body unread if it exceeds a limit
or the sender's quota. Unknown senders may send only short bodies.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse

from accounts.models import Person
from coordination.uploads import Slot
from peer_agent.protocol.errors import Problem
from runs.access import person_of
from runs.datasets.uploads import FORM_ALLOWANCE, length_fault, upload_limit
from runs.quotas import require_disk
from server.stranger_limits import STRANGER_BYTES
from web.api.files import admit_snapshot
from web.feed.admission import viewer_of
from web.http.faults import answer

P = ParamSpec("P")
T = TypeVar("T")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGE_AT_ONCE = 4  # most long bodies that a user may send at once
BODILESS = {"GET", "HEAD", "OPTIONS", "DELETE"}
WITH_TEXT = re.compile(r"/runs/(new|[-\w]+/(edit|texts|model))/\Z")  # forms that may include an entire file
SNAPSHOT = re.compile(r"/api/v1/runs/(?P<slug>[-\w]+)/snapshots/(?P<step>\d{1,15})\Z")


class LengthGuard:
    """An ASGI application that passes on requests whose bodies have an acceptable length and rejects all others."""

    def __init__(self, inner: Application) -> None:
        self.inner = inner
        self.sending: Counter[int] = Counter()  # how many long bodies are being received, by user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        try:
            sender = await check(scope)
            with self._counted(sender):
                async with _held(sender, receive) as renewing:
                    await self.inner(scope, renewing, send)
        except Refused as refused:
            await _send(await sync_to_async(refusal)(scope, refused.problem), send)

    @contextmanager
    def _counted(self, sender: Person | Slot | None) -> Iterator[None]:
        """Count a user's long body while it arrives. Raises Refused (E363) if the user is already sending too many."""
        if not isinstance(sender, Person):
            yield
            return
        if self.sending[sender.pk] >= LARGE_AT_ONCE and not sender.is_staff:
            raise Refused(Problem.of("E363", most=LARGE_AT_ONCE))
        self.sending[sender.pk] += 1
        try:
            yield
        finally:
            self.sending[sender.pk] -= 1
            if not self.sending[sender.pk]:
                del self.sending[sender.pk]


class Refused(Exception):
    """Raised to reject a body unread.

    It is not a Problem. Otherwise, the guard might answer a Problem from Django after the response has begun.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@asynccontextmanager
async def _held(sender: Person | Slot | None, receive: Receive) -> AsyncIterator[Receive]:
    """Renew a machine's upload slot while its snapshot arrives, then free it. Yield the `receive` function to use."""
    if not isinstance(sender, Slot):
        yield receive
        return
    try:
        yield _renewing(sender, receive)
    finally:
        await sync_to_async(_with_database(sender.release))()


async def check(scope: Scope) -> Person | Slot | None:
    """Return the user or upload slot sending a long body, or None for a short one. Raises Refused to reject it."""
    try:
        return await _checked(scope, headers_of(scope))
    except Problem as problem:
        raise Refused(problem) from problem


async def _checked(scope: Scope, headers: Mapping[str, str]) -> Person | Slot | None:
    method, path, length = scope["method"], scope["path"], headers.get("content-length")
    if match := SNAPSHOT.match(path) if method == "PUT" else None:
        return await sync_to_async(_with_database(_admit))(match["slug"], int(match["step"]), headers)
    if "transfer-encoding" not in headers and (length is None or method in BODILESS):
        length = length or "0"  # there is no body
    has_text = WITH_TEXT.match(path) is not None
    limit, allowance = (upload_limit(), FORM_ALLOWANCE) if has_text else (FORM_ALLOWANCE, 0)
    if fault := length_fault(length, limit=limit, allowance=allowance):
        raise Problem(fault)
    if int(length or 0) <= STRANGER_BYTES:
        return None
    return await sync_to_async(_with_database(_sender))(scope, int(length or 0) if has_text else 0)


def _sender(scope: Scope, size: int) -> Person:
    """Return the user sending a long body of `size` bytes.

    Raises Problem E362 if the sender is not logged in. Raises Problem E365 if the body, less an allowance for the form
    itself, exceeds the user's disk quota.
    """
    person = person_of(viewer_of(scope))
    if person is None:
        raise Problem.of("E362", limit=STRANGER_BYTES // 1024)
    require_disk(person, max(0, size - FORM_ALLOWANCE))
    return person


def headers_of(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def refusal(scope: Scope, problem: Problem) -> HttpResponse:
    request = HttpRequest()
    request.method, request.path = scope["method"], scope["path"]
    return answer(request, problem.fault)


def _admit(slug: str, step: int, headers: Mapping[str, str]) -> Slot:
    length, authorization, site = headers.get("content-length"), headers.get("authorization"), headers.get("host", "")
    asked = admit_snapshot(slug=slug, step=step, authorization=authorization, content_length=length, site=site)
    return Slot(asked.machine)


def _renewing(slot: Slot, receive: Receive) -> Receive:
    async def renewed() -> Any:
        message = await receive()
        if slot.is_old:
            await sync_to_async(_with_database(slot.renew))()
        return message

    return renewed


def _with_database(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that it releases its database connections. Django does that only for its own requests."""

    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return called


async def _send(response: HttpResponse, send: Send) -> None:
    # Close the connection too, because the server would read the rest of the body as the next request.
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

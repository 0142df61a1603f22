"""Files over HTTP, with a SHA-256 and at most one byte range (RFC 9110, section 14), never read whole into memory."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from runs import storage

BLOCK_BYTES = 256 * 1024
RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})\Z")  # no file is longer, and int() accepts at most 4,300 digits


class Span(NamedTuple):
    """The bytes [start, stop) of a file."""

    start: int
    stop: int


class Unsatisfiable(Exception):
    """A requested range that lies outside the file."""


def requested_span(header: str | None, size: int) -> Span | None:
    """Return the byte range that a header requests, or None for the whole file if it is missing or invalid.

    Raises Unsatisfiable if the range lies outside the file.
    """
    match = RANGE.match(header.strip()) if header else None
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return None
    if start >= stop:
        raise Unsatisfiable
    return Span(start, stop)


def send_stored(request: HttpRequest, path: Path, *, sha256: str = "", name: str = "") -> HttpResponseBase:
    """Send a stored file. If the site has a bucket, redirect to it; the bucket ignores `name`.

    `sha256` is computed if the caller does not know it. Raises FileNotFoundError if there is no bucket and no file.
    """
    if (url := storage.address(path, request.method)) is None:
        return send_file(request, path, sha256=sha256 or sha256_of(path), name=name or path.name)
    headers = {"Cache-Control": "no-store", **({"X-Sha256": sha256} if sha256 else {})}
    return HttpResponse(status=302, headers={"Location": url, **headers})


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def send_file(
    request: HttpRequest, path: Path, *, sha256: str, name: str, kind: str = "application/octet-stream"
) -> HttpResponseBase:
    """Send a file, or the requested range of it. `sha256` is that of the whole file, and serves as its ETag."""
    size = path.stat().st_size
    tag = f'"{sha256}"'
    wanted = None if request.headers.get("If-Range", tag) != tag else request.headers.get("Range")
    try:
        span = requested_span(wanted, size)
    except Unsatisfiable:
        return HttpResponse(status=416, headers={"Content-Range": f"bytes */{size}"})
    start, stop = span or Span(0, size)
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Length": str(stop - start),
        "Content-Disposition": f'attachment; filename="{name}"',
        "ETag": tag,
        "X-Sha256": sha256,
    }
    if span:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    # Django exhausts a synchronous iterator before an ASGI server sends the first byte.
    blocks = blocks_async if isinstance(request, ASGIRequest) else blocks_of
    body = blocks(path, start, stop) if request.method != "HEAD" else ()
    return StreamingHttpResponse(body, status=206 if span else 200, headers=headers, content_type=kind)


def blocks_of(path: Path, start: int, stop: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while block := _read(file, stop):
            yield block


async def blocks_async(path: Path, start: int, stop: int) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while block := await asyncio.to_thread(_read, file, stop):
            yield block


async def in_turns(parts: Iterator[str]) -> AsyncIterator[str]:
    """Yield the chunks of a response. Each is made in a thread once the one before has been sent."""
    made = sync_to_async(partial(next, parts, None))
    while (part := await made()) is not None:
        yield part


def _read(file: BinaryIO, stop: int) -> bytes:
    return file.read(min(BLOCK_BYTES, stop - file.tell()))

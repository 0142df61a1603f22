"""Uploads in pieces, using tus 1.0.0. POST announces an upload, HEAD returns its offset, PATCH appends a piece.

After a dropped connection, a page reload or a site restart, the browser resumes the upload at that offset.
"""

import base64
import binascii
from collections.abc import Callable
from functools import wraps
from typing import Final
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from peer_agent.protocol.errors import Fault, Problem
from runs.datasets import uploads
from runs.datasets.uploads import upload_limit
from runs.models import Upload
from web.http import rate_limits
from web.http.faults import answer
from web.http.requester import person_in

View = Callable[..., HttpResponse]
VERSION: Final = "1.0.0"
RESUMABLE, OFFSET, LENGTH, METADATA = "Tus-Resumable", "Upload-Offset", "Upload-Length", "Upload-Metadata"
KIND = "application/offset+octet-stream"  # a piece's content type
MOST_DIGITS = 18  # most digits in a number of bytes; int() accepts at most 4,300
MOST_METADATA = 4096  # in characters
SHOWN = 20  # most characters of a client's text shown in an error


def for_programs(view: View) -> View:
    """Wrap a view for programs. Errors are JSON, even without a login, and each response states the tus version."""

    @wraps(view)
    def answered(request: HttpRequest, **details: UUID) -> HttpResponse:
        response = _answer(view, request, details)
        response[RESUMABLE] = VERSION
        if response.status_code == 412:
            response["Tus-Version"] = VERSION
        return response

    return never_cache(answered)


def _answer(view: View, request: HttpRequest, details: dict[str, UUID]) -> HttpResponse:
    if not request.user.is_authenticated:
        return answer(request, Fault("401", _("Log in first.")), status=401)
    if request.method == "OPTIONS":
        return HttpResponse(status=204, headers=capabilities(upload_limit()))
    try:
        require_version(request)
        return view(request, **details)
    except rate_limits.TooOften as problem:
        return rate_limits.refusal(request, problem)
    except Problem as problem:
        return answer(request, problem.fault)


@require_http_methods(["OPTIONS", "POST"])
@for_programs
def begin(request: HttpRequest) -> HttpResponse:
    """Begin an upload. The headers give the file's length in bytes and, as metadata, its name."""
    size = byte_count(request, LENGTH)
    if size is None:
        raise Problem.of("E375", reason=f"{LENGTH} is not a number of bytes")
    filename = metadata(request).get("filename", "")
    rate_limits.spend("uploads in pieces", rate_limits.person(request))
    upload = uploads.begin_upload(person=person_in(request), filename=filename, size=size)
    return HttpResponse(status=201, headers={"Location": f"/uploads/{upload.pk}/"})


@require_http_methods(["OPTIONS", "HEAD", "PATCH", "DELETE"])
@for_programs
def go_on(request: HttpRequest, upload_id: UUID) -> HttpResponse:
    """For HEAD, return an upload's offset. For PATCH, append a piece. For DELETE, delete the upload."""
    upload = uploads.upload_of(person_in(request), upload_id)
    if request.method == "DELETE":
        uploads.forget_upload(upload)
        return HttpResponse(status=204)
    if request.method == "PATCH":
        upload = _take(upload, request)
    return HttpResponse(status=204, headers={OFFSET: str(upload.offset), LENGTH: str(upload.size)})


def _take(upload: Upload, request: HttpRequest) -> Upload:
    """Append the request's piece to the upload.

    Raises Problem E369 if the content type is wrong, E319 if the offset is missing or wrong or the piece is too long,
    or E318 if the upload no longer exists.
    """
    require_piece(request)
    offset = byte_count(request, OFFSET)
    if offset is None:
        given = request.headers.get(OFFSET, "")
        raise Problem.of("E319", offset=upload.offset, given=given[:SHOWN] or "none")
    return uploads.take_piece(upload=upload, offset=offset, piece=request.body)


# tus 1.0.0 headers (tus.io/protocols/resumable-upload): the core protocol, creation and termination

# X-HTTP-Method-Override is not supported: a request is treated according to its real method.


def capabilities(max_size: int) -> dict[str, str]:
    """Return the headers that answer OPTIONS. `max_size` is the maximum size of an upload in bytes."""
    return {"Tus-Version": VERSION, "Tus-Extension": "creation,termination", "Tus-Max-Size": str(max_size)}


def require_version(request: HttpRequest) -> None:
    """Raise Problem E368 unless the request uses the supported tus version."""
    given = request.headers.get(RESUMABLE, "")
    if given != VERSION:
        raise Problem.of("E368", given=given[:SHOWN] or "of no version", version=VERSION)


def require_piece(request: HttpRequest) -> None:
    """Raise Problem E369 unless the request's content type is that of a piece."""
    if request.content_type != KIND:
        raise Problem.of("E369", given=(request.content_type or "")[: 2 * SHOWN] or "nothing in particular", kind=KIND)


def byte_count(request: HttpRequest, header: str) -> int | None:
    """Return the number of bytes that a header gives, or None if the header is missing or not a number."""
    given = request.headers.get(header, "")
    return int(given) if given.isdecimal() and len(given) <= MOST_DIGITS else None


def metadata(request: HttpRequest) -> dict[str, str]:
    """Parse an upload's metadata: pairs of a name and a base64 value, separated by commas.

    Raises Problem E375 if the header is too long or malformed.
    """
    given = request.headers.get(METADATA, "")
    if len(given) > MOST_METADATA:
        raise Problem.of("E375", reason=f"{METADATA} has more than {MOST_METADATA} letters")
    pairs = [pair.strip().partition(" ") for pair in given.split(",") if given]
    try:
        said = {name: base64.b64decode(value, validate=True).decode() for name, _, value in pairs}
    except (binascii.Error, ValueError) as error:
        raise Problem.of("E375", reason=f"{METADATA} has a value that is not UTF-8 in base64") from error
    if "" in said or len(said) < len(pairs):
        raise Problem.of("E375", reason=f"{METADATA} has a name twice, or a value without one")
    return said

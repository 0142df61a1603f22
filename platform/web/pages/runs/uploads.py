"""Texts in pieces over plain HTTP: POST announces one, HEAD says how much the site has, PATCH adds to it.

After a dropped connection, a reload or a restart of the site an upload goes on at the offset that HEAD names.
"""

from collections.abc import Callable
from functools import wraps
from uuid import UUID

import msgspec
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from peer_agent.protocol.errors import Fault, Problem
from runs.datasets import resumable_upload
from runs.models import Upload
from web.http import rate_limits
from web.http.faults import answer
from web.http.requester import person_in

OFFSET, LENGTH = "Upload-Offset", "Upload-Length"
MOST_DIGITS = 18  # of an offset; int() takes 4,300 at most
View = Callable[..., HttpResponse]


class Announced(msgspec.Struct, frozen=True):
    """What somebody is about to send. `size` in bytes."""

    filename: str
    size: int


def for_programs(view: View) -> View:
    """Numbered errors as JSON, also for who is not logged in."""

    @wraps(view)
    def answered(request: HttpRequest, **details: UUID) -> HttpResponse:
        if not request.user.is_authenticated:
            return answer(request, Fault("401", "Log in first."), status=401)
        try:
            return view(request, **details)
        except rate_limits.TooOften as problem:
            return rate_limits.refusal(request, problem)
        except Problem as problem:
            return answer(request, problem.fault)

    return never_cache(answered)


@require_POST
@for_programs
def begin(request: HttpRequest) -> HttpResponse:
    """Announce a text: `{"filename", "size"}`."""
    try:
        said = msgspec.json.decode(request.body, type=Announced)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem.of("E206", reason=error) from error
    rate_limits.spend("uploads in pieces", rate_limits.person(request))
    upload = resumable_upload.begin_upload(person=person_in(request), filename=said.filename, size=said.size)
    facts = {"id": str(upload.pk), "offset": 0, "size": upload.size, "piece": resumable_upload.PIECE_BYTES}
    return JsonResponse(facts, status=201, headers={"Location": f"/uploads/{upload.pk}/"})


@require_http_methods(["HEAD", "PATCH", "DELETE"])
@for_programs
def go_on(request: HttpRequest, upload_id: UUID) -> HttpResponse:
    """How much is here; a piece more; or forget it."""
    upload = resumable_upload.upload_of(person_in(request), upload_id)
    if request.method == "DELETE":
        resumable_upload.forget_upload(upload)
        return HttpResponse(status=204)
    if request.method == "PATCH":
        offset = request.headers.get(OFFSET, "")
        if not offset.isdecimal() or len(offset) > MOST_DIGITS:
            raise Problem.of("E319", offset=upload.offset, given=offset[:20] or "none")
        upload = _take(upload, int(offset), request.body)
    return HttpResponse(status=204, headers={OFFSET: str(upload.offset), LENGTH: str(upload.size)})


def _take(upload: Upload, offset: int, piece: bytes) -> Upload:
    """A piece. What cannot become a text is forgotten at once. Raises Problem E319, E302."""
    try:
        return resumable_upload.take_piece(upload=upload, offset=offset, piece=piece)
    except Problem as problem:
        if problem.fault.code == "E302":
            resumable_upload.forget_upload(upload)
        raise

"""Texts in pieces by tus 1.0.0: POST announces one, HEAD says how much the site has, PATCH adds to it.

After a dropped connection, a reload or a restart of the site an upload goes on at the offset that HEAD names.
"""

from collections.abc import Callable
from functools import wraps
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from peer_agent.protocol.errors import Fault, Problem, codes
from runs.datasets import uploads
from runs.datasets.uploads import upload_limit
from runs.models import Upload
from web.http import rate_limits, tus
from web.http.faults import answer
from web.http.requester import person_in

View = Callable[..., HttpResponse]


def for_programs(view: View) -> View:
    """Numbered errors as JSON, also for who is not logged in; the version of tus with every answer."""

    @wraps(view)
    def answered(request: HttpRequest, **details: UUID) -> HttpResponse:
        response = _answer(view, request, details)
        response[tus.RESUMABLE] = tus.VERSION
        if response.status_code == 412:
            response["Tus-Version"] = tus.VERSION
        return response

    return never_cache(answered)


def _answer(view: View, request: HttpRequest, details: dict[str, UUID]) -> HttpResponse:
    if not request.user.is_authenticated:
        return answer(request, Fault("401", _("Log in first.")), status=401)
    if request.method == "OPTIONS":
        return HttpResponse(status=204, headers=tus.capabilities(upload_limit()))
    try:
        tus.require_version(request)
        return view(request, **details)
    except rate_limits.TooOften as problem:
        return rate_limits.refusal(request, problem)
    except Problem as problem:
        return answer(request, problem.fault)


@require_http_methods(["OPTIONS", "POST"])
@for_programs
def begin(request: HttpRequest) -> HttpResponse:
    """Announce a text: its length in bytes, and its filename in the metadata."""
    size = tus.byte_count(request, tus.LENGTH)
    if size is None:
        raise Problem.of("E375", reason=f"{tus.LENGTH} is not a number of bytes")
    filename = tus.metadata(request).get("filename", "")
    rate_limits.spend("uploads in pieces", rate_limits.person(request))
    upload = uploads.begin_upload(person=person_in(request), filename=filename, size=size)
    return HttpResponse(status=201, headers={"Location": f"/uploads/{upload.pk}/"})


@require_http_methods(["OPTIONS", "HEAD", "PATCH", "DELETE"])
@for_programs
def go_on(request: HttpRequest, upload_id: UUID) -> HttpResponse:
    """How much is here; a piece more; or forget it."""
    upload = uploads.upload_of(person_in(request), upload_id)
    if request.method == "DELETE":
        uploads.forget_upload(upload)
        return HttpResponse(status=204)
    if request.method == "PATCH":
        upload = _take(upload, request)
    return HttpResponse(status=204, headers={tus.OFFSET: str(upload.offset), tus.LENGTH: str(upload.size)})


def _take(upload: Upload, request: HttpRequest) -> Upload:
    """A piece. What cannot become a text is forgotten at once. Raises Problem E369, E319, E302."""
    tus.require_piece(request)
    offset = tus.byte_count(request, tus.OFFSET)
    if offset is None:
        given = request.headers.get(tus.OFFSET, "")
        raise Problem.of("E319", offset=upload.offset, given=given[: tus.SHOWN] or "none")
    try:
        return uploads.take_piece(upload=upload, offset=offset, piece=request.body)
    except Problem as problem:
        if problem.fault.code == codes.NOT_UTF8:
            uploads.forget_upload(upload)
        raise

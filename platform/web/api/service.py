"""The API object and its routers. All errors have the form `{"code", "title", "severity", "text"}`."""

import logging
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError

from peer_agent.protocol.errors import Fault, Problem
from runs.access import Preparing
from runs.processes import disk_fault
from web.api import agents, files, public
from web.http.faults import answer, new_incident
from web.http.rate_limits import TooOften, refusal

logger = logging.getLogger(__name__)

api = NinjaAPI(
    title="Manyhands",
    version="1",
    description="Runs for programs. Times are UTC; lists are `{items, next}`, and `?cursor=` takes `next`.",
    docs_url=None,
    urls_namespace="api",
)
for part in (public, agents, files):
    api.add_router("", part.router)


@api.exception_handler(Problem)
def _problem(request: HttpRequest, problem: Any) -> HttpResponse:
    return answer(request, problem.fault)


@api.exception_handler(Preparing)
def _preparing(request: HttpRequest, problem: Any) -> HttpResponse:
    response = answer(request, problem.fault)
    response["Retry-After"] = str(problem.retry_after_s)
    return response


@api.exception_handler(TooOften)
def _too_often(request: HttpRequest, problem: Any) -> HttpResponse:
    return refusal(request, problem)


@api.exception_handler(ValidationError)
def _invalid(request: HttpRequest, error: Any) -> HttpResponse:
    reasons = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors)
    return answer(request, Fault.of("E206", reason=reasons), status=422)


@api.exception_handler(Http404)
def _nothing(request: HttpRequest, _: Any) -> HttpResponse:
    return answer(request, Fault("404", "There is nothing at this address."), status=404)


@api.exception_handler(PermissionDenied)
def _forbidden(request: HttpRequest, _: Any) -> HttpResponse:
    return answer(request, Fault("403", "You don't have access to this."), status=403)


@api.exception_handler(HttpError)
def _refused(request: HttpRequest, error: Any) -> HttpResponse:
    return answer(request, Fault(str(error.status_code), str(error)), status=error.status_code)


@api.exception_handler(Exception)
def _broken(request: HttpRequest, error: Any) -> HttpResponse:
    if fault := disk_fault(error):
        logger.error("%s %s", request.method, request.path, exc_info=error)
        return answer(request, fault)
    incident = new_incident(request, error)
    text = "The cause is in the site's log, under this number. What was committed is safe."
    return answer(request, Fault(f"500-{incident}", text), status=500)

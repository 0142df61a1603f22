"""Numbered errors as responses: each error's HTTP status, and the same text for people and programs."""

import logging
import secrets
import sys
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext_lazy

from peer_agent.protocol.errors import CATALOGUE, Fault
from web.words import in_words_of_page, title_of_page

logger = logging.getLogger(__name__)

STATUS = {
    "E101": 401,
    "E127": 403,
    "E201": 401,
    "E202": 401,
    "E203": 401,
    "E213": 403,
    "E214": 403,
    "E215": 401,
    "E216": 401,
    "E220": 428,
    "E221": 403,
    "E222": 410,
    "E223": 429,
    "E224": 404,
    "E225": 410,
    "E226": 410,
    "E227": 403,
    "E228": 403,
    "E229": 403,
    "E304": 413,
    "E305": 404,
    "E306": 409,
    "E308": 409,
    "E310": 409,
    "E311": 411,
    "E313": 404,
    "E315": 409,
    "E318": 404,
    "E319": 409,
    "E320": 409,
    "E321": 404,
    "E322": 404,
    "E323": 409,
    "E324": 403,
    "E326": 410,
    "E328": 507,
    "E333": 410,
    "E335": 401,
    "E336": 403,
    "E337": 409,
    "E338": 409,
    "E339": 409,
    "E340": 409,
    "E355": 403,
    "E356": 409,
    "E357": 409,
    "E358": 410,
    "E362": 413,
    "E363": 429,
    "E364": 409,
    "E365": 413,
    "E366": 409,
    "E367": 409,
    "E368": 412,
    "E369": 415,
    "E387": 409,
    "E410": 403,
    "E411": 409,
    "E412": 409,
    "E413": 409,
    "E445": 409,
    "E472": 503,
}
UNLISTED = 400
HEADLINES = {
    400: gettext_lazy("Invalid request"),
    401: gettext_lazy("You need to log in"),
    403: gettext_lazy("You don't have access to this page"),
    404: gettext_lazy("Page not found"),
    413: gettext_lazy("This is too large"),
    500: gettext_lazy("Something went wrong"),
}


def new_incident(request: HttpRequest, error: BaseException | None = None) -> str:
    """Log an error under a random number. Return the number, so that a reader can quote it to the operator."""
    incident = secrets.token_hex(4)
    logger.error("incident %s: %s %s", incident, request.method, request.path, exc_info=error or sys.exc_info()[1])
    return incident


def status_of(code: str) -> int:
    return STATUS.get(code, UNLISTED)


def title_of(fault: Fault, status: int) -> str:
    """Return the title of a numbered error or, if the error has no number, of the HTTP status."""
    return fault.title if fault.code in CATALOGUE else str(HEADLINES.get(status, HEADLINES[UNLISTED]))


def is_for_program(path: str) -> bool:
    """Return True if the client at this address expects JSON."""
    return path.startswith(("/api/", "/uploads/"))


def answer(request: HttpRequest, fault: Fault, *, status: int | None = None) -> HttpResponse:
    """Return the error as JSON for programs, or otherwise as a page."""
    status = status or status_of(fault.code)
    if is_for_program(request.path):
        said = {"code": fault.code, "title": title_of(fault, status), "severity": fault.severity, "text": fault.text}
        return JsonResponse(said, status=status)
    headline = title_of_page(title_of(fault, status))
    facts: dict[str, Any] = {
        "fault": in_words_of_page(fault),
        "status": status,
        "headline": headline,
        "is_numbered": fault.code in CATALOGUE or status >= 500,  # the operator can look up the number
    }
    if status >= 500:
        facts["user"] = AnonymousUser()  # reading the user requires the database, which may be broken
    return render(request, "web/fault.html", facts, status=status)

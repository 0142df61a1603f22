"""The views for errors: not found, not allowed, malformed, broken. They return pages, or JSON under /api/."""

import sys

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from peer_agent.protocol.errors import Fault
from runs.processes import disk_fault
from web.http.faults import answer, new_incident


def nothing_here(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer with 404, showing the numbered error if the exception carries one."""
    text = _("There is no page at this address. It may have been moved or deleted.")
    return answer(request, getattr(exception, "fault", None) or Fault("404", text), status=404)


def not_allowed(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer with 403, showing the reason if the exception carries one."""
    text = str(exception or "") or _("Your role in this run does not allow this. Nothing was changed.")
    return answer(request, Fault("403", text), status=403)


def not_understood(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer a malformed request with 400, or one that is too large with 413."""
    if isinstance(exception, RequestDataTooBig):
        return answer(request, Fault("413", _("The request is too large. Nothing was changed.")), status=413)
    return answer(request, Fault("400", _("The request was malformed. Nothing was changed.")), status=400)


def broken(request: HttpRequest) -> HttpResponse:
    """Answer with 500, or 507 if the disk is full. The cause goes to the site's log."""
    if fault := disk_fault(sys.exc_info()[1]):  # Django calls this while handling the error
        return answer(request, fault)
    incident = new_incident(request)
    text = "Your work is safe: committed steps are kept. Try again; if it happens again, send the operator this code."
    return answer(request, Fault(f"500-{incident}", text), status=500)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:  # noqa: ARG001
    """Answer with 403 because a form came from another site or was left open for too long."""
    text = "The form was too old or came from another site. Go back, reload the page and try again."
    return answer(request, Fault("403", text), status=403)

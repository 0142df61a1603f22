"""The run that an address names, as far as the one who asks may see it."""

from typing import Any

from django.http import Http404, HttpRequest

from peer_agent.protocol.errors import Fault, Problem
from runs.models import Run


def run_or_404(access: Any, request: HttpRequest, slug: str) -> Run:
    """The run that `access` gives; what the viewer may not see is not there. Raises Http404."""
    try:
        run: Run = access(slug=slug, viewer=request.user)
    except Problem as problem:
        raise missing(problem.fault) from problem
    return run


def missing(fault: Fault) -> Http404:
    """A 404 with its reason, which `web.http.error_responses` tells."""
    nothing = Http404()
    nothing.fault = fault  # type: ignore[attr-defined]
    return nothing

"""The run that an address names, as far as the one who asks may see it."""

from typing import Any

from django.http import Http404, HttpRequest

from peer_agent.protocol.errors import Problem
from runs.models import Run


def run_or_404(access: Any, request: HttpRequest, slug: str) -> Run:
    """The run that `access` gives; what the viewer may not see is not there. Raises Http404."""
    try:
        run: Run = access(slug=slug, viewer=request.user)
    except Problem as problem:
        nothing = Http404()
        nothing.fault = problem.fault  # type: ignore[attr-defined]  # read by web.http.error_responses
        raise nothing from problem
    return run

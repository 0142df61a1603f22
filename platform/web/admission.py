"""Whether a replica's snapshot is let in, decided from its headers before its body is read."""

from peer_agent.protocol.errors import Problem
from runs.models import Run
from runs.uploads import length_fault
from web.api.identity import credential_in, require_run

MOMENTS = 3  # parameters and two moments
ELEMENT_BYTES = 4
HEADER_BYTES = 1024 * 1024  # of a safetensors file with the layout in it, more than it ever takes


def admit_snapshot(*, slug: str, authorization: str | None, content_length: str | None, site: str) -> Run:
    """The run that the snapshot is of. Raises Problem E201, E202, E203, E101, E214, E305, E213, E311, E304."""
    credential = credential_in(authorization, site=site)
    run = run_of_peer(slug)
    require_run(credential, run)
    if fault := length_fault(content_length, limit=largest_snapshot(run)):
        raise Problem(fault)
    return run


def run_of_peer(slug: str) -> Run:
    """A run by its address alone: a credential already says that its holder may see it. Raises Problem E305."""
    run = Run.objects.select_related("dataset", "head", "organizer").filter(slug=slug).first()
    if run is None:
        raise Problem.of("E305", address=slug)
    return run


def largest_snapshot(run: Run) -> int:
    """Bytes that a snapshot of this run takes at most."""
    return run.elements * MOMENTS * ELEMENT_BYTES + HEADER_BYTES

"""Whether a replica's snapshot is let in, decided from its headers before its body is read."""

from django.db.models import Q

from accounts.selectors import working_machine
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import ANY_RUN
from runs.access import access_peer_run
from runs.models import Run
from runs.uploads import length_fault
from web.api.identity import credential_in, require_run

MOMENTS = 3  # parameters and two moments
ELEMENT_BYTES = 4
HEADER_BYTES = 1024 * 1024  # of a safetensors file with the layout in it, more than it ever takes


def admit_snapshot(*, slug: str, authorization: str | None, content_length: str | None, site: str) -> Run:
    """The run that the snapshot is of. Raises Problem E201, E202, E203, E101, E214, E305, E324, E213, E311, E304."""
    credential = credential_in(authorization, site=site)
    machine = working_machine(credential.machine, site=site)
    run = access_peer_run(Q(slug=slug), person=None if credential.run == ANY_RUN else machine.person, address=slug)
    require_run(credential, run)
    if fault := length_fault(content_length, limit=largest_snapshot(run)):
        raise Problem(fault)
    return run


def largest_snapshot(run: Run) -> int:
    """Bytes that a snapshot of this run takes at most."""
    return run.elements * MOMENTS * ELEMENT_BYTES + HEADER_BYTES

"""Whether a replica's snapshot is let in, decided from its headers before its body is read."""

from typing import NamedTuple

from django.db.models import Q

from accounts.models import Machine
from accounts.selectors import working_machine
from coordination.models import Election
from coordination.uploads import require_asked
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import ANY_RUN
from runs.access import access_peer_run
from runs.datasets.uploads import length_fault
from runs.snapshots.state_check import largest_snapshot
from web.api.identity import credential_in, require_run


class Admitted(NamedTuple):
    """Who may hand in what. `size`: as announced, in bytes."""

    machine: Machine
    election: Election
    size: int


def admit_snapshot(
    *, slug: str, step: int, authorization: str | None, content_length: str | None, site: str
) -> Admitted:
    """The machine, and what it was asked for.

    Raises Problem E201, E202, E203, E101, E214, E305, E324, E213, E311, E304, E355, E356.
    """
    credential = credential_in(authorization, site=site)
    machine = working_machine(credential.machine, site=site)
    run = access_peer_run(Q(slug=slug), person=None if credential.run == ANY_RUN else machine.person, address=slug)
    require_run(credential, run)
    if fault := length_fault(content_length, limit=largest_snapshot(run)):
        raise Problem(fault)
    size = int(content_length or 0)
    return Admitted(machine, require_asked(run=run, peer=credential.peer, step=step, size=size), size)

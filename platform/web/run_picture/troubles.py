"""What is wrong with a run now, for whoever manages it: numbered errors, the worst first. Pure."""

from collections.abc import Iterator, Sequence

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.errors.troubles import first_causes
from runs.models import Dataset, Publication, Release, Run, Verification
from web.run_picture.picture import Seen


def run_troubles(seen: Seen, verification: Verification | None, publication: Publication | None) -> Sequence[Fault]:
    """What is shown of it; what follows from something else that is shown is left out."""
    return first_causes(_all(seen, verification, publication))


def _all(seen: Seen, verification: Verification | None, publication: Publication | None) -> Iterator[Fault]:
    dataset, release = seen.run.dataset, seen.run.release
    if dataset.state == Dataset.State.FAILED and dataset.fault is not None:
        yield dataset.fault
    if _lacks_relay(seen):
        yield Fault.of("E409")
    if seen.run.run.state == Run.State.FINISHING and verification is not None and verification.fault:
        yield Fault.read(verification.fault)
    if release is not None and release.state == Release.State.FAILED and release.fault:
        yield Fault.read(release.fault)
    if publication is not None and publication.state != Publication.State.PUBLISHED and publication.fault:
        yield Fault.read(publication.fault)


def _lacks_relay(seen: Seen) -> bool:
    """Whether somebody drives the run, and neither a relay nor an auxiliary is connected to it."""
    is_driven = seen.run.run.state == Run.State.OPEN and bool(seen.phase)
    return is_driven and not any(peer.role in {Role.RELAY, Role.AUXILIARY} for peer in seen.peers)

"""What is wrong with a run now, for whoever manages it: numbered errors, the worst first. Pure."""

from collections.abc import Iterator, Sequence

from django.utils.translation import override
from msgspec.structs import replace

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.errors.troubles import first_causes
from runs.models import Dataset, Publication, Release, Run, Verification
from runs.releases.publishing import LONG
from runs.states import LIVE
from web.run_picture.alerts import Watch, run_alerts, since_words
from web.run_picture.picture import Seen


def run_troubles(
    seen: Seen, verification: Verification | None, publication: Publication | None, watch: Watch | None = None
) -> Sequence[Fault]:
    """What is shown of it; what follows from something else that is shown is left out."""
    with override("en"):  # numbered errors have no other language yet, and half of a sentence helps nobody
        return first_causes((*_all(seen, verification, publication), *run_alerts(seen, watch or Watch())))


def _all(seen: Seen, verification: Verification | None, publication: Publication | None) -> Iterator[Fault]:
    dataset, release = seen.run.dataset, seen.run.release
    if dataset.state != Dataset.State.READY and dataset.fault is not None:
        yield dataset.fault
    if _lacks_relay(seen):
        yield Fault.of("E409")
    if seen.run.run.state == Run.State.FINISHING and verification is not None and verification.fault:
        yield Fault.read(verification.fault)
    if release is not None and release.state == Release.State.FAILED and release.fault:
        yield Fault.read(release.fault)
    if publication is not None:
        yield from _unpublished(publication, seen)


def _unpublished(publication: Publication, seen: Seen) -> Iterator[Fault]:
    """Why nothing arrives at the Hub; after a while, since when."""
    is_there = publication.state == Publication.State.PUBLISHED
    fault = "" if is_there else publication.fault
    if seen.run.run.state in LIVE and publication.checkpoint_fault:
        fault = publication.checkpoint_fault
    since = publication.failing_since
    is_long = since is not None and seen.now - since >= LONG
    if fault and since is not None and is_long:
        yield Fault.of("E383", since=since_words(since), reason=Fault.read(fault).code)
    if fault:
        told = f"Since {since_words(since)}." if since is not None and not is_long else ""
        yield replace(Fault.read(fault), remedy=told)


def _lacks_relay(seen: Seen) -> bool:
    """Whether somebody drives the run, and neither a relay nor an auxiliary is connected to it."""
    is_driven = seen.run.run.state == Run.State.OPEN and bool(seen.phase)
    return is_driven and not any(peer.role in {Role.RELAY, Role.AUXILIARY} for peer in seen.peers)

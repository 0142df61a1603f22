"""Plans and commits as a trainer takes them: verified, decoded, and reduced to what concerns it. Made here alone."""

from msgspec import Struct

from peer_agent.protocol import letters
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.log.records import Contribution, RecordHead, Unit


class OpenedPlan(Struct, frozen=True, kw_only=True):
    """One attempt. `own` and `number`: our slot, None where we contribute nothing to it."""

    step: int
    fence: int
    attempt: int
    round: int
    number: int | None
    own: m.Slot | None
    plan: m.PlanHead


class OwnPart(Struct, frozen=True, kw_only=True):
    """What of ours is in an update: these units, averaged in these chunk ranges [first, stop)."""

    accumulator: AccumulatorId
    units: tuple[Unit, ...]
    included: tuple[tuple[int, int], ...]


class OpenedRecord(Struct, frozen=True, kw_only=True):
    """A committed entry. `own`: our part of it, None where there is none; `fence`: of the host that says it.

    `snapshot`: we hand in our state at this step; `hash_state`: we say its sha256.
    """

    index: int
    step: int
    fence: int
    own: OwnPart | None
    snapshot: bool
    hash_state: bool
    record: RecordHead
    contribution: Contribution | None  # what people are shown of our part
    digest: str


def opened_plan(plan: letters.OpenedPlan) -> OpenedPlan:
    """A plan whose signature and path hold."""
    return OpenedPlan(
        step=plan.head.step,
        fence=plan.head.fence,
        attempt=plan.head.attempt,
        round=plan.head.round,
        number=plan.number if plan.slot is not None else None,
        own=plan.slot,
        plan=plan.head,
    )


def opened_record(commit: letters.OpenedCommit, fence: int) -> OpenedRecord:
    """A commit whose signature and path hold."""
    return OpenedRecord(
        index=commit.head.index,
        step=commit.head.step,
        fence=fence,
        own=_own_part(commit.own),
        snapshot=commit.snapshot,
        hash_state=commit.hash_state,
        record=commit.head,
        contribution=commit.own,
        digest=commit.digest,
    )


def _own_part(own: Contribution | None) -> OwnPart | None:
    if own is None:
        return None
    included = tuple((part.first, part.stop) for part in own.included)
    return OwnPart(accumulator=own.accumulator, units=own.units, included=included)


def open_plan(planned: m.Planned, site_key: bytes, me: PeerId) -> OpenedPlan:
    """Raises Problem E218 where the site has not signed it, or a slot is not under its root.

    Who reduces for others is told of all slots: its own is one of them.
    """
    if planned.slots:
        return opened_plan(letters.own_part(letters.open_whole_plan(planned, site_key), me))
    return opened_plan(letters.open_plan(planned, site_key))


def open_commit(commit: m.Commit, site_key: bytes, me: PeerId) -> OpenedRecord:
    """Raises Problem E218 where the site has not signed it, or our part is not under its root."""
    return opened_record(letters.open_commit(commit, site_key, me), commit.fence)

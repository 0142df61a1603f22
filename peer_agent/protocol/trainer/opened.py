"""Verify plans and commits, and extract what concerns this trainer. Only this module opens these messages."""

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol import sealed
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.log.records import Contribution, RecordHead, Unit


class OpenedPlan(Struct, frozen=True, kw_only=True):
    """One attempt. `own` is this trainer's slot and `number` its position; without a slot, both are None."""

    step: int
    fence: int
    attempt: int
    round: int
    number: int | None
    own: m.Slot | None
    plan: m.PlanHead


class OwnPart(Struct, frozen=True, kw_only=True):
    """This trainer's part in an update: its units, and the chunk ranges [first, stop) that are averaged."""

    accumulator: AccumulatorId
    units: tuple[Unit, ...]
    included: tuple[tuple[int, int], ...]


class OpenedRecord(Struct, frozen=True, kw_only=True):
    """The parts of a committed entry that concern this trainer."""

    index: int
    step: int
    fence: int  # fence of the host that sent the commit
    own: OwnPart | None
    snapshot: bool  # True if this trainer must upload its state at this step
    hash_state: bool  # True if this trainer must report the sha256 of its state
    record: RecordHead
    contribution: Contribution | None  # this trainer's part, as shown to the user
    digest: str


def opened_plan(plan: sealed.OpenedPlan) -> OpenedPlan:
    return OpenedPlan(
        step=plan.head.step,
        fence=plan.head.fence,
        attempt=plan.head.attempt,
        round=plan.head.round,
        number=plan.number if plan.slot is not None else None,
        own=plan.slot,
        plan=plan.head,
    )


def opened_record(commit: sealed.OpenedCommit, fence: int) -> OpenedRecord:
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
    """Verify a plan with all its slots or only one. Raises Problem E218 for a bad signature or Merkle path."""
    if planned.slots:
        return opened_plan(sealed.own_part(sealed.open_whole_plan(planned, site_key), me))
    return opened_plan(sealed.open_plan(planned, site_key))


def open_commit(commit: m.Commit, site_key: bytes, me: PeerId) -> OpenedRecord:
    """Verify a commit. Raises Problem E218 for a bad signature or Merkle path."""
    return opened_record(sealed.open_commit(commit, site_key, me), commit.fence)

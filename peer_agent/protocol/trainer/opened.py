"""Verify plans and commits, and reduce them to what concerns this trainer. Only this module opens them."""

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol import sealed
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.log.records import Contribution, RecordHead, Unit


class OpenedPlan(Struct, frozen=True, kw_only=True):
    """One attempt. `own` and `number`: our slot; None if we contribute nothing."""

    step: int
    fence: int
    attempt: int
    round: int
    number: int | None
    own: m.Slot | None
    plan: m.PlanHead


class OwnPart(Struct, frozen=True, kw_only=True):
    """Our part of an update: these units, averaged in these chunk ranges [first, stop)."""

    accumulator: AccumulatorId
    units: tuple[Unit, ...]
    included: tuple[tuple[int, int], ...]


class OpenedRecord(Struct, frozen=True, kw_only=True):
    """A committed entry, as far as it concerns this trainer."""

    index: int
    step: int
    fence: int  # of the host that sent it
    own: OwnPart | None  # our part, if any
    snapshot: bool  # we upload our state at this step
    hash_state: bool  # we report the sha256 of our state
    record: RecordHead
    contribution: Contribution | None  # what people see of our part
    digest: str


def opened_plan(plan: sealed.OpenedPlan) -> OpenedPlan:
    """Convert a verified plan."""
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
    """Convert a verified commit."""
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
    """Open a plan, whole or with our slot. Raises Problem E218 if it is unsigned, or a slot is not under its root."""
    if planned.slots:
        return opened_plan(sealed.own_part(sealed.open_whole_plan(planned, site_key), me))
    return opened_plan(sealed.open_plan(planned, site_key))


def open_commit(commit: m.Commit, site_key: bytes, me: PeerId) -> OpenedRecord:
    """Open a commit. Raises Problem E218 if the site has not signed it, or our part is not under its root."""
    return opened_record(sealed.open_commit(commit, site_key, me), commit.fence)

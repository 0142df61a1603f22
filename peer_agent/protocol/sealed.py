"""Seal plans and commits, so that each peer gets only the part that it needs. Verify and open sealed ones."""

from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct, structs

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import PLAN, Signed, is_signed_by, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import is_under, path_of, tree_of
from peer_agent.protocol.log.records import (
    Contribution,
    Entry,
    Record,
    RecordHead,
    contributions_tree,
    digest_of,
    is_in,
    open_head,
    whole_of,
)

# --- plans -------------------------------------------------------------------------------------------------------


class OpenedPlan(Struct, frozen=True):
    """An attempt as a trainer sees it: the plan's head, and the trainer's own slot and its position, if it has one."""

    plan: m.PlanHead
    number: int | None = None
    own: m.Slot | None = None


class SealedPlan(Struct, frozen=True):
    """A signed plan, ready to be sent to each peer."""

    plan: m.Plan
    signed: Signed
    tree: list[list[bytes]]
    numbers: dict[PeerId, int]


def slots_tree(slots: tuple[m.Slot, ...]) -> list[list[bytes]]:
    """Return the Merkle tree over a plan's slots, whose root is in the plan's head."""
    return tree_of([msgspec.msgpack.encode(slot) for slot in slots])


def plan_of(*, slots: tuple[m.Slot, ...], **facts: Any) -> m.Plan:
    """Make a plan from its slots and other fields, computing the Merkle root over the slots."""
    root = slots_tree(slots)[-1][0]
    return m.Plan(slots=slots, contributors=len(slots), slots_root=root, **facts)


def head_of(plan: m.Plan) -> m.PlanHead:
    return m.PlanHead(**{name: getattr(plan, name) for name in m.PlanHead.__struct_fields__})


def seal_plan(site_key: Ed25519PrivateKey, plan: m.Plan) -> SealedPlan:
    signed = sign(site_key, PLAN, msgspec.msgpack.encode(head_of(plan)))
    return SealedPlan(plan, signed, slots_tree(plan.slots), {slot.peer: i for i, slot in enumerate(plan.slots)})


def planned_whole(sealed: SealedPlan) -> m.Planned:
    """Return the message with all of a plan's slots, for a reducer or log keeper."""
    return m.Planned(plan=sealed.signed, slots=sealed.plan.slots)


def planned_for(sealed: SealedPlan, peer: PeerId) -> m.Planned:
    """Return a plan's message for a trainer: the head, and the trainer's own slot if it has one."""
    number = sealed.numbers.get(peer, -1)
    if number < 0:
        return m.Planned(plan=sealed.signed)
    slot, path = sealed.plan.slots[number], path_of(sealed.tree, number)
    return m.Planned(plan=sealed.signed, number=number, slot=slot, path=path)


def open_plan(planned: m.Planned, site_public_key: bytes, peer: PeerId) -> OpenedPlan:
    """Verify a plan, which may have all its slots, one or none, and return the trainer's view.

    Raises Problem E218 if the signature or a slot does not match, or E206 if the signed head is malformed.
    """
    if planned.slots:
        return own_part(open_whole_plan(planned, site_public_key), peer)
    head = _open_head(planned, site_public_key)
    if planned.slot is None:
        return OpenedPlan(head)
    entry = msgspec.msgpack.encode(planned.slot)
    if not is_under(head.slots_root, entry, planned.number, head.contributors, planned.path):
        raise Problem.of("E218")
    return OpenedPlan(head, planned.number, planned.slot)


def open_whole_plan(planned: m.Planned, site_public_key: bytes) -> m.Plan:
    """Verify a plan's signature and root, and return the plan with all its slots.

    Raises Problem E218 if the signature or the slots do not match, or E206 if the signed head is malformed.
    """
    head = _open_head(planned, site_public_key)
    if len(planned.slots) != head.contributors or slots_tree(planned.slots)[-1][0] != head.slots_root:
        raise Problem.of("E218")
    return m.Plan(slots=planned.slots, **structs.asdict(head))


def own_part(plan: m.Plan, peer: PeerId) -> OpenedPlan:
    """Return the part of a whole plan that a trainer sees."""
    found = next(((i, slot) for i, slot in enumerate(plan.slots) if slot.peer == peer), (None, None))
    return OpenedPlan(plan, *found)


def _open_head(planned: m.Planned, site_public_key: bytes) -> m.PlanHead:
    if not is_signed_by(site_public_key, PLAN, planned.plan):
        raise Problem.of("E218")
    try:
        return msgspec.msgpack.decode(planned.plan.payload, type=m.PlanHead)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem.of("E206", reason=error) from error


# --- commits -----------------------------------------------------------------------------------------------------


class OpenedRecord(Struct, frozen=True):
    """A committed entry as a trainer sees it: its head and digest, and the trainer's own contribution, if any.

    `fence`: that of the host that sent the commit. `snapshot`: the trainer must upload its state at this step.
    `hash_state`: the trainer must report the sha256 of its state.
    """

    record: RecordHead
    digest: str
    fence: int
    own: Contribution | None = None
    snapshot: bool = False
    hash_state: bool = False

    @property
    def index(self) -> int:
        return self.record.index

    @property
    def step(self) -> int:
        return self.record.step


class SealedCommit:
    """One log entry, ready to be sent to each peer. The Merkle tree over its contributions is built on first use."""

    def __init__(self, entry: Entry, record: Record) -> None:
        self.entry, self.record = entry, record
        self._tree: list[list[bytes]] = []
        self._positions: dict[PeerId, int] = {}

    def whole(self, fence: int, *, snapshot: bool = False, hash_state: bool = False) -> m.Commit:
        """Return the commit message with all contributions, for a log keeper."""
        return m.Commit(
            run=self.record.run,
            fence=fence,
            record=self.entry.head,
            contributions=self.entry.contributions,
            snapshot=snapshot,
            hash_state=hash_state,
        )

    def to(self, peer: PeerId, fence: int, *, snapshot: bool = False, hash_state: bool = False) -> m.Commit:
        """Return the commit message for a trainer, with its own contribution and Merkle path."""
        if not self._tree:
            self._tree = contributions_tree(self.record.contributions)
            self._positions = {part.peer: i for i, part in enumerate(self.record.contributions)}
        commit = m.Commit(
            run=self.record.run, fence=fence, record=self.entry.head, snapshot=snapshot, hash_state=hash_state
        )
        position = self._positions.get(peer)
        if position is None:
            return commit
        own, path = self.record.contributions[position], path_of(self._tree, position)
        return structs.replace(commit, contribution=own, position=position, path=path)


def open_commit(commit: m.Commit, site_public_key: bytes, peer: PeerId) -> OpenedRecord:
    """Verify a commit's signature and Merkle path, and return the trainer's view.

    Raises Problem E218 if the signature or the contributions do not match.
    """
    head = open_head(commit.record, site_public_key)
    own = commit.contribution
    if commit.contributions:
        own = next((part for part in whole_of(head, commit.contributions).contributions if part.peer == peer), None)
    elif own is not None and not (own.peer == peer and is_in(head, own, commit.position, commit.path)):
        raise Problem.of("E218")
    return OpenedRecord(head, digest_of(commit.record), commit.fence, own, commit.snapshot, commit.hash_state)

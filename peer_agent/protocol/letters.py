"""Plans and commits between the site and its peers: what is sealed for whom, and how a receiver checks it.

The simulator makes the opened forms without signatures; everybody else gets them here and nowhere else.
"""

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
    """A plan as a contributor knows it: `slot` and its `number` are its own, None and -1 where it has none."""

    head: m.PlanHead
    number: int = -1
    slot: m.Slot | None = None


class SealedPlan(Struct, frozen=True):
    """A signed plan, ready to be said to each of its peers."""

    plan: m.Plan
    signed: Signed
    tree: list[list[bytes]]
    numbers: dict[PeerId, int]


def slots_tree(slots: tuple[m.Slot, ...]) -> list[list[bytes]]:
    """The Merkle tree over slots; its root is in the head."""
    return tree_of([msgspec.msgpack.encode(slot) for slot in slots])


def plan_of(*, slots: tuple[m.Slot, ...], **facts: Any) -> m.Plan:
    """A plan of its slots and facts, with the root over them."""
    root = slots_tree(slots)[-1][0]
    return m.Plan(slots=slots, contributors=len(slots), slots_root=root, **facts)


def head_of(plan: m.Plan) -> m.PlanHead:
    """What is signed of a plan."""
    return m.PlanHead(**{name: getattr(plan, name) for name in m.PlanHead.__struct_fields__})


def seal_plan(site_key: Ed25519PrivateKey, plan: m.Plan) -> SealedPlan:
    """Sign the head, once for everybody."""
    signed = sign(site_key, PLAN, msgspec.msgpack.encode(head_of(plan)))
    return SealedPlan(plan, signed, slots_tree(plan.slots), {slot.peer: i for i, slot in enumerate(plan.slots)})


def planned_whole(sealed: SealedPlan) -> m.Planned:
    """What a reducer or a keeper of the log is told."""
    return m.Planned(plan=sealed.signed, slots=sealed.plan.slots)


def planned_for(sealed: SealedPlan, peer: PeerId) -> m.Planned:
    """What a trainer is told: the head, and its own slot where it has one."""
    number = sealed.numbers.get(peer, -1)
    if number < 0:
        return m.Planned(plan=sealed.signed)
    slot, path = sealed.plan.slots[number], path_of(sealed.tree, number)
    return m.Planned(plan=sealed.signed, number=number, slot=slot, path=path)


def open_plan(planned: m.Planned, site_public_key: bytes) -> OpenedPlan:
    """A contributor's view, once signature and path hold. Raises Problem E218, E206."""
    head = _open_head(planned, site_public_key)
    if planned.slot is None:
        return OpenedPlan(head)
    entry = msgspec.msgpack.encode(planned.slot)
    if not is_under(head.slots_root, entry, planned.number, head.contributors, planned.path):
        raise Problem.of("E218")
    return OpenedPlan(head, planned.number, planned.slot)


def open_whole_plan(planned: m.Planned, site_public_key: bytes) -> m.Plan:
    """A reducer's view: all slots, once signature and root hold. Raises Problem E218, E206."""
    head = _open_head(planned, site_public_key)
    if len(planned.slots) != head.contributors or slots_tree(planned.slots)[-1][0] != head.slots_root:
        raise Problem.of("E218")
    return m.Plan(slots=planned.slots, **structs.asdict(head))


def own_part(plan: m.Plan, peer: PeerId) -> OpenedPlan:
    """A contributor's view of a whole plan."""
    number = next((i for i, slot in enumerate(plan.slots) if slot.peer == peer), -1)
    return OpenedPlan(plan, number, plan.slots[number] if number >= 0 else None)


def _open_head(planned: m.Planned, site_public_key: bytes) -> m.PlanHead:
    if not is_signed_by(site_public_key, PLAN, planned.plan):
        raise Problem.of("E218")
    try:
        return msgspec.msgpack.decode(planned.plan.payload, type=m.PlanHead)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem.of("E206", reason=error) from error


# --- commits -----------------------------------------------------------------------------------------------------


class OpenedCommit(Struct, frozen=True):
    """A commit as a replica knows it: the head, its digest, and its own contribution where it has one."""

    head: RecordHead
    digest: str
    own: Contribution | None = None
    snapshot: bool = False
    hash_state: bool = False


class CommitLetters:
    """One entry, ready to be said to each peer: the tree over its contributions is made once, when first needed."""

    def __init__(self, entry: Entry, record: Record) -> None:
        self.entry, self.record = entry, record
        self._tree: list[list[bytes]] = []
        self._positions: dict[PeerId, int] = {}

    def whole(self, fence: int, *, snapshot: bool = False, hash_state: bool = False) -> m.Commit:
        """For a keeper of the log."""
        return m.Commit(
            run=self.record.run,
            fence=fence,
            record=self.entry.head,
            contributions=self.entry.contributions,
            snapshot=snapshot,
            hash_state=hash_state,
        )

    def to(self, peer: PeerId, fence: int, *, snapshot: bool = False, hash_state: bool = False) -> m.Commit:
        """For a trainer: its own contribution and the path to it."""
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


def open_commit(commit: m.Commit, site_public_key: bytes, peer: PeerId) -> OpenedCommit:
    """A trainer's view, once signature and path hold. Raises Problem E218."""
    head = open_head(commit.record, site_public_key)
    own = commit.contribution
    if commit.contributions:
        own = next((part for part in whole_of(head, commit.contributions).contributions if part.peer == peer), None)
    elif own is not None and not (own.peer == peer and is_in(head, own, commit.position, commit.path)):
        raise Problem.of("E218")
    return OpenedCommit(head, digest_of(commit.record), own, commit.snapshot, commit.hash_state)


def open_whole_commit(commit: m.Commit, site_public_key: bytes) -> Record:
    """A log keeper's view: the whole record, once signature and root hold. Raises Problem E218."""
    return whole_of(open_head(commit.record, site_public_key), commit.contributions)

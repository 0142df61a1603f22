"""A trainer gets its own part of a plan or a commit, with proof. A reducer or log keeper gets everything."""

import pytest
from msgspec import structs

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import PLAN as PLAN_PURPOSE
from peer_agent.protocol.credentials import Signed, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Contribution, SpanEntry, Unit, digest_of, seal, whole
from peer_agent.protocol.sealed import (
    SealedCommit,
    open_commit,
    open_plan,
    open_whole_plan,
    plan_of,
    planned_for,
    planned_whole,
    seal_plan,
)
from peer_agent.protocol.wire import encode
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC, STRANGERS_KEY
from tests.protocol.log.entries import SAMPLE
from tests.protocol.strategies import sample

PEERS = [PeerId(f"{number:032x}") for number in range(5)]
STRANGER = PeerId("f" * 32)
SLOTS = tuple(structs.replace(sample(m.Slot), peer=peer, root=bytes([n]) * 32) for n, peer in enumerate(PEERS))
FACTS = {
    name: getattr(sample(m.PlanHead), name)
    for name in m.PlanHead.__struct_fields__
    if name not in ("contributors", "slots_root")
}
PLAN = plan_of(slots=SLOTS, **FACTS)
PARTS = tuple(structs.replace(sample(Contribution), peer=peer, slot=n, samples=n) for n, peer in enumerate(PEERS))
MADE = {"version", "contributors", "contributions_root", "contributions"}
RECORD = whole(
    contributions=PARTS, **{name: getattr(SAMPLE, name) for name in SAMPLE.__struct_fields__ if name not in MADE}
)
ENTRY = seal(SITE_KEY, RECORD)


def test_everybody_learns_its_own_slot() -> None:
    sealed = seal_plan(SITE_KEY, PLAN)
    for number, peer in enumerate(PEERS):
        for planned in (planned_for(sealed, peer), planned_whole(sealed)):
            opened = open_plan(planned, SITE_PUBLIC, peer)
            assert (opened.number, opened.own) == (number, SLOTS[number])
            assert all(getattr(opened.plan, name) == value for name, value in FACTS.items())
    for planned in (planned_for(sealed, STRANGER), planned_whole(sealed)):
        opened = open_plan(planned, SITE_PUBLIC, STRANGER)
        assert (opened.number, opened.own) == (None, None)
    assert open_whole_plan(planned_whole(sealed), SITE_PUBLIC) == PLAN


@pytest.mark.parametrize(
    "change",
    [
        {"number": 2},
        {"slot": SLOTS[2]},
        {"path": ()},
        {"slot": structs.replace(SLOTS[1], scale=0.5)},
        {"plan": seal_plan(STRANGERS_KEY, PLAN).signed},
    ],
)
def test_another_slot_or_place_or_signer_is_refused(change: dict[str, object]) -> None:
    planned = planned_for(seal_plan(SITE_KEY, PLAN), PEERS[1])
    with pytest.raises(Problem, match="E218"):
        open_plan(structs.replace(planned, **change), SITE_PUBLIC, PEERS[1])


@pytest.mark.parametrize("slots", [(), SLOTS[:-1], (*SLOTS[:-1], structs.replace(SLOTS[-1], scale=0.5))])
def test_a_reducer_takes_no_other_slots(slots: tuple[m.Slot, ...]) -> None:
    planned = structs.replace(planned_whole(seal_plan(SITE_KEY, PLAN)), slots=slots)
    with pytest.raises(Problem, match="E218"):
        open_whole_plan(planned, SITE_PUBLIC)
    if slots:
        with pytest.raises(Problem, match="E218"):
            open_plan(planned, SITE_PUBLIC, PEERS[0])


def test_everybody_learns_its_own_contribution() -> None:
    sealed = SealedCommit(ENTRY, RECORD)
    for number, peer in enumerate(PEERS):
        for commit in (sealed.to(peer, 7, hash_state=True), sealed.whole(7, hash_state=True)):
            opened = open_commit(commit, SITE_PUBLIC, peer)
            assert (opened.own, opened.fence, opened.digest) == (PARTS[number], 7, digest_of(ENTRY))
            assert (opened.index, opened.step) == (RECORD.index, RECORD.step)
            assert (opened.snapshot, opened.hash_state) == (False, True)
    assert open_commit(sealed.to(STRANGER, 1, snapshot=True), SITE_PUBLIC, STRANGER).snapshot
    assert open_commit(sealed.whole(1), SITE_PUBLIC, STRANGER).own is None


@pytest.mark.parametrize("change", [{"position": 2}, {"contribution": PARTS[2]}, {"path": ()}])
def test_another_contribution_is_refused(change: dict[str, object]) -> None:
    commit = SealedCommit(ENTRY, RECORD).to(PEERS[1], 1)
    with pytest.raises(Problem, match="E218"):
        open_commit(structs.replace(commit, **change), SITE_PUBLIC, PEERS[1])


def test_what_the_site_has_not_signed_is_not_opened() -> None:
    with pytest.raises(Problem, match="E218"):
        open_plan(m.Planned(plan=Signed(b"{}", bytes(64))), SITE_PUBLIC, PEERS[0])
    with pytest.raises(Problem, match="E206"):
        open_plan(m.Planned(plan=sign(SITE_KEY, PLAN_PURPOSE, b"nonsense")), SITE_PUBLIC, PEERS[0])
    with pytest.raises(Problem, match="E218"):
        open_commit(SealedCommit(seal(STRANGERS_KEY, RECORD), RECORD).to(PEERS[0], 1), SITE_PUBLIC, PEERS[0])
    forged = structs.replace(SealedCommit(ENTRY, RECORD).whole(1), contributions=b"[]")
    with pytest.raises(Problem, match="E218"):
        open_commit(forged, SITE_PUBLIC, PEERS[0])


MEMBERS, SPANS, UNITS = 1000, 64, 8
MOST_BYTES = 20_000_000  # bytes of plan and commit sent to all trainers in a step


def test_what_a_thousand_trainers_are_told_of_a_step_is_bounded() -> None:
    """Each trainer gets a head of 64 spans, its own slot or contribution, and ten hashes, but no other peer's slot."""
    peers = [PeerId(f"{number:032x}") for number in range(MEMBERS)]
    units = tuple(Unit(3, 2, 1000 * number, 1000 * number + 4) for number in range(UNITS))
    slots = tuple(structs.replace(SLOTS[0], peer=peer, weights=(m.Weight(0, 2048, 4000),)) for peer in peers)
    held = [m.PlannedSpan(span=n, first=32 * n, stop=32 * n + 32, reducer=PEERS[0], attempt=1) for n in range(SPANS)]
    plan = plan_of(slots=slots, **FACTS | {"spans": tuple(held)})
    averaged = structs.replace(sample(SpanEntry), reducer=PEERS[0], root="f" * 64, sum_squares=0.123456789)
    entries = tuple(structs.replace(averaged, span=span.span, first=span.first, stop=span.stop) for span in held)
    parts = tuple(structs.replace(PARTS[0], peer=peer, slot=n, units=units) for n, peer in enumerate(peers))
    made = {name: getattr(SAMPLE, name) for name in SAMPLE.__struct_fields__ if name not in MADE}
    record = whole(contributions=parts, **made | {"spans": entries})
    sealed, commit = seal_plan(SITE_KEY, plan), SealedCommit(seal(SITE_KEY, record), record)
    told = sum(len(encode(planned_for(sealed, peer))) + len(encode(commit.to(peer, 1))) for peer in peers)
    print(f"{told / 1e6:.1f} MB")
    assert told <= MOST_BYTES

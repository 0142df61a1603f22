"""Which offers the coordinator accepts, and how long it waits for them."""

from dataclasses import dataclass
from typing import Any

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.decisions import Kind
from peer_agent.protocol.coordinator.round.offers import offer_s
from peer_agent.protocol.coordinator.state import NO_ACCUMULATOR, Phase
from peer_agent.protocol.timing import LONGEST_S, ROUND_TRIP_S
from tests.protocol.coordinator.scenes import NAMES, partly, reducing
from tests.protocol.coordinator.stage import RUN, TOKENS, UNIT, Stage, Trainer, notes, sent


@dataclass
class Swarm:
    stage: Stage
    trainers: list[Trainer]


@pytest.fixture
def swarm() -> Swarm:
    stage = Stage(batch=40)
    stage.relay()
    return Swarm(stage, [stage.trainer(name) for name in ("ann", "bob", "cem", "dan", "eva")])


def one_round(swarm: Swarm, delays: dict[str, float]) -> None:
    """Run a step in which each trainer offers after its own delay, by default one second."""
    stage = swarm.stage
    stage.accumulate(*swarm.trainers)
    begun = stage.now
    for trainer in sorted(swarm.trainers, key=lambda trainer: delays.get(trainer.name, 1.0)):
        at = begun + delays.get(trainer.name, 1.0)
        while stage.now < at and stage.state.phase is Phase.OFFER:
            stage.wait(0.25)
        stage.offers(trainer)
    stage.close()
    if stage.state.phase is Phase.REDUCE:
        stage.reduce()
        stage.persist()


def test_the_wait_follows_how_long_offers_take(swarm: Swarm) -> None:
    assert offer_s(swarm.stage.state) == ROUND_TRIP_S
    for _ in range(5):
        one_round(swarm, {"eva": 1.5})
    assert 1.0 <= offer_s(swarm.stage.state) < 2.5
    swarm.stage.state.timings.offers.clear()
    swarm.stage.state.timings.offers.extend([40.0, 50.0, 45.0, 80.0])
    assert offer_s(swarm.stage.state) == LONGEST_S


def test_the_wait_is_no_shorter_than_a_part_of_accumulating(swarm: Swarm) -> None:
    swarm.stage.state.timings.offers.extend([0.1] * 20)
    assert offer_s(swarm.stage.state) == 1.0
    swarm.stage.state.timings.batches.extend([100.0] * 3)
    assert offer_s(swarm.stage.state) == 15.0


def test_a_late_offer_counts_as_the_wait_that_it_missed(swarm: Swarm) -> None:
    """If late offers were not recorded, the wait could only get shorter."""
    one_round(swarm, {"eva": 60.0})
    assert max(swarm.stage.state.timings.offers) == ROUND_TRIP_S
    assert len(swarm.stage.state.timings.offers) == 5


def test_wait_doubles_while_rounds_lack_offers(swarm: Swarm) -> None:
    stage = swarm.stage
    for number in range(3):
        stage.accumulate(*swarm.trainers)
        assert stage.round.deadline - stage.round.cut_at == ROUND_TRIP_S * 2**number
        stage.close()
    assert notes(stage.said).count("void") == 3
    stage.commit(*swarm.trainers)
    assert stage.state.timings.failures[Kind.OFFER] == 0


@pytest.mark.parametrize(("culprits", "kept"), [(2, 0), (4, 1)])
def test_who_takes_back_what_it_reported_lets_the_round_down(swarm: Swarm, culprits: int, kept: int) -> None:
    """A trainer that returns units it has reported sits out, even if it offers the rest. Because it did answer, the
    next wait is no longer.
    """
    stage, fickle, honest = swarm.stage, swarm.trainers[:culprits], swarm.trainers[culprits:]
    stage.accumulate(*swarm.trainers)
    for trainer in fickle:
        back = tuple(trainer.done)[kept:]
        stage.offer(trainer)
        stage.say(trainer.peer, m.UnitsReturned(run=RUN, units=back, reason="leaving"))
        trainer.done = {unit: base for unit, base in trainer.done.items() if unit not in back}
    stage.offers(*fickle, *honest)
    stage.close()
    assert notes(stage.said).count("void") == 1
    assert all(stage.state.in_quarantine(stage.member(trainer).reliability) for trainer in fickle)
    assert not any(stage.state.in_quarantine(stage.member(trainer).reliability) for trainer in honest)
    assert stage.state.timings.failures[Kind.OFFER] == 0


def test_who_has_nothing_to_offer_is_not_waited_for(swarm: Swarm) -> None:
    stage, (*four, idle) = swarm.stage, swarm.trainers
    stage.accumulate(*four)
    assert idle.peer in stage.round.persons
    stage.offers(*four)
    assert stage.state.phase is Phase.REDUCE
    assert not stage.member(idle).reliability.probation


def test_past_worker_is_awaited_though_it_has_reported_nothing(swarm: Swarm) -> None:
    """Unreported work that missed this round would make the next update inexact."""
    stage, (*four, quick) = swarm.stage, swarm.trainers
    stage.commit(*swarm.trainers)
    stage.accumulate(*four)
    assert not stage.member(quick).done
    stage.offers(*four)
    assert stage.state.phase is Phase.OFFER
    stage.compute(quick)  # done before the cut, but not reported
    stage.offer(quick)
    assert len(stage.round.slots) == 5


def test_a_lost_cut_or_offer_is_said_again_at_half_the_wait(swarm: Swarm) -> None:
    stage, (*four, deaf) = swarm.stage, swarm.trainers
    stage.accumulate(*swarm.trainers)
    stage.offers(*four)
    again = stage.wait(ROUND_TRIP_S / 2 + 0.5)
    assert len(sent(again, m.Cut)) == len(sent(again, m.Cut, deaf.peer)) == 1
    stage.offer(deaf)
    assert stage.state.phase is Phase.REDUCE
    assert len(stage.round.slots) == 5


def test_an_offer_that_arrives_twice_is_taken_once(swarm: Swarm) -> None:
    stage, trainers = swarm.stage, swarm.trainers
    stage.accumulate(*trainers)
    assert stage.offer(trainers[0]) == stage.offer(trainers[0], norm=2.0) == []
    assert [offer.norm for offer in stage.round.offers.values()] == [1.0]
    stage.offers(*trainers[1:])
    assert stage.offer(trainers[0]) == []
    assert len(stage.round.slots) == 5


def test_missing_seventh_is_averaged_without_but_half_is_void(swarm: Swarm) -> None:
    stage, trainers = swarm.stage, swarm.trainers
    stage.accumulate(*trainers)
    stage.offers(*trainers[:4])
    stage.close()
    assert stage.state.phase is Phase.REDUCE
    stage.reduce()
    stage.persist()
    stage.accumulate(*trainers)
    stage.offers(*trainers[:2])
    stage.close()
    assert "void" in notes(stage.said)
    assert stage.state.step == 1


@pytest.mark.parametrize("more", [1, TOKENS, None])
def test_offer_above_its_lease_or_implausibly_small_is_refused(swarm: Swarm, more: int | None) -> None:
    """Credit is per sample. Claiming that a hundred samples have one token would earn credit without work."""
    stage, liar = swarm.stage, swarm.trainers[0]
    stage.accumulate(*swarm.trainers)
    units = stage.state.members[liar.peer].done
    fewest = sum(stage.state.recipe.loss_units_in(unit.samples)[0] for unit in units)
    tokens = liar.samples * TOKENS + more if more is not None else fewest - 1
    said: dict[str, Any] = {"loss_tokens": tokens, "weights": (m.Weight(0, stage.state.grid.chunks, tokens),)}
    answer = stage.offer(liar, **said)
    assert [notice.code for notice in sent(answer, m.Notice)] == ["E219"]  # type: ignore[attr-defined]
    assert sent(answer, m.AccumulatorRevoked, liar.peer)


def test_nobody_carries_more_than_was_left_out() -> None:
    stage, trainers, _ = reducing()
    weight = trainers[0].samples * TOKENS
    partly(stage, 0)
    stage.persist()
    stage.accumulate()
    tokens = trainers[0].samples * TOKENS
    weights = (m.Weight(0, 8, tokens + weight + 1),)
    answer = stage.offer(trainers[0], weights=weights, loss_tokens=tokens)
    assert [notice.code for notice in sent(answer, m.Notice)] == ["E219"]  # type: ignore[attr-defined]


HELD = 2 * UNIT * TOKENS  # tokens that each trainer has


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"loss_tokens": 10**6}, "E219"),
        ({"loss_tokens": 1}, "E219"),
        ({"weights": ()}, "E219"),
        ({"weights": (m.Weight(0, 7, HELD),)}, "E219"),
        ({"weights": (m.Weight(0, 8, 10**6),)}, "E219"),
        ({"weights": (m.Weight(0, 4, HELD), m.Weight(5, 8, HELD))}, "E219"),
        ({"weights": (m.Weight(0, 4, HELD), m.Weight(4, 8, -1))}, "E219"),
        ({"accumulator": "f" * 32}, "E219"),
        ({"norm": float("nan")}, "E206"),
        ({"norm": float("inf")}, "E206"),
        ({"norm": -1.0}, "E206"),
        ({"loss_sum": float("inf")}, "E206"),
    ],
)
def test_offer_that_claims_too_much_is_refused_with_its_code(swarm: Swarm, said: dict[str, Any], code: str) -> None:
    stage, (liar, *others) = swarm.stage, swarm.trainers
    stage.accumulate(*swarm.trainers)
    assert liar.samples * TOKENS == HELD
    answer = stage.offer(liar, **said)
    assert [notice.code for notice in sent(answer, m.Notice)] == [code]  # type: ignore[attr-defined]
    assert liar.peer not in stage.round.offers
    stage.offers(*others)
    assert stage.state.phase is Phase.REDUCE, "the round goes on"


@pytest.mark.parametrize(
    ("which", "code"), [("others", "E219"), ("twice", "E219"), ("old", "E206"), ("future", "E206")]
)
def test_units_of_others_twice_or_of_another_time_are_refused(swarm: Swarm, which: str, code: str) -> None:
    stage, (liar, other, *_) = swarm.stage, swarm.trainers
    stage.accumulate(*swarm.trainers)
    own = tuple(m.DoneUnit(unit, 0) for unit in liar.done)
    units = {
        "others": tuple(m.DoneUnit(unit, 0) for unit in other.done),
        "twice": own + own,
        "old": tuple(m.DoneUnit(done.unit, -2) for done in own),
        "future": tuple(m.DoneUnit(done.unit, 1) for done in own),
    }[which]
    tokens = sum(done.unit.samples for done in units) * TOKENS
    answer = stage.offer(liar, units=units, loss_tokens=tokens, weights=(m.Weight(0, 8, tokens),))
    assert [notice.code for notice in sent(answer, m.Notice)] == [code]  # type: ignore[attr-defined]


def test_an_offer_of_a_revoked_accumulator_is_passed_over(swarm: Swarm) -> None:
    """The owner already knows of the revocation. Its agent would refuse a second one, which would have an empty
    name."""
    stage, (late, *_) = swarm.stage, swarm.trainers
    stage.accumulate(*swarm.trainers)
    stage.member(late).accumulator = NO_ACCUMULATOR
    assert stage.offer(late) == []
    assert late.peer not in stage.round.offers
    assert late.peer not in stage.round.waiting


# --- trainers that were too slow before


@pytest.mark.parametrize(
    ("is_slow", "carried", "people", "is_in"),
    [
        (True, 5, 4, False),  # 9 of 29 samples are missing, but 70 percent are required
        (False, 5, 4, True),
        (True, 4, 4, True),  # 8 of 28 samples are missing: the others are enough
        (True, 5, 2, True),  # the other trainer cannot fill the batch alone
    ],
)
def test_slow_sender_may_not_hold_what_others_cannot_do_without(
    is_slow: bool, carried: int, people: int, is_in: bool
) -> None:
    """A regression: a trainer whose uplink fell to a tenth of its rate carried unsent work over, delaying each round
    by 20 s.
    """
    stage = Stage(batch=6 * people)
    stage.relay()
    *others, slow = [stage.trainer(name) for name in NAMES[:people]]
    stage.accumulate()
    samples = [trainer.samples for trainer in (*others, slow)]
    stage.member(slow).carried = slow.carried = carried * TOKENS
    stage.member(slow).reliability.was_late = is_slow
    *_, said = [stage.offer(trainer) for trainer in (*others, slow)]
    assert (slow.peer in {slot.peer for slot in stage.round.slots}) is is_in, samples
    assert ("returned" in notes(said)) is not is_in
    assert is_in or not stage.member(slow).reliability.was_late, "with what it does next it has its chance"

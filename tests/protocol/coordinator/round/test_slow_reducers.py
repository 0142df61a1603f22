"""A reducer whose uplink is too slow, or that stops as a whole, costs a round a part of its time and no more."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol import deadlines
from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.learning import MOST_FALL
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.coordinator.round.measuring import FRAME_BYTES
from peer_agent.protocol.coordinator.round.uplinks import UNSENT, UNSENT_S
from peer_agent.protocol.coordinator.round.watching import HEARD_S
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import Codec
from tests.protocol.coordinator.scenes import capacities_of, reducing
from tests.protocol.coordinator.stage import ELEMENTS, Stage, notes, peer_of, sent
from tests.protocol.coordinator.test_reach import listening, reaches

CHUNKS_EACH, SLOTS = 4, 4
FP16: Codec = "fp16"


@pytest.fixture(autouse=True)
def chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks go out one at a time, and a plan's time is that of its bytes alone: round figures."""
    monkeypatch.setattr(deadlines, "BATCH_BYTES", 1)
    monkeypatch.setattr(planning, "START_S", 0.0)
    monkeypatch.setattr(planning, "FRAMING", 1.0)


def say(stage: Stage, reducer: PeerId, received: int, waiting: int) -> None:
    here = tuple((slot, received) for slot in range(SLOTS))
    stage.say(reducer, m.Progress(**stage.place(), received=here, waiting=waiting))


def two_relays(duration_s: float) -> tuple[Stage, list[PeerId]]:
    """Each has four chunks; one of them is waited for 0.15 of that time, as usual."""
    bps = int(SLOTS * ELEMENTS / duration_s)
    stage, _, relays = reducing({}, {}, people=SLOTS, bps=[bps, bps])
    assert stage.round.plan is not None
    assert stage.round.plan.duration_s == pytest.approx(duration_s, rel=0.01)
    if stage.round.plan.sigma:
        stage.round.plan = replace(stage.round.plan, sigma=0.15)
    return stage, relays


# --- its averages wait for its uplink


@pytest.mark.parametrize(("first", "second", "attempt"), [(0, 1, 2), (0, 0, 1), (1, 2, 1), (2, 2, 1)])
def test_what_a_reducer_cannot_give_out_in_time_is_averaged_by_another(first: int, second: int, attempt: int) -> None:
    """At a tenth of its uplink the round took twice its time; where all are behind it is the plan that is wrong."""
    stage, relays = two_relays(8.0)
    assert max(UNSENT_S, UNSENT * 0.15 * 8.0) < 2.0, "less than a chunk takes by plan"
    stage.wait(1)
    say(stage, relays[0], 2, first)
    say(stage, relays[1], 2, second)
    stage.wait(0.5)
    assert stage.round.attempt == attempt
    assert ({span.reducer for span in stage.spans()} == {relays[0]}) is (attempt == 2)
    assert "void" not in notes(stage.said)


def test_what_its_uplink_carries_is_known_from_the_next_plan_on() -> None:
    """Of an attempt that ends so nobody tells what came, and when."""
    stage, relays = two_relays(8.0)
    plan = stage.round.plan
    assert plan is not None
    before = stage.state.capacities[relays[1], "up"].bps
    stage.wait(4)
    say(stage, relays[0], 3, 0)
    say(stage, relays[1], 3, 2)
    chunk = encoded_size(FP16, plan.chunk_elements) + FRAME_BYTES
    stage.wait(0.5)
    assert stage.round.attempt == 2
    known = stage.state.capacities[relays[1], "up"]
    assert not known.is_floor
    receivers = SLOTS + 1  # all trainers, and the other keeper of the log
    assert known.bps == pytest.approx(receivers * chunk / 4), "of the four seconds until it told"
    assert before / MOST_FALL < known.bps < before


def test_a_reducer_of_which_nothing_was_seen_is_not_taken_for_dead() -> None:
    """A plan would count on weeks for its gradient."""
    stage, relays = two_relays(8.0)
    before = stage.state.capacities[relays[1], "up"].bps
    stage.wait(1)
    say(stage, relays[0], 2, 0)
    say(stage, relays[1], 2, 2)
    stage.wait(0.5)
    assert stage.state.capacities[relays[1], "up"].bps == before / MOST_FALL


@pytest.mark.parametrize(("averaged", "attempt"), [(2, 2), (3, 2), (4, 1)])
def test_one_that_is_nearly_done_goes_on(averaged: int, attempt: int) -> None:
    """What is left of it takes less than the others would need to begin anew."""
    stage, relays = two_relays(8.0)
    say(stage, relays[0], 2, 0)
    say(stage, relays[1], averaged, 2)
    stage.wait(0.5)
    assert stage.round.attempt == attempt


def test_without_deadlines_nobody_knows_what_is_too_slow() -> None:
    stage, relays = two_relays(1.9)
    say(stage, relays[0], 2, 0)
    say(stage, relays[1], 3, 3)
    stage.wait(0.5)
    assert stage.round.attempt == 1


def test_what_waits_is_counted_anew_in_each_attempt() -> None:
    stage, relays = two_relays(8.0)
    stage.wait(1)
    say(stage, relays[0], 2, 0)
    say(stage, relays[1], 2, 2)
    stage.wait(0.5)
    say(stage, relays[0], 2, 2)
    stage.wait(0.5)
    assert stage.round.attempt == 2
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT


@pytest.mark.parametrize(("silent_s", "attempt"), [(0.0, 2), (2.5, 1)])
def test_who_says_nothing_is_no_witness_that_another_is_slow(silent_s: float, attempt: int) -> None:
    """One that is gone, and has not been missed yet, would be dealt all of it."""
    stage, relays = two_relays(8.0)
    stage.wait(1)
    say(stage, relays[0], 2, 0)
    for _ in range(int(2 * silent_s)):
        stage.wait(0.5)
        say(stage, relays[1], 2, 0)
    say(stage, relays[1], 2, 2)
    stage.wait(1.0)
    assert stage.round.attempt == attempt


def test_a_reducer_that_has_not_told_yet_is_none_either() -> None:
    stage, relays = two_relays(8.0)
    stage.wait(1)
    say(stage, relays[1], 2, 2)
    stage.wait(0.5)
    assert stage.round.attempt == 1


def test_no_attempt_is_begun_for_which_too_few_are_left() -> None:
    """Who has sent everything and gone is not needed, but in another attempt."""
    bps = int(SLOTS * ELEMENTS / 8.0)
    stage, trainers, relays = reducing({}, {}, people=3, bps=[bps, bps])
    assert stage.round.plan is not None
    stage.round.plan = replace(stage.round.plan, sigma=0.15)
    for relay in relays:
        stage.say(relay, m.Progress(**stage.place(), received=((0, 1), (1, 1), (2, 4))))
    stage.handle(e.Lost(trainers[2].peer))
    assert not stage.round.dropped
    stage.say(relays[0], m.Progress(**stage.place(), received=((0, 2), (1, 2), (2, 4))))
    stage.say(relays[1], m.Progress(**stage.place(), received=((0, 1), (1, 1), (2, 4)), waiting=1))
    stage.wait(0.5)
    assert stage.round.attempt == 1
    assert "void" not in notes(stage.said)


@pytest.mark.parametrize(("gone", "dropped"), [(set(), {0}), ({3}, {3})])
def test_its_own_gradient_is_carried_over_where_the_others_are_enough(gone: set[int], dropped: set[int]) -> None:
    """Its uplink is needed for the averages that are done; by its own word it is too slow, and nobody is blamed."""
    stage, relay, ann, slot = beside_a_trainer()
    assert stage.round.plan is not None
    assert slot == 0
    stage.round.plan = replace(stage.round.plan, sigma=0.15)
    stage.round.dropped |= gone
    stage.wait(1)
    say(stage, relay, 2, 0)
    say(stage, ann, 2, 2)
    stage.wait(0.5)
    assert stage.round.attempt == 2
    assert stage.round.dropped == dropped
    assert stage.state.members[ann].conduct.misses == 0
    assert "void" not in notes(stage.said)


# --- it stops as a whole


def beside_a_trainer() -> tuple[Stage, PeerId, PeerId, int]:
    """A relay and a trainer that reduce a half each; with the trainer's slot."""
    stage = Stage(batch=8 * SLOTS)
    relay = stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "bob", "cem", "dan")]
    ann = trainers[0]
    listening(stage, ann)
    for peer in (relay, *(trainer.peer for trainer in trainers[1:])):
        reaches(stage, peer, ann.peer)
    bps = SLOTS * ELEMENTS / 4.0
    stage.state.capacities = capacities_of((peer, bps) for peer in (relay, *(each.peer for each in trainers)))
    stage.accumulate()
    stage.offers(*trainers)
    assert {span.reducer for span in stage.spans()} == {relay, ann.peer}
    slot = next(number for number, entry in enumerate(stage.round.slots) if entry.peer == ann.peer)
    return stage, relay, ann.peer, slot


def goes_on(stage: Stage, relay: PeerId, stopped: int, *, still: int, seconds: float) -> None:
    """At the relay a chunk of each comes every second, of the stopped slot no more than `still`."""
    begun = stage.now
    while stage.now < begun + seconds and stage.round.attempt == 1:
        stage.wait(0.5)
        come = int(stage.now - begun)
        received = tuple((slot, min(come, still) if slot == stopped else come) for slot in range(SLOTS))
        stage.say(relay, m.Progress(**stage.place(), received=received))


def test_a_reducer_that_stops_is_not_waited_for_as_a_sender_either() -> None:
    """Else its gradient is waited for once more in the attempt without it: a sixth of the round."""
    stage, relay, ann, slot = beside_a_trainer()
    goes_on(stage, relay, slot, still=1, seconds=HEARD_S + 2.0)
    assert stage.round.attempt == 2
    assert {span.reducer for span in stage.spans()} == {relay}
    assert stage.round.dropped == {slot}
    assert sent(stage.said, m.Drop, relay)
    assert ann == peer_of("ann")
    assert "void" not in notes(stage.said)


def test_one_whose_gradient_still_comes_is_waited_for() -> None:
    stage, relay, _, slot = beside_a_trainer()
    goes_on(stage, relay, slot, still=100, seconds=HEARD_S + 2.0)
    assert stage.round.attempt == 2
    assert stage.round.dropped == set()


def test_one_that_stops_is_waited_for_where_the_others_are_too_few() -> None:
    stage, relay, _, slot = beside_a_trainer()
    stage.round.dropped.add(3)
    goes_on(stage, relay, slot, still=1, seconds=HEARD_S + 2.0)
    assert stage.round.attempt == 2
    assert stage.round.dropped == {3}
    assert "void" not in notes(stage.said)

"""A reducer whose uplink is too slow, or that stops as a whole, costs a round a part of its time and no more."""

import itertools
from collections.abc import Collection

import pytest
from msgspec.structs import replace

from peer_agent.protocol import deadlines
from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.learning import MOST_FALL
from peer_agent.protocol.codec_sizes import encoded_size
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
    """Each has half of the chunks; the first attempt waits for one half of that time."""
    bps = int(SLOTS * ELEMENTS / duration_s)
    stage, _, relays = reducing({}, {}, people=SLOTS, bps=[bps, bps])
    assert stage.round.plan is not None
    assert stage.round.plan.duration_s == pytest.approx(duration_s, rel=0.01)
    return stage, relays


# --- its averages wait for its uplink


@pytest.mark.parametrize(("first", "second", "attempt"), [(0, 4, 2), (0, 3, 1), (2, 4, 1), (4, 4, 1)])
def test_what_a_reducer_cannot_give_out_in_time_is_averaged_by_another(first: int, second: int, attempt: int) -> None:
    """At a tenth of its uplink the round took twice its time; where all are behind it is the plan that is wrong."""
    stage, relays = two_relays(8.0)
    assert max(UNSENT_S, UNSENT * 4.0) == 6.0, "of eight seconds: three of the four chunks"
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
    stage.round.plan = replace(plan, sigma=0.4)
    stage.wait(4)
    say(stage, relays[0], 3, 0)
    say(stage, relays[1], 4, 3)
    began, chunk = stage.round.planned_at, encoded_size(FP16, plan.chunk_elements) + FRAME_BYTES
    stage.wait(0.5)
    assert stage.round.attempt == 2
    known = stage.state.capacities[relays[1], "up"]
    assert not known.is_floor
    receivers = SLOTS + 1  # all trainers, and the other keeper of the log
    assert known.bps == pytest.approx(receivers * chunk / (stage.round.planned_at - began))
    assert before / MOST_FALL < known.bps < before


def test_a_reducer_of_which_nothing_was_seen_is_not_taken_for_dead() -> None:
    """A plan would count on weeks for its gradient."""
    stage, relays = two_relays(8.0)
    before = stage.state.capacities[relays[1], "up"].bps
    stage.wait(1)
    say(stage, relays[0], 2, 0)
    say(stage, relays[1], 4, 4)
    stage.wait(0.5)
    assert stage.state.capacities[relays[1], "up"].bps == before / MOST_FALL


@pytest.mark.parametrize(("done", "attempt"), [(1, 2), (3, 1)])
def test_one_that_is_nearly_done_goes_on(done: int, attempt: int) -> None:
    """What is left of it takes less than the others would need to begin anew."""
    stage, relays = two_relays(8.0)
    assert stage.round.plan is not None
    first, second = sorted(stage.spans(), key=lambda span: span.reducer != relays[0])
    cut = second.first + done
    parts = (replace(second, stop=cut), replace(second, span=9, first=cut))
    stage.round.plan = replace(stage.round.plan, spans=(first, *parts))
    stage.span_done(parts[0])
    say(stage, relays[0], 2, 0)
    say(stage, relays[1], 4, 4)
    stage.wait(0.5)
    assert stage.round.attempt == attempt


def test_without_deadlines_nobody_knows_what_is_too_slow() -> None:
    stage, relays = two_relays(1.9)
    say(stage, relays[0], 2, 0)
    say(stage, relays[1], 2, 4)
    stage.wait(0.5)
    assert stage.round.attempt == 1


def test_what_waits_is_counted_anew_in_each_attempt() -> None:
    stage, relays = two_relays(8.0)
    stage.wait(1)
    say(stage, relays[0], 2, 0)
    say(stage, relays[1], 2, 4)
    stage.wait(0.5)
    say(stage, relays[0], 2, 8)
    stage.wait(0.5)
    assert stage.round.attempt == 2
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT


# --- its own gradient is the last everywhere


def as_measured(*, at_itself: list[int], first: list[int], third: list[int], dropped: Collection[int] = ()) -> Stage:
    """Three of a measured round's reducers tell, after 3.35 of 8.5 seconds; the second one's uplink fell to a tenth."""
    stage, relay, ann, slot = beside_a_trainer(seconds=8.5)
    other = stage.relay("other")
    plan = stage.round.plan
    assert plan is not None
    counts = {relay: 277, ann: 277} | ({other: 57} if third else {})
    edges = list(itertools.accumulate(counts.values(), initial=0))
    spans = tuple(
        m.PlannedSpan(span=number, first=edges[number], stop=edges[number + 1], reducer=peer, attempt=1)
        for number, peer in enumerate(counts)
    )
    stage.round.plan = replace(plan, spans=spans, sigma=0.15, duration_s=8.5)
    stage.round.dropped.update(dropped)
    stage.wait(3.35)
    assert slot == 0, "the first of each of these"
    told = {relay: first, ann: at_itself, other: third}
    for peer, received in ((peer, received) for peer, received in told.items() if received):
        stage.say(peer, m.Progress(**stage.place(), received=tuple(enumerate(received))))
    stage.wait(0.1)
    return stage


MEASURED = {"first": [57, 129, 66, 66], "at_itself": [105, 85, 85, 78], "third": [18, 24, 24, 24]}


@pytest.mark.parametrize(
    ("change", "attempt"),
    [
        ({}, 2),
        ({"third": [25, 24, 24, 24]}, 1),
        ({"third": []}, 1),
        ({"at_itself": [105, 60, 60, 60]}, 1),
        ({"first": [80, 129, 82, 82]}, 1),
    ],
    ids=["as measured", "not the last at one", "a single witness", "all are behind", "nearly in time"],
)
def test_a_reducer_that_sends_far_too_slowly_gives_out_its_averages_so_too(
    change: dict[str, list[int]], attempt: int
) -> None:
    """By its deadlines it was late after seven seconds only, as the others were held back to where it was."""
    stage = as_measured(**(MEASURED | change))
    assert stage.round.attempt == attempt
    assert stage.round.dropped == ({0} if attempt == 2 else set()), "its averages need its uplink"
    assert stage.state.members[peer_of("ann")].conduct.misses == 0, "all that it has is in the next round"


def test_whom_the_others_cannot_do_without_is_waited_for_however_slow_it_is() -> None:
    stage = as_measured(**MEASURED, dropped={3})
    assert stage.round.attempt == 2
    assert stage.round.dropped == {3}
    assert "void" not in notes(stage.said)


# --- it stops as a whole


def beside_a_trainer(seconds: float = 4.0) -> tuple[Stage, PeerId, PeerId, int]:
    """A relay and a trainer that reduce a half each; with the trainer's slot."""
    stage = Stage(batch=8 * SLOTS)
    relay = stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "bob", "cem", "dan")]
    ann = trainers[0]
    listening(stage, ann)
    for peer in (relay, *(trainer.peer for trainer in trainers[1:])):
        reaches(stage, peer, ann.peer)
    bps = SLOTS * ELEMENTS / seconds
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

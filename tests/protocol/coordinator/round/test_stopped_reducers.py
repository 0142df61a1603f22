"""A reducer that stops completely delays a round by only a fraction of the round's duration."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol import timing
from peer_agent.protocol.coordinator.awaited import HEARD_S
from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.identifiers import PeerId
from tests.protocol.coordinator.scenes import capacities_of
from tests.protocol.coordinator.stage import ELEMENTS, RUN, Stage, notes, peer_of, sent
from tests.protocol.coordinator.test_reach import listening, reaches

CHUNKS_EACH, SLOTS = 4, 4


@pytest.fixture(autouse=True)
def chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send chunks one at a time, and leave overheads out of the planned time, to keep the figures round."""
    monkeypatch.setattr(timing, "BATCH_BYTES", 1)
    monkeypatch.setattr(planning, "START_S", 0.0)
    monkeypatch.setattr(planning, "FRAMING", 1.0)


def beside_a_trainer() -> tuple[Stage, PeerId, PeerId, int]:
    """Return a round in which a relay and a trainer reduce one half each, along with the trainer's slot."""
    stage = Stage(batch=8 * SLOTS)
    relay = stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "bob", "cem", "dan")]
    ann = trainers[0]
    listening(stage, ann)
    for peer in (relay, *(trainer.peer for trainer in trainers[1:])):
        reaches(stage, peer, ann.peer)
    bps = SLOTS * ELEMENTS / 4.0
    stage.state.links.capacities = capacities_of((peer, bps) for peer in (relay, *(each.peer for each in trainers)))
    stage.accumulate()
    stage.offers(*trainers)
    assert {span.reducer for span in stage.spans()} == {relay, ann.peer}
    slot = next(number for number, entry in enumerate(stage.round.slots) if entry.peer == ann.peer)
    return stage, relay, ann.peer, slot


def goes_on(stage: Stage, relay: PeerId, stopped: int, *, still: int, seconds: float) -> None:
    """Let the relay report another chunk of each slot every second, but no more than `still` chunks of the stopped
    slot.
    """
    begun = stage.now
    while stage.now < begun + seconds and stage.round.attempt == 1:
        stage.wait(0.5)
        come = int(stage.now - begun)
        received = tuple((slot, min(come, still) if slot == stopped else come) for slot in range(SLOTS))
        stage.say(relay, m.Progress(**stage.place(), received=received))


@pytest.mark.parametrize("still", [1, 2])
def test_stopped_reducer_is_not_awaited_as_a_sender_either(still: int) -> None:
    """If the attempt without the reducer also waited for its gradient, that would cost a third of the round.

    `still`: chunks that arrive after the process has stopped, because they were in its sockets.
    """
    stage, relay, ann, slot = beside_a_trainer()
    goes_on(stage, relay, slot, still=still, seconds=HEARD_S + 2.0)
    assert stage.round.attempt == 2
    assert {span.reducer for span in stage.spans()} == {relay}
    assert stage.round.dropped == {slot}
    assert sent(stage.said, m.Drop, relay)
    assert ann == peer_of("ann")
    assert "void" not in notes(stage.said)


def test_one_of_which_nothing_ever_came_has_stopped_too() -> None:
    stage, relay, _, slot = beside_a_trainer()
    stage.wait(1.5)
    goes_on(stage, relay, slot, still=0, seconds=HEARD_S + 2.0)
    assert stage.round.attempt == 2
    assert stage.round.dropped == {slot}


def test_machine_of_which_nothing_is_heard_is_not_awaited_though_its_sockets_still_deliver() -> None:
    stage, relay, ann, slot = beside_a_trainer()
    begun = stage.now
    while stage.round.attempt == 1 and stage.now < begun + HEARD_S + 2.0:
        stage.wait(0.5, alive=False)
        come = int(stage.now - begun)
        for peer in (relay, *(each.peer for each in stage.trainers.values() if each.peer != ann)):
            stage.say(peer, m.Heartbeat(run=RUN, index=0))
        stage.say(relay, m.Progress(**stage.place(), received=tuple((each, come) for each in range(SLOTS))))
    assert stage.round.attempt == 2
    assert stage.round.dropped == {slot}


def test_one_whose_gradient_still_comes_is_waited_for() -> None:
    """It sends heartbeats, so its process has not stopped."""
    stage, relay, _, slot = beside_a_trainer()
    goes_on(stage, relay, slot, still=100, seconds=HEARD_S + 2.0)
    assert stage.round.attempt == 2
    assert stage.round.dropped == set()


def test_stopped_reducer_is_awaited_if_the_others_are_too_few() -> None:
    stage, relay, _, slot = beside_a_trainer()
    stage.round.dropped.add(3)
    goes_on(stage, relay, slot, still=1, seconds=HEARD_S + 2.0)
    assert stage.round.attempt == 2
    assert stage.round.dropped == {3}
    assert "void" not in notes(stage.said)

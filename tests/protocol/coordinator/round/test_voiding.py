"""A round that ends without an update: every peer learns of it, and no work is lost."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.voiding import ask_for_hello, is_current
from peer_agent.protocol.coordinator.state import Phase
from tests.protocol.coordinator.scenes import pair, reducing
from tests.protocol.coordinator.stage import RUN, Stage, Trainer, notes, peer_of, sent


def voids(commands: list[e.Command]) -> list[m.Void]:
    return [message for message in sent(commands, m.Void) if isinstance(message, m.Void)]


def till_void(stage: Stage) -> list[e.Command]:
    """Wait, without progress, until the round is void. Return the messages sent at that moment."""
    said: list[e.Command] = []
    while stage.state.phase is Phase.REDUCE:
        said = stage.wait(0.25)
    return said


def without_a_next() -> tuple[Stage, list[Trainer]]:
    """Return a paused run whose round has become void, so that no further round begins."""
    stage, trainers, _ = reducing()
    stage.handle(e.Directed("paused"))
    till_void(stage)
    assert stage.state.round is None
    return stage, trainers


def test_a_void_round_is_told_to_everybody_and_counted() -> None:
    stage, (gone, *others), (relay,) = reducing(people=3)
    place = stage.place()
    answer = stage.handle(e.Lost(gone.peer))
    (void,) = voids(answer)
    assert void == m.Void(**place, round=1, reason=void.reason)
    assert "too few machines were left" in void.reason
    assert all(sent(answer, m.Void, peer) for peer in (relay, *(trainer.peer for trainer in others)))
    assert "void" in notes(answer)
    assert [command.cause for command in answer if isinstance(command, e.Note) and command.cause] == ["too_few"]
    assert (stage.state.phase, stage.state.round, stage.state.void_rounds) == (Phase.ACCUMULATE, None, 1)


@pytest.mark.parametrize("offered", [True, False])
def test_nobody_is_told_of_a_void_without_its_trainers(offered: bool) -> None:
    """An owner who pauses the only machine reads that it left; no other machine lost work."""
    if offered:
        stage, (only,), _ = reducing(people=1)
    else:
        stage = Stage(batch=8)
        stage.relay()
        only = stage.trainer("ann")
        stage.accumulate()
    answer = stage.say(only.peer, m.Leave(run=RUN)) + stage.tick()
    assert (stage.state.phase, stage.state.void_rounds, voids(answer) != []) == (Phase.ACCUMULATE, 1, True)
    assert notes(answer) == ["left"]


def test_a_void_names_the_last_attempt_that_the_peers_know() -> None:
    stage, _, (relay,) = reducing()
    stage.handle(e.Lost(relay))
    assert stage.round.attempt == 2, "without a relay it has no plan"
    assert [void.attempt for void in voids(till_void(stage))] == [1]
    stage, _, relays = reducing({}, {})
    stage.handle(e.Lost(relays[0]))
    assert [void.attempt for void in voids(till_void(stage))] == [2]


def test_leases_that_ended_in_the_round_come_back_with_it() -> None:
    stage, (banned, *_), _ = reducing(people=3)
    stage.handle(e.Lost(banned.peer, banned=True))
    assert stage.state.void_rounds == 1
    assert stage.state.leases.outstanding(banned.accumulator) == 0
    assert set(banned.done) <= set(stage.state.leases.returned)


@pytest.mark.parametrize("change", [{"run": "bb" * 16}, {"step": 1}, {"fence": 2}, {"attempt": 2}, {}])
def test_a_message_belongs_to_the_attempt_that_it_names_in_full(change: dict[str, object]) -> None:
    stage, *_ = reducing()
    message = m.Progress(**{**stage.place(), **change}, received=())
    assert is_current(stage.state, message) == (not change)


def test_without_a_round_no_message_belongs_to_one() -> None:
    stage, _ = without_a_next()
    (void,) = voids(stage.said)
    assert not is_current(stage.state, void)


def test_when_a_member_was_asked_for_a_hello_is_remembered() -> None:
    stage, ann, _ = pair()
    assert ask_for_hello(stage.state, ann.peer) == e.Send((ann.peer,), m.Rehello(run=RUN, fence=1))
    assert stage.member(ann).hello_asked_at == stage.state.now
    stranger = peer_of("eve")
    assert ask_for_hello(stage.state, stranger) == e.Send((stranger,), m.Rehello(run=RUN, fence=1))

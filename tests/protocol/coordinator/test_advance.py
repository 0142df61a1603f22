"""Dispatch of events to the parts of the coordinator, and actions triggered by the clock alone."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S
from peer_agent.protocol.coordinator.workers.batch import usual_s
from peer_agent.protocol.identifiers import PeerId
from peer_agent.recipes import parse_recipe
from tests.protocol.coordinator.scenes import pair, reducing
from tests.protocol.coordinator.stage import RUN, Stage, peer_of, sent


def test_a_message_of_somebody_who_is_no_member_is_answered() -> None:
    stage, *_ = pair()
    stranger = peer_of("eve")
    answer = stage.say(stranger, m.Heartbeat(run=RUN, index=0))
    assert sent(answer, m.Rehello, stranger) == [m.Rehello(run=RUN, fence=1)]


def test_whom_the_organizer_trusts_may_change() -> None:
    stage = Stage(trusted=frozenset({"ann"}))
    assert stage.state.trusted == frozenset({"ann"})
    stage.handle(e.Directed("running", trusted=frozenset({"ann", "bob"})))
    assert stage.state.trusted == frozenset({"ann", "bob"})
    stage.handle(e.Directed("running"))
    assert stage.state.trusted is None


def test_a_pause_is_not_what_a_batch_usually_takes() -> None:
    """A pause counted as computing time would raise the median, and then nothing would count as late."""
    stage = Stage(batch=16)
    stage.relay()
    stage.trainer("ann")
    stage.commit()
    stage.handle(e.Directed("paused"))
    stage.wait(3600)
    stage.handle(e.Directed("running"))
    stage.commit()
    assert usual_s(stage.state) < 60


@pytest.mark.parametrize("banned", [False, True])
def test_a_ban_ends_leases_at_once_and_a_lost_session_does_not(banned: bool) -> None:
    stage, _, bob = pair()
    stage.wait(2)
    assert stage.state.leases.outstanding(bob.accumulator)
    stage.handle(e.Lost(bob.peer, banned=banned))
    assert (stage.state.leases.outstanding(bob.accumulator) == 0) == banned


def test_a_goodbye_ends_leases_at_once() -> None:
    stage, _, bob = pair()
    stage.wait(2)
    stage.say(bob.peer, m.Leave(run=RUN))
    assert bob.peer not in stage.state.members
    assert stage.state.leases.outstanding(bob.accumulator) == 0


def test_part_of_a_reducer_with_a_new_session_is_replanned() -> None:
    """The session may belong to a new process, or earlier reports may have been lost."""
    stage, _, (relay,) = reducing()
    stage.relay("another")
    assert stage.round.attempt == 1, "a newcomer has no part"
    stage.relay("relay0")
    assert stage.round.attempt == 2
    assert relay in {span.reducer for span in stage.spans()}


def test_a_reducer_that_is_done_may_come_back_as_it_likes() -> None:
    stage, _, relays = reducing({}, {})
    for span in stage.spans():
        if span.reducer == relays[0]:
            stage.span_done(span)
    stage.relay("relay0")
    assert stage.round.attempt == 1


# --- the organizer's instructions


def test_more_steps_stand_in_the_recipe_and_in_its_bytes() -> None:
    stage, *_ = pair()
    stage.handle(e.Directed("running", target_steps=77))
    assert stage.state.recipe.target_steps == 77
    assert parse_recipe(stage.state.recipe_bytes) == stage.state.recipe
    stage.handle(e.Directed("running"))
    assert stage.state.recipe.target_steps == 77, "nothing is said of steps"


def test_that_it_ends_early_is_told_once() -> None:
    stage, ann, bob = pair()
    told = sent(stage.handle(e.Directed("finishing")), m.State, ann.peer)
    assert [message.state for message in told if isinstance(message, m.State)] == ["finishing"]
    assert sent(stage.handle(e.Directed("finishing")), m.State, bob.peer) == []


# --- the clock


def test_the_first_step_is_timed_from_the_first_event() -> None:
    stage = Stage()
    stage.now = 1_000_000.0
    stage.relay()
    stage.trainer("ann")
    stage.commit()
    (written,) = [command for command in stage.said if isinstance(command, e.Persist)]
    assert 0 < written.duration_s < 100


def test_ticks_act_four_times_a_second_however_many_come() -> None:
    stage, *_ = pair()
    stage.wait(TICK_S)
    stage.state.is_dirty = True
    assert stage.tick() == []
    assert stage.state.is_dirty
    stage.wait(TICK_S)
    assert not stage.state.is_dirty


def but(stage: Stage, gone: PeerId) -> None:
    """Let a second pass in which every member except `gone` sends a heartbeat."""
    for member in list(stage.state.members.values()):
        if member.peer != gone:
            stage.say(member.peer, m.Heartbeat(run=RUN, index=stage.index_of(member)))
    stage.wait(1, alive=False)


@pytest.mark.parametrize("kind", ["trainer", "relay"])
def test_thirty_seconds_without_a_word_are_an_eviction(kind: str) -> None:
    stage, ann, bob = pair()
    stage.relay("other")
    gone: PeerId = bob.peer if kind == "trainer" else peer_of("other")
    held = stage.state.leases.outstanding(bob.accumulator)
    for _ in range(29):
        but(stage, gone)
    assert gone in stage.state.members
    for _ in range(3):
        but(stage, gone)
    assert gone not in stage.state.members
    assert gone not in stage.state.listening
    assert ann.peer in stage.state.members
    assert stage.state.leases.outstanding(bob.accumulator) == held, "its leases have their grace"


def test_a_host_that_slept_evicts_nobody() -> None:
    stage, ann, bob = pair()
    stage.now += 3600
    stage.tick()
    stage.wait(2)
    assert {ann.peer, bob.peer} <= set(stage.state.members)

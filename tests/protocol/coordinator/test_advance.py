"""Which part takes which event, and what the clock alone does."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.work.conduct import usual_s
from peer_agent.protocol.identifiers import PeerId
from tests.protocol.coordinator.scenes import pair
from tests.protocol.coordinator.stage import RUN, Stage, peer_of, sent


def test_a_message_of_somebody_who_is_no_member_is_answered() -> None:
    stage, *_ = pair()
    stranger = peer_of("eve")
    answer = stage.say(stranger, m.Heartbeat(run=RUN, index=0))
    assert sent(answer, m.Rehello, stranger) == [m.Rehello(run=RUN, fence=1)]


def test_a_pause_is_not_what_a_batch_usually_takes() -> None:
    """Or nothing would be late any more for as long as the median remembers it."""
    stage = Stage(batch=16)
    stage.relay()
    stage.trainer("ann")
    stage.commit()
    stage.take(e.Directed("paused"))
    stage.wait(9 * 3600)
    stage.take(e.Directed("running"))
    stage.commit()
    assert usual_s(stage.state) < 60


@pytest.mark.parametrize("banned", [False, True])
def test_a_ban_ends_leases_at_once_and_a_lost_session_does_not(banned: bool) -> None:
    stage, _, bob = pair()
    stage.wait(2)
    assert stage.state.leases.outstanding(bob.accumulator)
    stage.take(e.Lost(bob.peer, banned=banned))
    assert (stage.state.leases.outstanding(bob.accumulator) == 0) == banned


# --- the clock


def but(stage: Stage, gone: PeerId) -> None:
    """A second in which all say that they are there, but one."""
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

"""Who comes says what it holds, and keeps what is its own; who goes leaves it for a while."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from tests.protocol.coordinator.scenes import come_back, left_out, pair, restarted
from tests.protocol.coordinator.stage import Stage, Trainer, peer_of, sent


def test_everybody_is_told_who_can_be_dialled() -> None:
    stage = Stage()
    ann = stage.trainer("ann")
    stage.relay()
    listeners = sent(stage.said, m.Listeners, ann.peer)[-1]
    assert listeners.listeners == (  # type: ignore[attr-defined]
        m.Listener(peer_of("relay"), "ws://relay", "", reduces=True, keeps_log=True),
    )
    stage.take(e.Lost(peer_of("relay")))
    assert sent(stage.said, m.Listeners, ann.peer)[-1].listeners == ()  # type: ignore[attr-defined]


def test_a_hello_that_crossed_a_lease_does_not_end_it() -> None:
    """Else its units would be computed by two, and who came second be refused."""
    stage, _, bob = pair()
    stage.wait(2)
    units, bob.undone = list(bob.undone), []
    stage.member(bob).granted, stage.member(bob).granted_at = tuple(units), stage.state.now
    stage.hello(bob)
    assert stage.state.leases.holds(bob.accumulator, units)
    assert not set(bob.undone) & set(units), "they are not leased once more"
    stage.member(bob).granted_at = stage.state.now - 6
    bob.undone = []
    stage.lose.add((bob.peer, m.Lease))
    before = stage.state.leases.outstanding(bob.accumulator)
    assert before
    stage.state.goal = "paused"
    stage.hello(bob)
    assert stage.state.leases.outstanding(bob.accumulator) == 0, "later, what it does not hold comes back"


def test_carried_work_is_believed_up_to_what_the_records_allow() -> None:
    stage, trainers, weight = left_out(0)
    after = restarted(stage)
    come_back(after, trainers[0], carried=10**9)
    come_back(after, trainers[1], carried=10**9)
    assert after.member(trainers[0]).carried == weight
    assert after.member(trainers[1]).carried == 0, "all of its work is in the update"
    stranger = Trainer("eve", "eve")
    come_back(after, stranger, carried=10**9, step=1, index=1)
    assert after.member(stranger).carried == 0


def test_a_lost_session_keeps_what_is_carried() -> None:
    stage, trainers, weight = left_out(0)
    stage.take(e.Lost(trainers[0].peer))
    stage.hello(trainers[0])
    assert stage.member(trainers[0]).carried == weight


def test_a_late_holder_still_has_its_units_within_the_grace() -> None:
    stage, trainers, _ = left_out(0)
    stage.wait(2)
    late = trainers[3]
    assert late.undone
    after = restarted(stage)
    for trainer in trainers[:3]:
        come_back(after, trainer)
    after.commit(*trainers[:3])
    late.step, late.index = after.state.step, after.state.index
    come_back(after, late)
    assert after.state.leases.holds(late.accumulator, late.undone)
    assert sent(after.said, m.AccumulatorRevoked, late.peer) == []

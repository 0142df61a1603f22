"""A joining peer reports its units, and keeps those that the coordinator still considers its own. Leases outlast a
peer's departure for a while.
"""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.relay.state import NOBODY
from tests.protocol.coordinator.scenes import come_back, left_out, pair, progress, reducing, restarted
from tests.protocol.coordinator.stage import RUN, Stage, Trainer, notes, peer_of, sent


def test_everybody_is_told_who_can_be_dialled() -> None:
    stage = Stage()
    ann = stage.trainer("ann")
    stage.relay()
    listeners = sent(stage.said, m.Listeners, ann.peer)[-1]
    assert listeners.listeners == (  # type: ignore[attr-defined]
        m.Listener(peer_of("relay"), "ws://relay", "", reduces=True, keeps_log=True),
    )
    assert sent(stage.wait(1) + stage.hello(ann), m.Listeners) == [], "nothing has changed"
    stage.handle(e.Lost(peer_of("relay")))
    assert sent(stage.said, m.Listeners, ann.peer)[-1].listeners == ()  # type: ignore[attr-defined]


def test_a_hello_that_crossed_a_lease_does_not_end_it() -> None:
    """If the lease ended, two machines would compute its units, and the second result would be refused."""
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
    stage.handle(e.Lost(trainers[0].peer))
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


# --- hello


def test_a_hello_that_is_said_twice_changes_nothing() -> None:
    stage, _, bob = pair()
    stage.wait(2)
    stage.compute(bob)
    book, member = stage.state.leases, stage.member(bob)
    before = set(book.held[bob.accumulator]), dict(member.done), member.done_samples, dict(stage.state.holders)
    for _ in range(2):
        answer = stage.hello(bob)
        assert sent(answer, m.Greeting, bob.peer)
        assert "joined" not in notes(answer)
        after = set(book.held[bob.accumulator]), dict(member.done), member.done_samples, dict(stage.state.holders)
        assert after == before


def test_hello_from_another_step_is_judged_at_the_head() -> None:
    """Updates that the peer has not heard of may contain units of its own."""
    stage, _, bob = pair()
    for step, is_judged in ((0, False), (1, True)):
        bob.step = step
        (greeting,) = sent(stage.hello(bob), m.Greeting, bob.peer)
        assert isinstance(greeting, m.Greeting)
        assert greeting.reconciled == is_judged
        assert stage.member(bob).reconciled == is_judged


def test_a_peer_that_was_away_is_told_which_attempts_are_over() -> None:
    stage, (ann, *_), (relay, _) = reducing({}, {})
    stage.handle(e.Lost(relay))
    attempts = ((0, 1, 1), (0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 1, 3))
    in_doubt = tuple(m.InDoubt(*attempt) for attempt in attempts)
    hello = m.Hello(run=RUN, accumulator=ann.accumulator, step=0, log_index=0, in_doubt=in_doubt)

    def over() -> list[int]:
        return [void.attempt for void in sent(stage.say(ann.peer, hello), m.Void) if isinstance(void, m.Void)]

    assert over() == [3], "two are of the open round, and two of another host or step"
    while stage.state.phase is Phase.REDUCE:
        stage.wait(1)
    assert over() == [1, 2, 3]


# --- accumulators


def test_peer_that_names_anothers_accumulator_gets_nothing_of_it() -> None:
    """Public records name accumulators, so another peer can copy a name."""
    stage, _, bob = pair()
    stage.wait(2)
    held = set(stage.state.leases.held[bob.accumulator])
    eve = Trainer("eve", "eve")
    answer = come_back(stage, eve, accumulator=bob.accumulator, step=1, index=1)
    assert sent(answer, m.AccumulatorRevoked, eve.peer)
    assert stage.state.holders[bob.accumulator] == bob.peer
    assert stage.state.leases.held[bob.accumulator] == held


def test_restarted_peer_gives_up_what_it_held_and_offered() -> None:
    stage, (ann, *_), _ = reducing()
    stage.wait(2)
    old = ann.accumulator
    stage.begin_anew(ann)
    assert stage.round.dropped == {0}
    assert old not in stage.state.holders
    assert stage.state.holders[ann.accumulator] == ann.peer
    stage.reduce([0])
    stage.persist()
    assert stage.state.leases.outstanding(old) == 0


def test_whoever_comes_back_finds_its_leases() -> None:
    stage, _, bob = pair()
    stage.wait(2)
    stage.handle(e.Lost(bob.peer))
    assert bob.peer in stage.state.departed
    stage.hello(bob)
    assert bob.undone
    assert stage.state.leases.holds(bob.accumulator, bob.undone)
    assert stage.state.departed == {}


def test_peer_back_with_another_accumulator_gives_up_the_old_one() -> None:
    stage, _, bob = pair()
    stage.wait(2)
    old = bob.accumulator
    stage.handle(e.Lost(bob.peer))
    stage.begin_anew(bob)
    assert stage.state.leases.outstanding(old) == 0
    assert old not in stage.state.holders
    assert stage.state.departed == {}


def test_peer_holding_units_leased_to_another_starts_over() -> None:
    stage, ann, bob = pair()
    stage.wait(2)
    old, held = bob.accumulator, set(stage.state.leases.held[ann.accumulator])
    assert sent(come_back(stage, bob, undone=list(ann.undone)), m.AccumulatorRevoked, bob.peer)
    assert bob.accumulator != old
    assert stage.state.leases.outstanding(old) == 0
    assert stage.state.leases.held[ann.accumulator] == held


def test_machine_that_returns_in_another_role_is_a_new_member() -> None:
    """The machine reconnected before the host learned that the old connection had ended."""
    stage, ann, bob = pair()
    stage.compute(ann)
    assert stage.member(ann).done
    hello = m.Hello(run=RUN, accumulator=NOBODY, url="wss://192.0.2.1:7000/", reduces=True, keeps_log=True)
    stage.handle(e.Joined(ann.peer, ann.person, ann.name, Role.AUXILIARY, hello))
    member = stage.member(ann)
    assert (member.role, member.done, member.done_samples) == (Role.AUXILIARY, {}, 0)
    assert ann.accumulator not in stage.state.leases.held, "what it was leased is computed by others"
    assert [other.peer for other in stage.state.trainers()] == [bob.peer]
    stage.hello(ann)
    assert stage.member(ann).role is Role.TRAINER, "and back"
    assert ann.peer not in stage.state.listening


def test_what_it_offered_in_the_other_role_is_done_without() -> None:
    stage, trainers, (relay,) = reducing()
    progress(stage, relay, *[1] * len(trainers))
    hello = m.Hello(run=RUN, accumulator=NOBODY)
    stage.handle(e.Joined(trainers[0].peer, "ann", "ann", Role.AUXILIARY, hello))
    assert stage.round.dropped == {0}


def keepers(stage: Stage) -> list[PeerId]:
    return [listener.peer for listener in stage.state.listeners() if listener.keeps_log]


def test_the_word_of_an_auxiliary_counts_while_no_relay_is_here() -> None:
    stage = Stage()
    ann = stage.trainer("ann")
    auxiliary = stage.relay("nas", Role.AUXILIARY)
    assert keepers(stage) == [auxiliary]
    relay = stage.relay()
    assert keepers(stage) == [relay], "between rounds it stands down at once"
    told = sent(stage.said, m.Listeners, ann.peer)[-1]
    assert [(other.peer, other.keeps_log) for other in told.listeners] == [(auxiliary, False), (relay, True)]  # type: ignore[attr-defined]
    stage.handle(e.Lost(relay))
    assert keepers(stage) == [auxiliary]
    stage.relay(keeps_log=False)
    assert keepers(stage) == [auxiliary], "a relay without a log keeps none"


def test_two_trainers_keep_the_log_without_relays() -> None:
    stage = Stage(steps=1)
    trainers = [stage.trainer(name) for name in "abc"]
    for trainer in trainers:
        stage.now += 1
        stage.hello(trainer, url=f"wss://{trainer.name}", fingerprint="f" * 64, reduces=True, keeps_log=True)
    kept = [trainer.peer for trainer in trainers[:2]]
    assert keepers(stage) == kept
    for trainer in trainers:
        others = tuple(other.peer for other in trainers if other is not trainer)
        stage.say(trainer.peer, m.Reaches(run=RUN, listeners=others))
    stage.accumulate()
    stage.offers(*trainers)
    for span in stage.spans():
        stage.span_done(span)
        for peer in kept:
            stage.have(peer, span)
    for trainer in trainers:
        stage.gathered(trainer.peer)
    stage.persist()
    stage.wait(10)
    behind = [stage.say(trainer.peer, m.Heartbeat(run=RUN, index=0)) for trainer in trainers]
    pages = [command.whole for said in behind for command in said if isinstance(command, e.Resend)]
    assert pages == [True, True, False], "what is said again is as whole as it was"
    commits = {trainer.peer: sent(stage.said, m.Commit, trainer.peer)[-1] for trainer in trainers}
    assert [bool(commit.contributions) for commit in commits.values()] == [True, True, False]  # type: ignore[attr-defined]
    assert all(commit.hash_state for commit in commits.values()), "each hashes its state"  # type: ignore[attr-defined]
    assert sum(commit.snapshot for commit in commits.values()) == 1  # type: ignore[attr-defined]
    stage.relay("nas", Role.AUXILIARY)
    assert keepers(stage) == [peer_of("nas")]


def test_it_counts_until_the_round_is_over_in_which_a_relay_came() -> None:
    stage, trainers, (auxiliary,) = reducing({"role": Role.AUXILIARY})
    relay = stage.relay()
    assert keepers(stage) == [auxiliary, relay] or keepers(stage) == [relay, auxiliary]
    stage.reduce()
    for trainer in trainers:
        stage.gathered(trainer.peer)
    stage.persist()
    before = len(stage.said)
    stage.wait(2)
    assert keepers(stage) == [relay]
    assert sent(stage.said[before:], m.Listeners, trainers[0].peer)


def test_trainer_keeps_no_log_where_a_relay_does() -> None:
    stage = Stage()
    relay = stage.relay()
    stage.relay("liar", Role.TRAINER)
    assert keepers(stage) == [relay]

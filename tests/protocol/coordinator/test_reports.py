"""The channel may lose any message. Peers' later messages show what is missing, and the coordinator resends it."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.leases import GIVE_UP
from peer_agent.protocol.coordinator.reports import PAGE
from peer_agent.protocol.coordinator.state import DIVERGED
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import ROUND_TRIP_S, UNAVAILABLE
from tests.protocol.coordinator.scenes import pair
from tests.protocol.coordinator.stage import RUN, Stage, peer_of, sent


def resends(commands: list[e.Command]) -> list[e.Resend]:
    return [command for command in commands if isinstance(command, e.Resend)]


def test_a_lost_commit_is_said_again_to_who_is_behind() -> None:
    stage, ann, bob = pair()
    stage.lose.add((bob.peer, m.Commit))
    stage.commit()
    assert (ann.index, bob.index) == (2, 1)
    assert resends(stage.report(bob)) == [], "it is under way"
    late = resends(stage.wait(ROUND_TRIP_S + 1))
    assert late == [e.Resend(bob.peer, 2, 1)]
    stage.lose.clear()
    stage.apply(bob, stage.records[-1])
    assert stage.member(bob).counted[0]
    assert resends(stage.wait(20)) == []


def test_peer_far_behind_gets_pages_as_it_acknowledges_them() -> None:
    stage, ann, _ = pair()
    stage.state.index = stage.state.step = 150
    hello = m.Hello(run=RUN, accumulator=ann.accumulator, step=1, log_index=1)
    assert resends(stage.say(ann.peer, hello)) == [e.Resend(ann.peer, 2, PAGE)]
    beat = m.Heartbeat(run=RUN, index=10)
    assert resends(stage.say(ann.peer, beat)) == [], "the page is under way"
    assert resends(stage.say(ann.peer, m.Heartbeat(run=RUN, index=65))) == [e.Resend(ann.peer, 66, PAGE)]
    stage.now += ROUND_TRIP_S
    stage.say(ann.peer, m.Heartbeat(run=RUN, index=65))
    stage.now += 0.1
    again = resends(stage.say(ann.peer, m.Heartbeat(run=RUN, index=65)))
    before = [e.Resend(ann.peer, 66, PAGE)]
    assert again == before or resends(stage.said)[-1:] == before, "and the same again after a while"
    assert resends(stage.say(ann.peer, m.Heartbeat(run=RUN, index=129))) == [e.Resend(ann.peer, 130, 21)]
    assert resends(stage.say(ann.peer, m.Heartbeat(run=RUN, index=150))) == []


def test_short_page_is_acknowledged_by_its_last_record() -> None:
    """With 200 trainers, a page of 19 records is one mebibyte. A regression: each of 500 pages was followed by a
    five-second pause.
    """
    stage, ann, _ = pair()
    stage.state.index = stage.state.step = 150
    stage.say(ann.peer, m.Hello(run=RUN, accumulator=ann.accumulator, step=1, log_index=1))
    stage.handle(e.Paged(ann.peer, 20))
    assert resends(stage.say(ann.peer, m.Heartbeat(run=RUN, index=19))) == []
    assert resends(stage.say(ann.peer, m.Heartbeat(run=RUN, index=20))) == [e.Resend(ann.peer, 21, PAGE)]
    assert stage.handle(e.Paged(PeerId("ff" * 16), 20)) == [], "it has gone meanwhile"


def acknowledge(stage: Stage, index: int) -> list[e.Resend]:
    """Acknowledge the log up to this index, as the relay would. Return what is resent."""
    stage.logs[peer_of("relay")] = index
    return resends(stage.say(peer_of("relay"), m.Heartbeat(run=RUN, index=index)))


def test_commit_sent_before_a_page_is_resent_after_it() -> None:
    """The relay discards a commit that arrives before the page, because its log would have a gap."""
    stage, *_ = pair()
    relay = peer_of("relay")
    assert acknowledge(stage, 0) == []
    assert resends(stage.wait(ROUND_TRIP_S + 1)) == [e.Resend(relay, 1, 1, whole=True)]
    stage.commit()
    stage.handle(e.Paged(relay, 1))
    assert acknowledge(stage, 1) == [e.Resend(relay, 2, 1, whole=True)]


def test_lost_commit_is_resent_even_when_steps_follow_fast() -> None:
    stage, *_ = pair()
    acknowledge(stage, 0)
    since = stage.now
    while stage.now < since + 2 * ROUND_TRIP_S:
        stage.commit()
    assert stage.state.index == 5
    assert [(page.first, page.count) for page in resends(stage.said)] == [(1, 2), (1, 4)], "every ROUND_TRIP_S"


def test_who_acknowledges_late_is_said_nothing_twice() -> None:
    stage, *_ = pair()
    since = stage.now
    while stage.now < since + 4 * ROUND_TRIP_S:
        stage.commit()
        assert acknowledge(stage, stage.state.index - 1) == [], "the last one is under way"


def test_who_has_no_state_yet_is_sent_no_commits() -> None:
    stage, ann, _ = pair()
    assert resends(stage.say(ann.peer, m.Heartbeat(run=RUN, index=-1))) == []


def test_a_lost_lease_shows_and_is_asked_for() -> None:
    stage = Stage(batch=400)
    stage.relay()
    ann, bob = stage.trainer("ann"), stage.trainer("bob")
    for _ in range(3):
        stage.wait(1)
        stage.compute(ann)
        stage.compute(bob)
    stage.wait(1)
    bob.undone = bob.undone[:-5]
    asked: list[m.Message] = []
    while not asked and len(bob.done) < 12:
        stage.wait(1)
        asked = sent(stage.compute(bob), m.Rehello, bob.peer)
    assert asked
    stage.hello(bob)
    assert stage.state.leases.outstanding(bob.accumulator) == len(bob.undone) + len(bob.done)


def test_unit_that_cannot_be_computed_is_recorded_as_left_out() -> None:
    """Without this record, a host that restarts would lease the unit again."""
    stage = Stage(batch=400)
    stage.relay()
    ann = stage.trainer("ann")
    unit = ann.undone[0]
    told = []
    for _ in range(GIVE_UP):
        stage.say(ann.peer, m.UnitsReturned(run=RUN, units=(unit,), reason="non_finite"))
        told.append([command for command in stage.said if isinstance(command, e.LeftOut)])
        stage.wait(0.25)
        assert stage.state.leases.holds(ann.accumulator, [unit]) or len(told) == GIVE_UP, "it is leased again"
    assert told == [[], [], [e.LeftOut((unit,))]]


def test_one_machine_that_computes_nothing_finite_loses_no_samples_for_the_run() -> None:
    stage, ann, bob = pair()
    returned = 0
    for _ in range(10):
        stage.wait(0.5)
        held = tuple(stage.state.leases.held.get(bob.accumulator, ()))
        stage.say(bob.peer, m.UnitsReturned(run=RUN, units=held, reason="non_finite"))
        returned += len(held)
        stage.compute(ann)
    assert DIVERGED <= returned <= 2 * DIVERGED, "it gets no more of them in this step"
    assert stage.state.leases.lost_samples == 0
    assert ann.done


def test_claimed_work_between_its_claims_earns_a_machine_no_more_units() -> None:
    """It says right after each commit, when no one else is in step yet, that everything failed."""
    stage, ann, bob = pair()
    stage.lose |= {(ann.peer, m.Commit)}
    stage.commit()
    lost = 0
    for _ in range(20):
        held = tuple(stage.state.leases.held.get(bob.accumulator, ()))
        if held:
            stage.report(bob, done=(m.DoneUnit(held[0], bob.step),), loss_tokens=1)
        stage.say(bob.peer, m.UnitsReturned(run=RUN, units=held, reason="non_finite"))
        lost += len(held)
    assert stage.state.leases.lost_samples == 0
    assert lost <= 3 * DIVERGED
    assert ann


def test_samples_that_fail_are_left_out_although_a_machine_of_another_person_idles() -> None:
    stage, ann, bob = pair()
    stage.member(bob).reliability.is_silent = True
    bad = ann.undone[0]
    for _ in range(GIVE_UP):
        stage.say(ann.peer, m.UnitsReturned(run=RUN, units=(bad,), reason="non_finite"))
        stage.state.leases.grant(ann.accumulator, bad.samples)  # the smallest returned unit comes first
    assert stage.state.leases.lost_samples == bad.samples


def test_peer_returning_its_leases_is_leased_more_by_clock_only() -> None:
    """A regression: 220 leases a second cost three honest machines a quarter of their steps."""
    stage = Stage(batch=400)
    stage.relay()
    ann = stage.trainer("ann")
    granted = []
    for _ in range(100):
        held = tuple(stage.state.leases.held.get(ann.accumulator, ()))
        granted += sent(stage.say(ann.peer, m.UnitsReturned(run=RUN, units=held, reason="stale")), m.Lease)
    assert granted == []
    stage.wait(0.25)
    assert stage.state.leases.held[ann.accumulator]


def test_leases_that_are_only_under_way_are_not_asked_for() -> None:
    stage, _, bob = pair()
    stage.wait(2)
    for _ in range(8):
        stage.wait(0.5)
        assert sent(stage.report(bob, undone=max(0, len(bob.undone) - 1)), m.Rehello) == []
        stage.report(bob)


def test_an_accumulator_that_was_given_up_unheard_is_asked_for() -> None:
    stage, _, bob = pair()
    assert sent(stage.report(bob, accumulator="e" * 32), m.Rehello, bob.peer)
    assert sent(stage.report(bob, accumulator="e" * 32), m.Rehello) == [], "not with every report"


def test_idle_peer_is_asked_what_it_holds_ever_more_rarely() -> None:
    stage, ann, _ = pair()
    stage.wait(1)
    begun, asked = stage.now, []
    for _ in range(240):
        if sent(stage.wait(0.25), m.Rehello, ann.peer):
            asked.extend([stage.now - begun])
    assert 2 <= len(asked) <= 5
    assert asked[0] >= ROUND_TRIP_S - 2


def test_a_newcomer_that_never_heard_of_its_lease_is_asked() -> None:
    stage = Stage()
    stage.relay()
    stage.lose.add((peer_of("ann"), m.Lease))
    ann = stage.trainer("ann")
    stage.wait(2)
    assert ann.undone == []
    assert sent(stage.wait(UNAVAILABLE * ROUND_TRIP_S + 1), m.Rehello, ann.peer)
    stage.lose.clear()
    stage.hello(ann)
    stage.wait(1)
    assert ann.undone or ann.quota

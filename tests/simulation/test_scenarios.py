"""What happens when (design, section 7): each misfortune alone, with every invariant checked after every event."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import REPLAY_S, SNAPSHOT_S
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.credentials import Signed
from peer_agent.simulation.database import Fault
from peer_agent.simulation.host import Host
from peer_agent.simulation.world import Setting, World
from tests.simulation.watched import relays, run_to, state, trainers, watched

IN_A_ROUND = [Phase.OFFER, Phase.REDUCE, Phase.COMMIT]
ANY_TIME = [Phase.ACCUMULATE, *IN_A_ROUND]


# --- golden cases of rule 42


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_trainers_commit_through_one_relay_and_every_step_is_exact(count: int) -> None:
    world, _ = watched(trainers=count, steps=6, snapshot_every=4)
    assert world.run(lambda: world.tally.finished)
    records = world.database.records
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(record.exact for record in records)
    assert sum(record.samples for record in records) >= 6 * 8 * count
    assert world.database.snapshot.step == 6
    assert "void" not in world.tally.notes


def test_without_a_relay_the_run_says_why_it_waits_and_goes_on_when_one_comes() -> None:
    world, _ = watched(trainers=2, steps=3)
    relays(world)[0].kill()
    world.wait(30)
    assert state(world).waiting == "no relay is connected"
    assert state(world).phase is Phase.ACCUMULATE
    assert world.database.step == 0
    relays(world)[0].start()
    assert world.run_steps(3)
    assert state(world).waiting == ""


def test_the_first_round_waits_for_enough_trainers() -> None:
    world, _ = watched(trainers=3, minimum_trainers=3, steps=3)
    trainers(world)[2].kill()
    world.wait(30)
    assert state(world).waiting == "needs 1 more volunteer"
    trainers(world)[2].start()
    assert world.run_steps(2)


# --- trainers


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_trainer_that_dies_in_any_phase_stops_nobody(phase: Phase, count: int) -> None:
    world, _ = watched(trainers=count, steps=12)
    world.run_steps(2)
    run_to(world, phase)
    trainers(world)[0].kill()
    world.clock.after(5.0, trainers(world)[0].start)
    assert world.run_steps(5, 300)


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("away_s", [0.05, 1.0, 40.0])
def test_a_lost_session_in_any_phase_loses_no_work(phase: Phase, away_s: float) -> None:
    world, _ = watched(trainers=4, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    trainers(world)[1].reconnect(away_s)
    assert world.run_steps(10, 400)


@pytest.mark.parametrize("phase", ANY_TIME)
def test_a_frozen_trainer_of_three_costs_one_wait(phase: Phase) -> None:
    world, _ = watched(trainers=3, steps=14, even=True)
    world.run_steps(2)
    run_to(world, phase)
    trainers(world)[2].freeze()
    assert world.run_steps(1, 60)
    assert world.run_steps(4, 60), "the others go on without it"
    trainers(world)[2].thaw()
    assert world.run_steps(4, 60)
    assert any(entry.peer == trainers(world)[2].peer for entry in world.database.records[-1].contributions)


def test_a_trainer_that_needs_long_to_offer_is_waited_for_where_nobody_else_is_there() -> None:
    world, _ = watched(trainers=1, steps=3)
    trainers(world)[0].offer_delay_s = 17.0
    assert world.run_steps(3, 600)


def test_all_trainers_gone_and_back() -> None:
    world, _ = watched(trainers=3, steps=10)
    world.run_steps(2)
    for trainer in trainers(world):
        trainer.kill()
    world.wait(60)
    assert world.database.step == 2
    assert state(world).waiting == "needs a volunteer"
    for trainer in trainers(world):
        trainer.start()
    assert world.run_steps(5, 200)


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("banned", [False, True])
def test_whoever_leaves_or_is_banned_in_a_round_takes_no_committed_unit_along(phase: Phase, banned: bool) -> None:
    world, _ = watched(trainers=5, relays=2, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    leaver = trainers(world)[0]
    leaver.latency_s = 0.001
    if banned:
        world.ban(leaver.peer)
    else:
        leaver.leave()
    assert world.run_steps(8, 300)
    assert leaver.peer not in state(world).members


@pytest.mark.parametrize("phase", IN_A_ROUND)
def test_units_that_are_returned_in_a_round_are_not_in_two_updates(phase: Phase) -> None:
    world, _ = watched(trainers=4, steps=14)
    world.run_steps(1)
    run_to(world, phase)
    trainer = trainers(world)[0]
    trainer.latency_s = 0.001
    trainer.say(m.UnitsReturned(run=world.run_id, units=tuple(trainer.done), reason="stale"))
    assert world.run_steps(6, 300)


@pytest.mark.parametrize("phase", ANY_TIME)
def test_an_accumulator_that_is_forgotten_in_a_session_is_given_up(phase: Phase) -> None:
    world, _ = watched(trainers=4, steps=14)
    world.run_steps(1)
    run_to(world, phase)
    trainer = trainers(world)[0]
    trainer.latency_s = 0.001
    trainer._renew()
    trainer.offered = None
    trainer.say(trainer.hello())
    assert world.run_steps(6, 300)


def test_what_was_left_out_is_carried_and_offered_again_after_a_lost_session() -> None:
    world, _ = watched(trainers=5, steps=14, elements=40 * 16 * 1024, even=True)
    world.run_steps(1)
    slow = trainers(world)[0]
    slow.chunks_per_s = 4.0
    run_to(world, Phase.REDUCE)
    world.wait(3.0)
    assert state(world).phase is Phase.REDUCE
    slow.reconnect(1.0)
    world.run_steps(1)
    slow.chunks_per_s = 100.0
    record = world.database.records[-1]
    assert not record.exact
    parts = [part for span in record.spans for part in span.included]
    assert {len(part.slots) for part in parts} == {4, 5}, "some chunks had closed with it, others without"
    assert world.run(lambda: 0 in slow.tokens, 10), "what was averaged is settled"
    assert max(slow.tokens) > 0, "the rest is carried"
    world.run_steps(2)
    assert "returned" not in world.tally.notes
    assert slow.tokens[0] == slow.tokens[-1]
    assert sum(any(entry.peer == slow.peer for entry in r.contributions) for r in world.database.records[-2:]) >= 1


def test_a_damaged_gradient_is_refused_and_the_round_goes_on() -> None:
    world, _ = watched(trainers=5, relays=2, steps=14)
    world.run_steps(1)
    trainers(world)[0].damaged = True
    run_to(world, Phase.REDUCE)
    assert world.run_steps(1, 100)
    assert world.tally.notes["dropped"] == 1
    assert world.tally.notes["returned"] == 1
    trainers(world)[0].damaged = False
    assert world.run_steps(5, 100)


def test_a_replica_that_differs_reloads() -> None:
    world, _ = watched(trainers=4, steps=14)
    world.run_steps(2)
    trainers(world)[0].corrupt = True
    assert world.run(lambda: world.tally.notes.get("reload", 0) > 0, 60)
    assert world.run_steps(6, 100)
    assert not trainers(world)[0].corrupt


def test_nobody_gets_what_anothers_accumulator_holds() -> None:
    world, _ = watched(trainers=3, steps=14)
    world.run_steps(1)
    run_to(world, Phase.ACCUMULATE)
    thief, victim = trainers(world)[:2]
    thief.accumulator, thief.done, thief.undone = victim.accumulator, dict(victim.done), list(victim.undone)
    thief.say(thief.hello())
    assert world.run_steps(6, 200)


def test_work_that_is_too_old_comes_back() -> None:
    world, _ = watched(trainers=4, steps=20)
    world.run_steps(1)
    absent = trainers(world)[0]
    assert world.run(lambda: bool(absent.done) and absent.cut is None, 60)
    held = set(absent.done)
    absent.disconnect()
    world.run_steps(2)
    absent.connect()
    world.run_steps(3)
    assert not held & set(absent.done)
    assert world.tally.notes["returned"] >= 1


# --- relays


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("away_s", [0.1, 3.0, 60.0])
def test_the_only_relay_dies_and_returns(phase: Phase, away_s: float) -> None:
    world, _ = watched(trainers=3, steps=12)
    world.run_steps(2)
    run_to(world, phase)
    relays(world)[0].kill()
    world.clock.after(away_s, relays(world)[0].start)
    assert world.run_steps(5, 400)


def test_a_relay_that_dies_in_mid_round_leaves_the_others_spans_as_they_are() -> None:
    world, invariants = watched(trainers=3, relays=2, steps=12, elements=1200 * 16 * 1024, even=True)
    fast, slow = relays(world)
    fast.bytes_per_s = slow.bytes_per_s = 10_000_000
    world.run_steps(1)
    run_to(world, Phase.REDUCE)
    slow.freeze()
    run_to(world, Phase.REDUCE, held=3)
    held = {span: done.root for span, done in state(world).round.held.items()}  # type: ignore[union-attr]
    slow.kill()
    assert world.run_steps(1, 300)
    record = world.database.records[-1]
    final = invariants.plans[record.step - 1, record.fence, record.attempt]
    kept = {span.span: span.root for span in final.spans if span.root}
    assert kept.items() >= held.items()
    assert {span.reducer for span in record.spans} == {fast.peer}
    assert {span.attempt for span in record.spans} == {record.attempt - 1, record.attempt}
    assert {span.root for span in record.spans} >= {root.hex() for root in held.values()}


@pytest.mark.parametrize("phase", [Phase.ACCUMULATE, Phase.OFFER, Phase.REDUCE])
def test_a_frozen_relay_of_two_is_planned_no_part_after_one_void_round(phase: Phase) -> None:
    world, _ = watched(trainers=3, relays=2, steps=30)
    world.run_steps(2)
    run_to(world, phase)
    relays(world)[0].freeze()
    assert world.run_steps(5, 120)
    assert world.tally.notes["void"] <= 2
    assert "dropped" not in world.tally.notes, "no trainer is blamed for a relay"


def test_a_relay_that_is_back_before_its_end_was_noticed_begins_again_at_once() -> None:
    world, _ = watched(trainers=3, steps=12, even=True)
    world.run_steps(2)
    run_to(world, Phase.REDUCE)
    relays(world)[0].kill()
    relays(world)[0].start()
    assert world.run_steps(1, 8)
    assert world.tally.notes["replan"] == 1
    assert "void" not in world.tally.notes


def test_a_round_that_is_void_while_no_relay_is_there_sets_its_trainers_free() -> None:
    """The attempt that found no relay was planned for nobody; the void must name the one that the trainers know."""
    world, _ = watched(trainers=2, steps=12, even=True)
    world.run_steps(1)
    run_to(world, Phase.REDUCE)
    world.wait(0.3)
    relays(world)[0].kill()
    world.wait(1)
    lost, left = trainers(world)
    lost.kill()
    world.wait(2)
    assert state(world).phase is Phase.ACCUMULATE
    assert left.cut is None
    relays(world)[0].start()
    assert world.run_steps(3, 100), "one is enough to go on"


# --- host and database


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("down_s", [0.1, 20.0])
def test_the_host_dies_in_any_phase(phase: Phase, down_s: float) -> None:
    world, _ = watched(trainers=3, relays=2, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    computed = sum(trainer.computed for trainer in trainers(world))
    world.restart_host(down_s)
    assert world.run_steps(4, 300)
    assert sum(trainer.computed for trainer in trainers(world)) > computed
    world.run_steps(4)
    assert not state(world).leases.orphans
    credited = sum(record.samples for record in world.database.records)
    assert credited >= computed, "nothing that was computed before is lost"


@pytest.mark.parametrize("fault", ["failed", "answer lost", "unknown and not written"])
def test_a_database_in_trouble_delays_a_step_and_no_more(fault: Fault) -> None:
    world, _ = watched(trainers=2, steps=8)
    world.run_steps(1)
    world.database.script += [fault] * 3
    assert world.run_steps(4, 100)


def test_a_host_that_lost_its_claim_stands_back() -> None:
    world, _ = watched(trainers=2, steps=8)
    world.run_steps(1)
    run_to(world, Phase.REDUCE)
    world.database.claim()  # another host, which dies at once
    assert world.run(lambda: world.tally.restarts == 1, 60)
    assert world.run_steps(3, 100)
    assert world.database.records[-1].fence == 3


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("asleep_s", [3.0, 100.0])
def test_a_suspended_host_judges_nobody_for_its_sleep(phase: Phase, asleep_s: float) -> None:
    world, _ = watched(trainers=3, relays=2, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    host = world.host
    assert host is not None
    host.freeze()
    world.clock.after(asleep_s, host.thaw)
    assert world.run_steps(3, 60 + asleep_s)
    assert "void" not in world.tally.notes
    assert "dropped" not in world.tally.notes


@pytest.mark.parametrize("phase", ANY_TIME)
def test_the_organizer_pauses_and_resumes(phase: Phase) -> None:
    world, _ = watched(trainers=3, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    world.direct("paused")
    world.wait(30)
    step = world.database.step
    assert state(world).waiting == "the organizer has paused the run"
    world.wait(60)
    assert world.database.step == step
    world.direct("running")
    assert world.run_steps(4, 60)


def test_the_last_snapshot_is_asked_for_until_somebody_hands_it_in() -> None:
    world, _ = watched(trainers=2, steps=3, snapshot_every=50)
    world.run_steps(3)
    world.run(lambda: state(world).snapshot_from is not None, 10)
    keeper = state(world).snapshot_from
    assert keeper is not None
    world.trainers[keeper[0]].kill()
    assert world.run(lambda: world.tally.finished, 200)


class Asked:
    """When the site was asked to make the last state from the log."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def before(self, host: Host, event: e.Event, now: float) -> None:
        pass

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        self.at += [now for command in commands if isinstance(command, e.Replay)]

    def persisted(self, host: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        pass


def test_where_nobody_is_left_the_site_is_asked_for_the_last_state() -> None:
    asked = Asked()
    world = World(Setting(trainers=2, steps=3, snapshot_every=50), [asked])
    world.run_steps(3)
    for trainer in trainers(world):
        trainer.kill()
    gone_at = world.clock.now
    world.wait(150)
    assert 2 <= len(asked.at) <= 4
    assert asked.at[0] >= gone_at + REPLAY_S
    assert all(late - early >= SNAPSHOT_S for early, late in pairwise(asked.at))
    assert "made from the log" in state(world).waiting
    world.store_snapshot(world.database.records[-1])
    assert world.run(lambda: world.tally.finished, 10)


def test_while_somebody_can_hand_it_in_the_site_is_not_asked() -> None:
    asked = Asked()
    world = World(Setting(trainers=2, steps=3, snapshot_every=50), [asked])
    assert world.run(lambda: world.tally.finished, 200)
    world.wait(100)
    assert asked.at == []


def test_a_host_that_dies_after_the_last_snapshot_is_stored_finishes_when_it_is_back() -> None:
    world, _ = watched(trainers=1, steps=3)
    world.run_steps(3)
    world.kill_host()
    world.store_snapshot(world.database.records[-1])
    world.start_host()
    assert world.run(lambda: world.tally.finished, 100)


# --- data


@pytest.mark.parametrize("shards", [(10_000, 1000, 1000), (20_000, 200), (7,), (5, 3, 1, 90)])
def test_shards_of_any_size_are_dealt_epoch_after_epoch(shards: tuple[int, ...]) -> None:
    world, _ = watched(trainers=3, steps=40, shards=shards, even=True)
    assert world.run_steps(40, 1200)


def test_units_whose_gradients_are_never_finite_are_left_out_at_last() -> None:
    world, _ = watched(trainers=3, steps=20, non_finite=0.6, samples_each=4)
    assert world.run_steps(20, 1200)
    assert state(world).leases.lost_samples > 0


# --- messages out of place


def test_messages_of_another_attempt_step_or_fence_change_nothing() -> None:
    world, _ = watched(trainers=3, relays=2, steps=14)
    world.run_steps(2)
    world.restart_host()
    world.run_steps(2)
    for phase in ANY_TIME:
        run_to(world, phase)
        host = world.host
        assert host is not None
        for step, fence, attempt in [(0, 0, 1), (-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0), (0, 0, -1)]:
            now = state(world)
            place: dict[str, Any] = {
                "run": now.run,
                "step": now.step + step,
                "fence": now.fence + fence,
                "attempt": max(0, now.attempt + attempt),
            }
            _say_all(host, place)
        assert world.run_steps(1, 60)
    assert "dropped" not in world.tally.notes
    assert "void" not in world.tally.notes


def _say_all(host: Host, place: dict[str, Any]) -> None:
    now = host.state
    if place["attempt"] == now.attempt and place["step"] == now.step and place["fence"] == now.fence:
        return
    trainer, relay = now.trainers()[0], now.relays()[0]
    weights = (m.Weight(0, now.grid.chunks, 1),)
    offered: dict[str, Any] = {
        "units": (),
        "weights": weights,
        "loss_tokens": 1,
        "loss_sum": 1.0,
        "norm": 1.0,
        "root": bytes(32),
    }
    messages: list[m.TO_SITE] = [
        m.Offer(**place, accumulator=trainer.accumulator, **offered),
        m.SpanDone(**place, span=0, root=bytes(32), sum_squares=0.0, included=()),
        m.Progress(**place, received=((0, 1), (99, 1))),
        m.SlotRefused(**place, slot=0, chunk=0, code="E211"),
        m.Have(**place, span=0, root=bytes(32)),
    ]
    for message in messages:
        before = repr((now.round, now.phase, now.leases, now.departed, now.step, now.index))
        peer = trainer.peer if isinstance(message, m.Offer) else relay.peer
        host.take(e.Received(peer, message))
        after = repr((now.round, now.phase, now.leases, now.departed, now.step, now.index))
        assert before == after, message


def test_a_second_answer_of_the_database_changes_nothing() -> None:
    world, _ = watched(trainers=2, steps=8)
    world.run_steps(2)
    run_to(world, Phase.ACCUMULATE)
    host = world.host
    assert host is not None
    before = state(world).index
    host.take(e.Persisted("committed", Signed(b"{}", bytes(64))))
    assert state(world).index == before
    assert world.run_steps(2)


def test_a_relay_that_names_slots_that_do_not_exist_is_not_believed() -> None:
    world, _ = watched(trainers=2, steps=8)
    run_to(world, Phase.REDUCE)
    host, now = world.host, state(world)
    assert host is not None
    assert now.round is not None
    place: dict[str, Any] = {"run": now.run, "step": now.step, "fence": now.fence, "attempt": now.round.attempt}
    strange = m.Progress(**place, received=((7, 0), (65_535, 3)))
    host.take(e.Received(relays(world)[0].peer, strange))
    host.take(e.Received(relays(world)[0].peer, m.SlotRefused(**place, slot=9, chunk=0, code="E211")))
    world.wait(10)
    assert world.run_steps(2)

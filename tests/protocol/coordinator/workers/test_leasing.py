"""A trainer's deliveries decide how much work it is leased. It is leased nothing while its units are unknown."""

from typing import cast

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.events import Goal
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.coordinator.workers.leasing import _tell, deal, reserve
from peer_agent.protocol.messages import Shard
from tests.protocol.coordinator.scenes import four, pair
from tests.protocol.coordinator.stage import CONTEXT, UNIT, Stage, Trainer, sent


def test_shares_follow_pace_and_quotas_exceed_them_by_a_quarter() -> None:
    stage = Stage(batch=60)
    stage.relay()
    fast, slow = stage.trainer("fast"), stage.trainer("slow")
    for _ in range(8):
        while stage.state.phase is Phase.ACCUMULATE:
            stage.wait(1)
            stage.compute(fast, 2)
            if int(stage.now) % 2:
                stage.compute(slow)
        stage.offers(fast, slow)
        stage.reduce()
        stage.persist()
    stage.wait(1)
    stage.compute(fast, 2)
    stage.wait(0.25)
    shares = stage.member(fast).share, stage.member(slow).share
    assert shares == (48, 12)
    assert (fast.quota, slow.quota) == (60, 16)


def test_a_lease_says_of_which_shard_the_units_after_it_will_be() -> None:
    stage = Stage(shards=tuple(Shard(f"{number}" * 64, 40 * CONTEXT) for number in range(9)))
    stage.relay()
    ann, bob = stage.trainer("ann"), stage.trainer("bob")
    of_ann, of_bob = (cast("m.Lease", sent(stage.said, m.Lease, trainer.peer)[-1]) for trainer in (ann, bob))
    assert (of_ann.units[0].shard, of_ann.coming) == (0, (0, 1, 2))
    assert of_bob.coming == (3, 4), "each has shards of its own, and few are nobody's"


def test_unchecked_reports_at_most_double_an_equal_share() -> None:
    """Reports cannot be checked before the trainer makes its offer, so its share may grow only with each update."""
    stage, honest, liar = four(same_person=False)
    for _ in range(4):
        stage.wait(1)
        stage.compute(liar, 10)
    stage.wait(2)
    assert stage.member(liar).reliability.rate > 0
    assert stage.member(liar).share <= 24, "twice an equal share"
    assert all(stage.member(trainer).share >= UNIT for trainer in honest)


def test_share_of_an_overdue_machine_shrinks_every_second() -> None:
    """A regression: a fast machine that returned all its work held three others to their quotas for whole rounds."""
    stage, ann, bob = pair()
    stage.commit()
    stage.wait(1)
    stage.compute(ann), stage.compute(bob)
    stage.wait(1.25)
    equal = stage.member(ann).share
    assert stage.member(bob).share == equal
    assert (ann.quota, bob.quota) == (16, 16)
    for _ in range(3):
        stage.wait(1)
        stage.compute(ann)
    assert stage.member(bob).share < equal < stage.member(ann).share
    assert ann.quota > 16, "and the others may do its part"
    stage.compute(bob), stage.wait(1.25)
    assert stage.member(bob).share >= equal - UNIT, "its pace is what it was"


def test_nothing_is_leased_between_the_question_and_the_hello() -> None:
    stage, _, bob = pair()
    stage.wait(2)
    stage.member(bob).hello_asked_at = stage.state.now
    bob.done, bob.undone = dict.fromkeys(bob.undone, bob.step), []
    assert sent(stage.report(bob), m.Lease) == []
    stage.hello(bob)
    assert bob.undone


def test_shares_split_the_batch_among_machines_that_deliver() -> None:
    stage, ann, bob = pair()
    deal(stage.state)
    assert {stage.member(trainer).share for trainer in (ann, bob)} == {12}
    stage.member(bob).reliability.is_silent = True
    deal(stage.state)
    assert (stage.member(ann).share, stage.member(bob).share) == (24, UNIT)


def test_a_trainer_is_leased_two_rounds_ahead_and_no_more() -> None:
    stage, *trainers = pair()
    most = 0
    for _ in range(3):
        stage.wait(2)
        for trainer in trainers:
            ahead = sum(unit.samples for unit in trainer.undone)
            most = max(most, ahead)
            assert ahead <= 2 * stage.member(trainer).share + UNIT
        stage.commit()
    assert most >= 2 * 12


@pytest.mark.parametrize("goal", ["paused", "finishing"])
def test_nothing_is_leased_while_no_round_may_begin(goal: Goal) -> None:
    stage, ann, _ = pair()
    stage.wait(2)
    stage.handle(e.Directed(goal))
    stage.said.clear()
    stage.compute(ann, 100)
    stage.wait(3)
    assert sent(stage.said, m.Lease) == []
    if goal == "paused":
        stage.handle(e.Directed("running"))
        stage.wait(1)
        assert sent(stage.said, m.Lease, ann.peer)


def test_marks_are_asked_for_once_until_the_database_has_them() -> None:
    stage, ann, _ = pair()
    book = stage.state.leases
    book.reserved = dict(book.granted)
    (asked,) = reserve(stage.state)
    assert isinstance(asked, e.Reserve)
    assert reserve(stage.state) == []
    held = book.outstanding(ann.accumulator)
    stage.compute(ann, 4)
    assert book.outstanding(ann.accumulator) == held, "nothing is left below the marks"
    stage.handle(e.Reserved(asked.marks))
    assert not stage.state.reserving
    assert book.outstanding(ann.accumulator) > held


@pytest.mark.parametrize(
    ("held", "quota", "is_told"), [(0, 119, False), (0, 121, True), (0, 79, True), (100, 119, True)]
)
def test_quota_is_sent_when_it_changes_by_a_fifth_or_ends_a_rest(held: int, quota: int, is_told: bool) -> None:
    stage, ann, _ = pair()
    member = stage.member(ann)
    member.quota, member.done_samples = 100, held
    commands = _tell(stage.state, member, (), quota)
    assert bool(sent(commands, m.Lease, ann.peer)) == is_told
    assert member.quota == (quota if is_told else 100)


# --- who is not at the head


def after_a_step() -> tuple[Stage, list[Trainer]]:
    """Return a run after its first step, which the second trainer has not heard of."""
    stage = Stage(batch=32)
    stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "bob")]
    stage.lose.add((trainers[1].peer, m.Commit))
    stage.commit(*trainers)
    stage.lose.clear()
    return stage, trainers


def leased(stage: Stage, trainer: Trainer, seconds: float = 2.0) -> bool:
    return bool(sent(stage.wait(seconds), m.Lease, trainer.peer))


@pytest.mark.parametrize("step", [-1, 0])
def test_a_newcomer_is_leased_nothing_before_it_is_at_the_head(step: int) -> None:
    stage, _ = after_a_step()
    newcomer = Trainer("new", "new")
    newcomer.step = newcomer.index = step
    stage.trainers[newcomer.peer] = newcomer
    answer = stage.hello(newcomer)
    assert [greeting.reconciled for greeting in sent(answer, m.Greeting)] == [False]  # type: ignore[attr-defined]
    assert sent(answer, m.Lease, newcomer.peer) == []
    assert not leased(stage, newcomer)
    newcomer.step = newcomer.index = 1
    assert sent(stage.hello(newcomer), m.Lease, newcomer.peer) or leased(stage, newcomer)


def test_trainer_that_missed_a_commit_gets_no_lease_before_it() -> None:
    stage, (_, behind) = after_a_step()
    returned = m.UnitsReturned(run=stage.state.run, units=tuple(behind.undone), reason="stale")
    behind.undone = []
    assert sent(stage.say(behind.peer, returned), m.Lease, behind.peer) == []
    assert not leased(stage, behind)
    behind.step, behind.index, behind.done = 1, 1, {}
    assert sent(stage.report(behind), m.Lease, behind.peer) or leased(stage, behind)

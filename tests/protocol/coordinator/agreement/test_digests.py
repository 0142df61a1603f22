"""Votes on the state digest, one per person. If they are inconclusive, the log decides."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.agreement.digests import cast, withdraw_vote
from peer_agent.protocol.coordinator.facts import LATELY
from peer_agent.protocol.coordinator.recovery import WINDOW_S
from peer_agent.protocol.coordinator.state import Ballot
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import SILENT_S
from tests.protocol.coordinator.stage import Stage, Trainer, notes, sent

ONE, TWO, THREE = "1" * 16, "2" * 16, "3" * 16


def after_a_step(*owners: str) -> tuple[Stage, list[Trainer]]:
    stage = Stage(batch=8 * len(owners))
    stage.relay()
    trainers = [stage.trainer(f"m{number}", owner) for number, owner in enumerate(owners)]
    stage.commit()
    assert len(stage.records[-1].contributions) == len(owners)
    return stage, trainers


def says(stage: Stage, trainer: Trainer, digest: str) -> list[e.Command]:
    trainer.digest = digest
    return stage.report(trainer)


def agreed(commands: list[e.Command]) -> list[str]:
    return [command.digest for command in commands if isinstance(command, e.Agreed)]


def test_a_majority_decides_and_who_differs_reloads() -> None:
    stage, (ann, bob, cem) = after_a_step("ann", "bob", "cem")
    assert agreed(says(stage, ann, ONE)) == []
    assert agreed(says(stage, bob, TWO)) == []
    answer = says(stage, cem, ONE)
    assert agreed(answer) == [ONE]
    assert sent(answer, m.Reload, bob.peer)
    assert stage.member(bob).step == -1
    assert "reload" in notes(answer)


def with_strangers(*audited: str) -> tuple[Stage, list[Trainer]]:
    """Return an open run after a step by three people and by four accounts of one stranger."""
    stage, trainers = after_a_step("ann", "bob", "cem", "eve1", "eve2", "eve3", "eve4")
    stage.state.trusted = frozenset(audited)
    stage.wait(WINDOW_S)
    return stage, trainers


def test_four_accounts_of_a_stranger_outvote_nobody_who_was_audited() -> None:
    stage, (ann, bob, cem, *crowd) = with_strangers("ann")
    for trainer in (bob, cem):
        stage.member(trainer).reliability.audits_passed = 1
    stage.wait(2)
    assert agreed([command for trainer in crowd for command in says(stage, trainer, TWO)]) == []
    assert agreed(says(stage, ann, ONE)) == []
    assert agreed(says(stage, bob, ONE)) == [ONE], "two of three"
    assert sent(says(stage, crowd[0], TWO), m.Reload, crowd[0].peer)


def test_votes_of_strangers_are_withdrawn_once_three_people_are_audited() -> None:
    stage, (ann, _, cem, *crowd) = with_strangers("ann")
    for trainer in crowd[:3]:
        says(stage, trainer, TWO)
    says(stage, ann, ONE)
    assert agreed(stage.wait(2)) == []
    assert sum(stage.state.digests[1].machines.values()) == 4
    stage.state.trusted = frozenset({"ann", "bob", "cem"})
    stage.wait(2)
    assert stage.state.digests[1].machines == {ONE: 1}
    assert agreed(says(stage, cem, ONE)) == [ONE]


def test_with_fewer_than_three_audited_people_everyone_votes() -> None:
    stage, (ann, bob, cem, eve, *_) = with_strangers("ann", "bob")
    stage.wait(2)
    for trainer in (ann, cem, eve):
        assert agreed(says(stage, trainer, ONE)) == []
    assert agreed(says(stage, bob, ONE)) == [ONE]


def test_strangers_who_passed_audits_are_no_jury_without_a_trusted_person() -> None:
    stage, (ann, bob, cem, *crowd) = with_strangers()
    for trainer in crowd:
        stage.member(trainer).reliability.audits_passed = 1
    stage.wait(2)
    assert stage.state.jury is None
    said = [command for trainer in crowd[:3] for command in says(stage, trainer, TWO)]
    said += [command for trainer in (ann, bob, cem) for command in says(stage, trainer, ONE)]
    assert agreed(said) == []


def test_first_report_to_a_new_host_decides_nothing() -> None:
    stage, (ann, bob, *_) = after_a_step("ann", "bob")
    stage.state.trusted, stage.state.voters = frozenset({"ann"}), 0
    assert agreed(says(stage, bob, TWO)) == []
    assert agreed(says(stage, ann, ONE) + stage.wait(WINDOW_S - 5)) == []
    assert agreed(says(stage, bob, ONE) + stage.wait(WINDOW_S)) == [ONE]


def test_late_voter_that_differs_reloads_until_it_agrees() -> None:
    stage, (ann, bob, cem) = after_a_step("ann", "bob", "cem")
    says(stage, ann, ONE)
    assert agreed(says(stage, bob, ONE)) == [ONE]
    assert sent(says(stage, cem, TWO), m.Reload, cem.peer)
    assert sent(says(stage, cem, TWO), m.Reload, cem.peer)
    assert sent(says(stage, cem, ONE), m.Reload) == []


def test_one_of_three_is_no_majority() -> None:
    stage, (ann, *_) = after_a_step("ann", "bob", "cem")
    assert agreed(says(stage, ann, ONE) + stage.wait(5)) == []


def test_a_tie_decides_nothing() -> None:
    stage, (ann, bob, cem, dan) = after_a_step("ann", "bob", "cem", "dan")
    said = says(stage, ann, ONE) + says(stage, bob, ONE) + says(stage, cem, TWO) + says(stage, dan, TWO)
    assert agreed(said + stage.wait(5)) == []
    assert sent(stage.said, m.Reload) == []


def test_many_machines_of_one_person_are_one_vote() -> None:
    stage, machines = after_a_step("ann", "bob", "eve", "eve", "eve", "eve")
    said = [command for trainer in machines[2:] for command in says(stage, trainer, TWO)]
    assert agreed(said) == []
    assert agreed(says(stage, machines[0], ONE)) == []
    answer = says(stage, machines[1], ONE)
    assert agreed(answer) == [ONE]
    assert len(sent(answer, m.Reload)) == 4


def test_a_person_whose_machines_differ_abstains() -> None:
    stage, machines = after_a_step("ann", "bob", "eve", "eve")
    assert agreed(says(stage, machines[0], ONE)) == []
    assert agreed(says(stage, machines[2], ONE)) == [ONE], "two of three"
    stage, machines = after_a_step("ann", "bob", "eve", "eve")
    says(stage, machines[2], ONE)
    says(stage, machines[3], TWO)
    assert agreed(says(stage, machines[0], ONE)) == [], "one of two"
    assert agreed(says(stage, machines[1], ONE)) == [ONE]


def test_newcomers_do_not_vote() -> None:
    stage, (ann, bob) = after_a_step("ann", "bob")
    crowd = [stage.trainer(f"new{number}", f"eve{number}") for number in range(8)]
    said = [command for trainer in crowd for command in says(stage, trainer, TWO)]
    assert agreed(said) == []
    says(stage, ann, ONE)
    assert agreed(says(stage, bob, ONE)) == [ONE]


def test_vote_is_lost_after_ten_commits_without_work() -> None:
    stage, (ann, bob, old) = after_a_step("ann", "bob", "old")
    for _ in range(LATELY):
        stage.commit(ann, bob)
    assert "old" not in stage.state.recent
    says(stage, ann, ONE)
    assert agreed(says(stage, old, ONE)) == []
    assert agreed(says(stage, bob, ONE)) == [ONE]


def test_who_is_silent_or_gone_is_not_waited_for() -> None:
    stage, (ann, bob, cem) = after_a_step("ann", "bob", "cem")
    says(stage, ann, ONE)
    stage.handle(e.Lost(bob.peer))
    stage.handle(e.Lost(cem.peer))
    assert agreed(stage.wait(2)) == [ONE]


# --- no majority


def split(*owners: str) -> tuple[Stage, list[Trainer]]:
    stage, trainers = after_a_step(*owners)
    for number, trainer in enumerate(trainers):
        says(stage, trainer, ONE if number % 2 else TWO)
    return stage, trainers


def replays(commands: list[e.Command]) -> list[e.Replay]:
    return [command for command in commands if isinstance(command, e.Replay)]


def test_two_copies_that_differ_are_decided_by_the_log() -> None:
    stage, (ann, bob) = split("ann", "bob")
    assert replays(stage.wait(SILENT_S - 2)) == []
    asked = stage.wait(4)
    assert replays(asked) == [e.Replay(1, 1)]
    assert "replay" in notes(asked)
    assert replays(stage.wait(60)) == [], "it is asked once"
    assert "copies of the model differ at step 1" in stage.state.waiting
    answer = stage.handle(e.Replayed(1, 1, ONE))
    assert agreed(answer) == [ONE]
    assert sent(answer, m.Reload, ann.peer)
    assert not sent(answer, m.Reload, bob.peer)
    ann.digest = ONE
    stage.report(ann)
    stage.wait(1)
    assert "differ" not in stage.state.waiting


def test_the_log_may_say_that_nobody_is_right() -> None:
    stage, (ann, bob) = split("ann", "bob")
    stage.wait(SILENT_S + 2)
    answer = stage.handle(e.Replayed(1, 1, THREE))
    assert sent(answer, m.Reload, ann.peer)
    assert sent(answer, m.Reload, bob.peer)


def test_steps_go_on_during_a_split_without_renewing_its_wait() -> None:
    stage, trainers = after_a_step("ann", "bob")
    asked: list[e.Replay] = []
    begun = stage.now
    while not asked and stage.now < begun + 60:
        for number, trainer in enumerate(trainers):
            trainer.digest = ONE if number else TWO
        stage.commit(unit_s=0.5)
        asked = replays(stage.said)
    assert asked
    assert stage.state.step > 8
    assert stage.now - begun < SILENT_S + 10
    step = asked[0].step
    answer = stage.handle(e.Replayed(asked[0].index, step, ONE))
    assert sent(answer, m.Reload, trainers[0].peer)


def test_a_newer_majority_makes_the_replay_needless() -> None:
    stage, (ann, bob) = split("ann", "bob")
    stage.wait(SILENT_S + 2)
    assert stage.state.replay is not None
    ann.digest = bob.digest = ONE
    stage.commit()
    stage.wait(2)
    assert stage.state.replay is None


# --- counting


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_the_votes(seed: int) -> None:
    import random

    chance = random.Random(seed)
    ballot = Ballot()
    for _ in range(300):
        peer, person = PeerId(f"{chance.randrange(12):032x}"), ""
        person = f"person {int(peer, 16) % 5}"
        if chance.random() < 0.2:
            withdraw_vote(ballot, peer)
        else:
            cast(ballot, peer, person, chance.choice([ONE, TWO, THREE]))
        said: dict[str, set[str]] = {}
        for owner, value in ballot.votes.values():
            said.setdefault(owner, set()).add(value)
        assert set(ballot.persons) == set(said)
        assert ballot.abstaining == sum(len(values) > 1 for values in said.values())
        for value in (ONE, TWO, THREE):
            assert ballot.counts[value] == sum(values == {value} for values in said.values())
            assert ballot.machines[value] == sum(other == value for _, other in ballot.votes.values())

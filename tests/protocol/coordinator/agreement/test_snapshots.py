"""Snapshots: electing the uploader, admission by hash, what relays may delete, and the end of a run."""

from typing import Any

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.recovery import WINDOW_S
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Snapshot
from peer_agent.protocol.timing import LONGEST_S, SILENT_S
from tests.protocol.coordinator.stage import RUN, Stage, Trainer, sent

ONE, TWO = "1" * 64, "2" * 64


def at_a_snapshot(
    *owners: str, steps: int = 1000, every: int = 1, **facts: Any
) -> tuple[Stage, list[Trainer], e.Elected]:
    stage = Stage(batch=8 * len(owners), steps=steps, snapshot_every=every, **facts)
    stage.relay()
    trainers = [stage.trainer(f"m{number}", owner) for number, owner in enumerate(owners)]
    stage.commit()
    (elected,) = [command for command in stage.said if isinstance(command, e.Elected)]
    return stage, trainers, elected


def says(stage: Stage, trainer: Trainer, sha256: str, index: int = 1) -> list[e.Command]:
    return stage.say(trainer.peer, m.StateHash(run=RUN, index=index, step=index, sha256=sha256, size=77))


def admitted(commands: list[e.Command]) -> list[e.Admitted]:
    return [command for command in commands if isinstance(command, e.Admitted)]


def commits(commands: list[e.Command], peer: PeerId) -> list[m.Commit]:
    return [message for message in sent(commands, m.Commit, peer) if isinstance(message, m.Commit)]


def snapshot(index: int) -> Snapshot:
    return Snapshot(index=index, step=index, digest="d" * 64, state_digest="", file="f" * 64, size=77)


def test_all_trainers_hash_and_one_is_elected() -> None:
    stage, trainers, elected = at_a_snapshot("ann", "bob", "cem")
    said = {trainer.peer: commits(stage.said, trainer.peer)[-1] for trainer in trainers}
    assert all(message.hash_state for message in said.values())
    assert [peer for peer, message in said.items() if message.snapshot] == [elected.peer]
    assert (elected.index, elected.step) == (1, 1)
    relay = next(iter(stage.state.listening))
    assert not commits(stage.said, relay)[-1].hash_state


def test_between_snapshots_nobody_hashes() -> None:
    stage, trainers, _ = at_a_snapshot("ann", "bob", every=1)
    stage.state.recipe = replace(stage.state.recipe, snapshot_every=100)
    stage.state.snapshot_due = False
    before = len(stage.said)
    stage.commit()
    assert not any(message.hash_state for message in commits(stage.said[before:], trainers[0].peer))


def test_a_majority_of_people_admits_once() -> None:
    stage, (ann, bob, cem), _ = at_a_snapshot("ann", "bob", "cem")
    assert admitted(says(stage, ann, ONE)) == []
    assert admitted(says(stage, bob, ONE)) == [e.Admitted(1, 1, ONE, 77)]
    assert admitted(says(stage, cem, ONE)) == []


def test_four_accounts_of_a_stranger_admit_nothing_beside_three_audited_people() -> None:
    people = ("ann", "bob", "cem", "eve1", "eve2", "eve3", "eve4")
    stage, (ann, bob, _, *crowd), _ = at_a_snapshot(*people, trusted=frozenset({"ann"}))
    says(stage, crowd[0], TWO)  # before anyone else was audited
    for trainer in list(stage.trainers.values())[1:3]:
        stage.member(trainer).reliability.audits_passed = 1
    stage.wait(WINDOW_S)
    assert admitted([command for trainer in crowd for command in says(stage, trainer, TWO)]) == []
    assert admitted(says(stage, ann, ONE)) == []
    assert admitted(says(stage, bob, ONE)) == [e.Admitted(1, 1, ONE, 77)]


def test_one_person_with_many_machines_admits_nothing() -> None:
    stage, machines, _ = at_a_snapshot("ann", "bob", "eve", "eve", "eve", "eve")
    said = [command for trainer in machines[2:] for command in says(stage, trainer, TWO)]
    assert admitted(said + stage.wait(5)) == []


def test_hashes_of_another_entry_are_passed_over() -> None:
    stage, (ann, bob), _ = at_a_snapshot("ann", "bob")
    assert admitted(says(stage, ann, ONE, index=7) + says(stage, bob, ONE, index=7)) == []


def test_a_keeper_that_says_another_hash_is_replaced() -> None:
    stage, trainers, elected = at_a_snapshot("ann", "bob", "cem")
    keeper = next(trainer for trainer in trainers if trainer.peer == elected.peer)
    says(stage, keeper, TWO)
    for trainer in trainers:
        if trainer is not keeper:
            says(stage, trainer, ONE)
    assert stage.state.keeper is None
    assert stage.state.snapshot_due, "the next step has a snapshot"


def test_second_keeper_is_elected_when_the_first_is_silent() -> None:
    stage, _, first = at_a_snapshot("ann", "bob", "cem", steps=1)
    stage.said.clear()
    stage.wait(LONGEST_S + 2)
    later = [command for command in stage.said if isinstance(command, e.Elected)]
    assert later
    asked = commits(stage.said, later[0].peer)
    assert asked[-1].snapshot
    assert asked[-1].hash_state
    assert first.index == later[0].index


def test_hashes_without_majority_make_the_site_replay() -> None:
    stage, (ann, bob), _ = at_a_snapshot("ann", "bob", steps=1)
    says(stage, ann, ONE)
    says(stage, bob, TWO)
    assert not any(isinstance(command, e.Replay) for command in stage.wait(SILENT_S - 2))
    assert e.Replay(1, 1) in stage.wait(5)
    stage.handle(e.SnapshotStored(snapshot(1)))
    assert stage.state.finished


def test_relays_keep_bytes_until_the_site_has_verified_them() -> None:
    stage, _, _ = at_a_snapshot("ann", "bob")

    def kept(commands: list[e.Command]) -> list[tuple[int, int]]:
        return [(s.snapshot.index, s.keep_after) for s in sent(commands, m.Snapshotted) if isinstance(s, m.Snapshotted)]

    assert kept(stage.handle(e.SnapshotStored(snapshot(1)))) == [(1, 0)], "newcomers may load it"
    assert kept(stage.handle(e.SnapshotStored(snapshot(2)))) == [(2, 0)], "nothing is verified"
    assert kept(stage.handle(e.Verified(1))) == [(2, 1)]
    assert kept(stage.handle(e.Verified(1))) == []
    assert kept(stage.handle(e.Verified(2))) == [(2, 1)], "whoever loads the one before is still served"
    assert kept(stage.handle(e.SnapshotStored(snapshot(2)))) == []


def test_relays_keep_bytes_until_the_site_has_archived_them() -> None:
    stage, _, _ = at_a_snapshot("ann", "bob", archived=0)

    def kept(commands: list[e.Command]) -> list[int]:
        return [s.keep_after for s in sent(commands, m.Snapshotted) if isinstance(s, m.Snapshotted)]

    for index in (1, 2):
        stage.handle(e.SnapshotStored(snapshot(index)))
    assert kept(stage.handle(e.Verified(2))) == [0]
    assert kept(stage.handle(e.Archived(1, gap=False))) == [1]
    assert kept(stage.handle(e.Archived(2, gap=False))) == [], "nothing new: the one before is still served"


def test_lost_averages_make_a_snapshot_due_once() -> None:
    stage, _, _ = at_a_snapshot("ann", "bob", archived=0)
    stage.state.snapshot_due = False
    stage.handle(e.Archived(1, gap=True))
    assert stage.state.snapshot_due
    stage.state.snapshot_due = False
    stage.handle(e.Archived(1, gap=True))
    assert not stage.state.snapshot_due


def test_logs_own_snapshot_is_announced_and_drops_no_bytes() -> None:
    """A peer that loads the earlier snapshot still needs the entries between the two snapshots."""
    stage, _, _ = at_a_snapshot("ann", "bob")
    stage.handle(e.SnapshotStored(snapshot(1)))
    stage.handle(e.SnapshotStored(snapshot(2)))
    made = Snapshot(index=2, step=2, digest="d" * 64, state_digest="", file="a" * 64, size=77)
    (told,) = sent(stage.handle(e.SnapshotStored(made)), m.Snapshotted)
    assert isinstance(told, m.Snapshotted)
    assert told.snapshot == made
    (told,) = sent(stage.handle(e.Verified(2)), m.Snapshotted)
    assert isinstance(told, m.Snapshotted)
    assert told.keep_after == 1

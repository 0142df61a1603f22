"""A rollback: one record, and then another host. The undone steps no longer count."""

from typing import Any

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.log.records import Record, Restored, read_record
from peer_agent.protocol.messages import Snapshot
from tests.protocol.coordinator.stage import Stage, Trainer, peer_of, sealed, sent

BACK = e.Target(index=4, step=4, file="ab" * 32)


def persisted(commands: list[e.Command]) -> Record:
    (record,) = [command.record for command in commands if isinstance(command, e.Persist)]
    return record


def asks(stage: Stage, goal: e.Goal = "running") -> list[e.Command]:
    return stage.handle(e.Directed(goal, back_to=BACK))


def at_work(**facts: Any) -> tuple[Stage, Trainer]:
    stage = Stage(**{"index": 7, "step": 7, **facts})
    stage.relay()
    return stage, stage.trainer("ada")


def after_it(**facts: Any) -> Stage:
    """Return a run that was rolled back to step 4 by log entry 8."""
    snapshot = Snapshot(index=8, step=4, digest="cd" * 32, state_digest="", file="ef" * 32, size=0)
    return Stage(**{"index": 8, "step": 4, "rolled_back": 8, "fence": 2, "snapshot": snapshot, **facts})


def test_the_record_names_what_is_restored_and_credits_nobody() -> None:
    stage, _ = at_work()
    record = persisted(asks(stage))
    assert (record.kind, record.index, record.step, record.fence) == ("rollback", 8, 4, 1)
    assert record.restored == Restored(4, "ab" * 32)
    assert (record.contributions, record.spans, record.samples) == ((), (), 0)
    assert sealed(record).head.payload.count(b"restored") == 1


def test_other_records_restore_nothing() -> None:
    stage, _ = at_work()
    record = stage.commit()
    assert record.restored is None


@pytest.mark.parametrize("phase", [Phase.OFFER, Phase.REDUCE])
def test_an_open_round_is_void(phase: Phase) -> None:
    stage, ada = at_work()
    stage.accumulate()
    if phase is Phase.REDUCE:
        stage.offers(ada)
        stage.close()
    assert stage.state.phase is phase
    commands = asks(stage)
    assert persisted(commands).kind == "rollback"
    assert sent(commands, m.Void, ada.peer)
    assert stage.state.round is None


def test_a_commit_under_way_is_decided_first() -> None:
    stage, ada = at_work()
    stage.accumulate()
    stage.offers(ada)
    stage.close()
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT
    assert not asks(stage)
    stage.persist()
    assert persisted(asks(stage)).index == 9


def test_pending_rollback_blocks_rounds_and_is_not_asked_twice() -> None:
    stage, ada = at_work()
    asks(stage)
    assert not [c for c in asks(stage) if isinstance(c, e.Persist)]
    for _ in range(30):
        stage.wait(1.0)
        stage.compute(ada)
    assert stage.state.phase is Phase.ACCUMULATE
    assert "rolled back to step 4" in stage.state.waiting


@pytest.mark.parametrize("outcome", ["committed", "stale"])
def test_then_another_host_has_the_run(outcome: Any) -> None:
    stage, _ = at_work()
    record = persisted(asks(stage))
    assert e.Abdicate() in stage.handle(e.Persisted(outcome, sealed(record)))


@pytest.mark.parametrize("outcome", ["failed", "refused"])
def test_where_nothing_was_written_it_goes_on_until_asked_again(outcome: Any) -> None:
    stage, _ = at_work()
    first = persisted(asks(stage))
    assert not stage.handle(e.Persisted(outcome))
    assert persisted(asks(stage)) == first


def test_while_paused() -> None:
    stage, _ = at_work(goal="paused")
    assert persisted(asks(stage, "paused")).kind == "rollback"


def test_a_finished_run_stays() -> None:
    stage, _ = at_work()
    stage.state.finished = True
    assert not asks(stage)


# --- the host after it


def test_peer_with_an_undone_step_is_not_at_the_head() -> None:
    stage = after_it()
    stage.relay()
    ada, old = stage.trainer("ada"), stage.trainer("old")
    old.index = 4
    stage.hello(old)
    assert not stage.member(old).reconciled
    stage.report(old, digest="0" * 16)
    assert not stage.member(old).counted[0]
    assert stage.member(ada).counted[0]
    assert not stage.state.digests, "nor does it vote"


def test_trainer_is_sent_the_entry_and_a_log_what_it_lacks() -> None:
    stage = after_it()
    ada = stage.trainer("ada")
    ada.index = ada.step = 5
    said = stage.hello(ada)
    assert [(c.first, c.count) for c in said if isinstance(c, e.Resend)] == [(8, 1)]
    stage.relay("relay", log_index=5)
    asked = [c for c in stage.said if isinstance(c, e.Resend) and c.peer == peer_of("relay")]
    assert [(c.first, c.count) for c in asked] == [(6, 3)]


def test_parts_left_out_of_undone_updates_are_not_carried() -> None:
    before, ada = at_work()
    update = before.commit()
    rollback = persisted(asks(before))
    facts: dict[str, Any] = {"last": (sealed(update), sealed(rollback)), "digest": "0" * 64}
    assert len(Stage(**{**facts, "last": (sealed(update),)}).state.inclusions) == 1
    stage = Stage(**facts)
    assert not stage.state.inclusions
    assert ada.person in stage.state.recent, "who lately helped may still vote"


def test_the_sealed_record_is_read_back() -> None:
    stage, _ = at_work()
    record = persisted(asks(stage))
    assert read_record(sealed(record)) == record

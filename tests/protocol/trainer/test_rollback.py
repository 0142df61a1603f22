"""A replica follows a rollback: it loads the state named in the log entry and drops everything undone."""

from typing import Any

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol import sealed
from peer_agent.protocol.log.records import Restored
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.state import Phase
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import SNAPSHOT, Stage, ready, record

AFTER = replace(SNAPSHOT, index=6, step=2)  # the state of step 2, at the log entry that goes back to it


def rollback(index: int = 6, step: int = 2, fence: int = 2) -> e.CommitHeard:
    head: Any = record(index, step=step, kind="rollback", restored=Restored(2, "0" * 64), spans=())
    return e.CommitHeard(sealed.OpenedRecord(head, "0" * 64, fence))


def new_host(stage: Stage, **changes: Any) -> m.Greeting:
    return stage.greeting(**({"fence": 2, "index": 6, "step": 2, "snapshot": AFTER, "reconciled": False} | changes))


def at_step_5() -> Stage:
    stage = ready(1, index=5)
    stage.hears(m.Rehello(run=RUN, fence=2))
    stage.hush()
    return stage


def goes_back(stage: Stage) -> None:
    load = stage.last(e.Load)
    assert load.snapshot == AFTER
    assert stage.core.phase is Phase.LOADING
    assert not stage.core.done
    assert stage.did(e.Renew), "what was accumulated is gone"
    stage.handle(e.Loaded(load.job, "c" * 16))
    assert (stage.core.index, stage.core.step, stage.core.phase) == (6, 2, Phase.ACCUMULATE)


def test_it_loads_the_snapshot_that_the_greeting_names() -> None:
    stage = at_step_5()
    accumulator = stage.core.accumulator
    stage.hears(new_host(stage))
    stage.handle(rollback())
    goes_back(stage)
    assert stage.core.accumulator != accumulator
    (returned,) = stage.heard(m.UnitsReturned)
    assert len(returned.units) == 1


def test_early_entry_prompts_a_hello_and_waits_for_the_greeting() -> None:
    stage = at_step_5()
    stage.core.unanswered = 0
    stage.handle(rollback())
    assert stage.heard(m.Hello)
    assert not stage.did(e.Load)
    assert stage.core.phase is Phase.FOLLOWING
    stage.hears(new_host(stage))
    goes_back(stage)


def test_one_that_is_behind_does_not_make_what_is_undone() -> None:
    stage = ready(index=3)
    stage.hears(m.Rehello(run=RUN, fence=2), new_host(stage))
    stage.handle(rollback())
    goes_back(stage)
    assert not stage.core.pending


def test_in_a_round() -> None:
    stage = at_step_5()
    stage.offers(fence=2)
    stage.hears(new_host(stage))
    stage.handle(rollback())
    goes_back(stage)


def test_what_was_applied_meanwhile_counts_for_nothing() -> None:
    stage = at_step_5()
    stage.hears_commit(6)
    apply = stage.last(e.Apply)
    stage.hears(new_host(stage, index=7, snapshot=replace(AFTER, index=7)))
    stage.handle(rollback(7))
    stage.handle(e.Applied(apply.job, "b" * 16))
    assert stage.core.phase is Phase.LOADING


def test_said_again_it_changes_nothing() -> None:
    stage = at_step_5()
    stage.hears(new_host(stage))
    stage.handle(rollback())
    goes_back(stage)
    stage.handle(rollback())
    assert stage.core.phase is Phase.ACCUMULATE
    assert not stage.did(e.Load)


def test_a_newcomer_that_loads_the_snapshot_of_after_goes_on() -> None:
    stage = Stage()
    stage.hears(m.Rehello(run=RUN, fence=2), new_host(stage))
    stage.handle(rollback())
    stage.handle(e.Loaded(stage.last(e.Load).job, "c" * 16))
    assert stage.core.phase is Phase.ACCUMULATE
    stage.handle(rollback())
    assert not stage.did(e.Load)


def test_one_that_was_loading_an_older_snapshot_loads_again() -> None:
    stage = Stage()
    stage.hears(m.Rehello(run=RUN, fence=1), stage.greeting(reconciled=False))
    stage.handle(rollback())
    assert not stage.did(e.Load), "it has no state yet"
    stage.hears(m.Snapshotted(run=RUN, snapshot=AFTER, keep_after=0))
    stage.handle(e.Loaded(stage.last(e.Load).job, "a" * 16))
    stage.handle(rollback())
    goes_back(stage)

"""Quotas are raised and quarantines overridden where a batch would take too long otherwise."""

import pytest

from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.coordinator.workers.batch import end_override
from peer_agent.protocol.timing import NEWCOMER_S, OVERRIDE_S, SILENT_S
from tests.protocol.coordinator.scenes import four
from tests.protocol.coordinator.stage import Stage, Trainer


def test_quotas_end_when_a_batch_takes_three_times_as_long() -> None:
    stage, honest, gone = four(same_person=False)
    for _ in range(5):
        stage.commit(*honest, gone)
    usual = stage.state.timings.batches[-1]
    alone = honest[0]
    begun = stage.now
    while stage.state.phase is Phase.ACCUMULATE:
        stage.wait(0.5)
        stage.compute(alone)
        assert stage.now - begun < SILENT_S, "not only when the others are silent"
    assert alone.samples >= 48, "it made the batch by itself"
    assert stage.now - begun >= 3 * usual


def test_quarantine_is_overridden_where_a_batch_needs_it() -> None:
    stage = Stage(batch=24)
    stage.relay()
    alone = stage.trainer("ann")
    stage.commit()
    stage.accumulate()
    stage.offer(alone, loss_tokens=10**9)
    stage.close()
    stage.wait(2)
    assert alone.undone
    assert stage.commit().step == 2


def _at_work_between_rounds(stage: Stage, boaster: Trainer, seconds: float) -> list[float]:
    """Let a machine finish its leased units instantly but offer nothing. Return how long the other machines work
    between rounds.
    """
    pauses, end, since = [], stage.now + seconds, stage.now
    while stage.now < end:
        before = stage.state.phase
        stage.compute(boaster, 100)
        stage.wait(0.5)
        if before is Phase.ACCUMULATE and stage.state.phase is not before:
            pauses.append(stage.now - since)
        elif stage.state.phase is Phase.ACCUMULATE and before is not Phase.ACCUMULATE:
            since = stage.now
    return pauses


def test_boaster_without_offers_leaves_newcomers_time_for_a_unit() -> None:
    """Newcomers of unknown speed are not expected to fill the batch. Each cut costs them the unit in progress."""
    stage = Stage(batch=16)
    stage.relay()
    boaster, newcomer = stage.trainer("bob"), stage.trainer("ann")
    pauses = _at_work_between_rounds(stage, boaster, 600)
    assert len(pauses) >= 4
    assert pauses[-1] >= 30, "longer and longer"
    assert newcomer.undone, "it is leased work meanwhile"


def test_whoever_is_all_there_is_is_called_back_at_once() -> None:
    stage = Stage(batch=16)
    stage.relay()
    pauses = _at_work_between_rounds(stage, stage.trainer("bob"), 600)
    assert stage.state.rounds >= 5
    assert max(pauses) <= 4


@pytest.mark.parametrize(("failures", "waits_s"), [(0, 2 * OVERRIDE_S), (1, 4 * OVERRIDE_S), (5_000, NEWCOMER_S)])
def test_override_that_led_to_no_update_is_delayed_for_longer_each_time(failures: int, waits_s: float) -> None:
    state = Stage().state
    state.now, state.override.is_on, state.override.failures = 100.0, True, failures
    end_override(state)
    assert state.override.not_before == 100.0 + waits_s

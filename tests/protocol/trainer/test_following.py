"""A replica gets its state and follows the log, even if messages are lost, late or repeated."""

from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer import following
from peer_agent.protocol.trainer.following import ASK_AGAIN_S
from peer_agent.protocol.trainer.speaking import HEARTBEAT_S
from peer_agent.protocol.trainer.state import Phase
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import ELEMENTS, RECIPE, SNAPSHOT, Stage, commit, greeting, ready, record, unit, void

REHELLO = m.Rehello(run=RUN, fence=1)


def newer(index: int) -> m.Snapshotted:
    return m.Snapshotted(run=RUN, snapshot=replace(SNAPSHOT, index=index, step=index), keep_after=0)


# --- joining


def test_it_loads_says_hello_and_is_judged_before_it_works() -> None:
    stage = Stage()
    stage.hears(REHELLO, greeting(reconciled=False))
    assert stage.heard(m.Hello)[-1].step == -1
    assert stage.last(e.Load).snapshot == SNAPSHOT
    stage.lease(0)
    assert stage.core.undone == (), "it holds nothing yet"
    stage.handle(e.Loaded(stage.last(e.Load).job, "a" * 16))
    hello = stage.heard(m.Hello)[-1]
    assert (hello.step, hello.log_index, hello.digest) == (0, 0, "a" * 16)
    stage.hears(greeting())
    assert stage.did(e.Say)
    stage.lease(0)
    assert stage.did(e.Compute)


def test_a_greeting_that_is_said_twice_loads_once() -> None:
    stage = Stage()
    stage.hears(REHELLO, greeting(), greeting())
    assert sum(isinstance(action, e.Load) for action in stage.asked) == 1


def test_a_snapshot_that_is_gone_is_asked_about() -> None:
    stage = Stage()
    stage.hears(REHELLO, greeting())
    stage.handle(e.LoadFailed(stage.last(e.Load).job))
    assert stage.core.phase is Phase.ABSENT
    assert [type(message) for message in stage.said] == [m.Hello, m.Reaches] * 2
    stage.hears(greeting(snapshot=replace(SNAPSHOT, index=4, step=4), index=4, step=4))
    assert stage.last(e.Load).snapshot.index == 4


def test_old_snapshot_is_caught_up_before_leases_are_judged() -> None:
    stage = Stage()
    stage.hears(REHELLO, greeting(index=2, step=2))
    stage.handle(e.Loaded(stage.last(e.Load).job, "a" * 16))
    assert stage.core.phase is Phase.FOLLOWING
    stage.hears(greeting(index=2, step=2, reconciled=False))
    stage.hush()
    stage.hears_commit(1)
    stage.hears_commit(2)
    stage.applies()
    assert stage.said == []
    stage.applies()
    assert [hello.step for hello in stage.heard(m.Hello)] == [2]
    assert str(stage.core.phase) == "accumulate"


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": encode_recipe(replace(RECIPE, seed=7))},
        {"elements": ELEMENTS + 1},
        {"shards": (m.Shard("0" * 64, 9),)},
    ],
)
def test_another_run_under_the_same_name_is_the_end(change: dict[str, Any]) -> None:
    stage = ready()
    stage.hears(REHELLO, greeting(**change))
    assert stage.actions == [e.Quit(stage.last(e.Quit).fault)]
    assert stage.last(e.Quit).fault is not None
    assert stage.last(e.Quit).fault.code == "E128"  # type: ignore[union-attr]


def test_a_run_that_is_made_longer_or_mixed_anew_is_the_same() -> None:
    stage = ready()
    stage.hears(
        REHELLO, greeting(recipe=encode_recipe(replace(RECIPE, target_steps=RECIPE.target_steps + 1, mix=(1.0, 2.0))))
    )
    assert not stage.did(e.Quit)


def test_a_recipe_that_is_none_is_the_end() -> None:
    stage = Stage()
    stage.hears(REHELLO, greeting(recipe=b"{"))
    assert stage.last(e.Quit).fault.code == "E140"  # type: ignore[union-attr]


# --- records


def test_an_update_settles_what_is_in_it_and_is_reported_at_once() -> None:
    stage = ready(0)
    stage.lease(1)
    stage.offers()
    stage.plans()
    stage.hush()
    stage.commits(1, own=stage.contribution())
    settled, made, *rest = stage.actions
    assert isinstance(settled, e.Settle)
    assert isinstance(made, e.Made)
    assert [type(action) for action in rest] == [e.Say, e.Compute]
    (report,) = stage.heard(m.Report)
    assert (report.step, report.index, report.digest, report.done, report.undone) == (1, 1, "b" * 16, (), 1)
    assert stage.core.round is None


def test_update_of_a_former_accumulator_leaves_this_one_alone() -> None:
    stage = ready(0)
    stage.offers()
    stage.plans()
    before = stage.core.done
    stage.commits(1, own=stage.contribution() | {"accumulator": "f" * 32})
    assert stage.did(e.Release)
    assert not stage.did(e.Settle)
    assert stage.core.done == before


def test_a_state_that_is_just_changing_is_not_spoken_of() -> None:
    """A report sent during an update would list the old step's work under the new step, and would count as a lie."""
    stage = ready(0)
    stage.hears_commit(1)
    (report,) = stage.waits(HEARTBEAT_S)
    assert isinstance(report, m.Report)
    assert (report.step, report.index, report.digest, len(report.done)) == (0, 0, "a" * 16, 1)


def test_a_commit_that_is_said_twice_changes_nothing() -> None:
    stage = ready(0)
    stage.hears_commit(1)
    stage.hears_commit(1)
    assert stage.actions == []
    stage.applies()
    stage.hears_commit(1)
    assert stage.actions == []


def test_results_of_what_was_abandoned_are_ignored() -> None:
    stage = ready()
    stage.hears_commit(1)
    job = stage.last(e.Apply).job
    stage.hears(m.Reload(run=RUN, step=0))
    for late_step in (e.Applied(job, "b" * 16), e.BytesMissing(job)):
        stage.handle(late_step)
        assert stage.actions == []
    load = stage.last(e.Load).job
    stage.handle(e.Loaded(load, "a" * 16))
    for late in (e.Loaded(load, "c" * 16), e.LoadFailed(load)):
        stage.handle(late)
        assert stage.actions == []


def test_late_result_of_a_job_is_not_taken_for_a_newer_one() -> None:
    stage = ready()
    stage.hears_commit(1)
    first = stage.last(e.Apply).job
    stage.hears(m.Reload(run=RUN, step=0))
    load = stage.last(e.Load).job
    stage.handle(e.LoadFailed(load))
    stage.hears(greeting())
    for late_load in (e.Loaded(load, "c" * 16), e.LoadFailed(load)):
        stage.handle(late_load)
        assert (stage.actions, stage.core.phase) == ([], Phase.LOADING)
    stage.handle(e.Loaded(stage.last(e.Load).job, "a" * 16))
    stage.hears_commit(1)
    for late in (e.Applied(first, "b" * 16), e.BytesMissing(first)):
        stage.handle(late)
        assert (stage.actions, stage.core.phase) == ([], Phase.APPLYING)


def test_missed_commits_are_noticed_and_told_of_by_the_report() -> None:
    stage = ready()
    stage.lease(0)
    for index in (3, 4, 5):
        stage.hears_commit(index)
    assert [report.index for report in stage.heard(m.Report)] == [0], "once, however many come"
    assert stage.core.phase is Phase.FOLLOWING
    assert stage.core.in_hand is None, "on an old step nothing is computed"
    assert stage.waits(HEARTBEAT_S)[0].index == 0  # type: ignore[attr-defined]
    for index in (1, 2):
        stage.hears_commit(index)
    for _ in range(5):
        stage.applies()
    assert (stage.core.index, stage.core.phase, stage.core.pending) == (5, Phase.ACCUMULATE, {})
    assert stage.did(e.Compute)


def test_no_more_records_wait_than_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PENDING", 2)
    stage = ready()
    for index in (2, 3, 4, 1):
        stage.hears_commit(index)
    assert sorted(stage.core.pending) == [1, 2, 3]
    for _ in range(3):
        stage.applies()
    assert stage.core.index == 3
    assert stage.core.phase is Phase.FOLLOWING, "it knows of the fourth, and its words say where it is"


def test_commit_before_any_state_only_moves_the_head() -> None:
    stage = Stage()
    stage.hears(REHELLO, greeting())
    stage.hears_commit(1)
    assert stage.actions == []
    stage.handle(e.Loaded(stage.last(e.Load).job, "a" * 16))
    assert stage.core.phase is Phase.FOLLOWING


def test_copy_is_handed_in_and_hashed_at_the_requested_step() -> None:
    stage = ready()
    stage.commits(1, snapshot=True, hash_state=True)
    assert [a for a in stage.actions if isinstance(a, e.HandIn | e.HashState)] == [e.HashState(1, 1), e.HandIn(1, 1)]
    stage.handle(e.Hashed(1, 1, "f" * 64, 9))
    assert stage.heard(m.StateHash) == [m.StateHash(run=RUN, index=1, step=1, sha256="f" * 64, size=9)]
    stage.hears_commit(1, snapshot=True)
    assert stage.actions == [e.HandIn(1, 1)], "asked again of a replica that has applied it"


def test_a_copy_is_made_before_the_next_record_is_applied() -> None:
    stage = ready()
    stage.hears_commit(1)
    stage.hears_commit(2)
    stage.hears_commit(1, snapshot=True)
    stage.applies()
    kinds = [type(action) for action in stage.actions]
    assert kinds.index(e.HandIn) < kinds.index(e.Apply)
    stage.hears_commit(1, snapshot=True)
    assert stage.actions == [], "a step too late"


# --- bytes that no relay has


def test_missing_bytes_are_retried_and_a_trouble_until_they_come() -> None:
    stage = ready()
    stage.hears_commit(1)
    for _ in range(3):
        stage.handle(e.BytesMissing(stage.last(e.Apply).job))
        assert stage.core.phase is Phase.LACKING
        stage.waits(ASK_AGAIN_S - 0.1)
        assert not stage.did(e.Apply)
        stage.waits(0.1)
        assert stage.did(e.Apply)
    assert {action.fault.code for action in stage.asked if isinstance(action, e.Began)} == {"E114"}
    stage.applies()
    assert stage.last(e.Ended).codes == ("E114",)
    assert stage.core.phase is Phase.ACCUMULATE


def test_bytes_covered_by_a_newer_snapshot_are_no_trouble() -> None:
    stage = ready()
    stage.hears_commit(1)
    stage.hears(newer(5))
    stage.handle(e.BytesMissing(stage.last(e.Apply).job))
    assert stage.last(e.Load).snapshot.index == 5
    assert not any(isinstance(action, e.Began) for action in stage.asked)


def test_a_newer_snapshot_leads_past_missing_bytes() -> None:
    stage = ready(0)
    stage.lease(1)
    stage.hears_commit(1)
    stage.handle(e.BytesMissing(stage.last(e.Apply).job))
    stage.hears(newer(5))
    assert stage.last(e.Load).snapshot.index == 5
    assert stage.heard(m.UnitsReturned)[-1].units == (unit(0), unit(1)), "others may do it meanwhile"
    stage.handle(e.Loaded(stage.last(e.Load).job, "a" * 16))
    assert "E114" in stage.last(e.Ended).codes
    assert (stage.core.step, stage.core.index) == (5, 5)


def test_what_a_known_snapshot_covers_is_not_waited_for() -> None:
    stage = ready()
    stage.hears(newer(5))
    assert not stage.did(e.Load), "records lead on from here"
    stage.hears_commit(1)
    assert not stage.last(e.Apply).patient
    stage.handle(e.BytesMissing(stage.last(e.Apply).job))
    assert stage.did(e.Load)


def test_an_older_snapshot_is_not_a_newer_one() -> None:
    stage = ready(index=3)
    stage.hears(newer(5), newer(2))
    assert stage.core.snapshot is not None
    assert stage.core.snapshot.index == 5
    stage.hears_commit(4)
    stage.core.snapshot = newer(2).snapshot
    stage.handle(e.BytesMissing(stage.last(e.Apply).job))
    assert stage.core.phase is Phase.LACKING


# --- a replica that differs, a site that knows less


def test_differing_replica_starts_over_once_per_reload() -> None:
    stage = ready(0, index=2)
    accumulator = stage.core.accumulator
    told = m.Reload(run=RUN, step=2)
    stage.hears(told)
    assert stage.last(e.Began).fault.code == "E109"
    assert (stage.core.step, stage.core.index, stage.core.done) == (-1, -1, ())
    assert stage.core.accumulator != accumulator
    stage.hears(told)
    assert stage.actions == []
    stage.handle(e.Loaded(stage.last(e.Load).job, "a" * 16))
    assert "E109" in stage.last(e.Ended).codes
    for index in (1, 2):
        stage.commits(index)
    stage.hears(told)
    assert stage.actions == [], "said twice"
    stage.commits(3)
    stage.hears(m.Reload(run=RUN, step=3))
    assert stage.did(e.Load)


def test_restored_site_is_followed_after_one_numbered_error() -> None:
    stage = ready(0, index=3)
    stage.hears(m.Rehello(run=RUN, fence=2), greeting(fence=2, index=1, step=1, reconciled=False))
    assert stage.last(e.Began).fault.code == "E142"
    assert stage.did(e.Load)
    stage.handle(e.Loaded(stage.last(e.Load).job, "a" * 16))
    assert "E142" in stage.last(e.Ended).codes
    stage.commits(1, fence=2)
    assert stage.core.phase is Phase.ACCUMULATE


def test_a_replica_of_another_branch_loads_a_snapshot() -> None:
    """The site was restored and went on without this machine, past its last entry."""
    stage = ready(0, index=3)
    stage.hears(m.Rehello(run=RUN, fence=2), greeting(fence=2, index=9, step=9, reconciled=False))
    stage.handle(e.CommitHeard(replace(commit(4, fence=2), record=record(4, previous="1" * 64))))
    assert stage.last(e.Began).fault.code == "E142"
    assert stage.did(e.Load)


def test_also_if_it_has_as_many_entries_as_the_site() -> None:
    stage = ready(0, index=3)
    newer = replace(SNAPSHOT, digest="2" * 64)
    known = {"index": 3, "step": 3, "digest": "1" * 64, "snapshot": newer}
    stage.hears(m.Rehello(run=RUN, fence=2), greeting(fence=2, reconciled=False, **known))
    assert stage.last(e.Began).fault.code == "E142"
    assert stage.did(e.Load)


def test_snapshot_that_the_site_names_is_not_loaded_again() -> None:
    """Otherwise a replica would load it for ever if the site's rows disagreed."""
    stage = ready(0, index=0)
    stage.hears(m.Rehello(run=RUN, fence=2), greeting(fence=2, digest="1" * 64, reconciled=False))
    assert not stage.did(e.Load)


def test_a_record_of_a_newer_branch_takes_the_place_of_a_pending_one() -> None:
    stage = ready(0, index=3)
    stage.hears_commit(5)
    newer = replace(commit(5, fence=2), record=record(5, fence=2), digest="2" * 64)
    stage.handle(e.CommitHeard(newer))
    assert stage.core.pending[5] == newer
    stage.hears_commit(5)
    assert stage.core.pending[5] == newer


def test_an_old_greeting_of_the_same_host_is_no_restored_site() -> None:
    """The host sent the greeting before a commit that this replica has already applied. The greeting is late or
    repeated.
    """
    stage = ready(index=1)
    stage.hears(greeting())
    assert stage.actions == []
    stage.hears(m.Rehello(run=RUN, fence=2))
    stage.commits(2, fence=2)
    stage.hears(greeting(fence=2, index=1, step=1))
    assert stage.actions == [], "heard of from the new host"


def test_old_greeting_of_a_host_that_greeted_before_is_ignored() -> None:
    stage = ready(index=1)
    stage.hears(greeting(fence=2, index=1, step=1))
    stage.commits(2, fence=2)
    stage.hears(greeting(fence=2, index=1, step=1))
    assert not stage.did(e.Load)


# --- what was lost


def test_round_with_lost_void_and_plan_ends_with_its_commit() -> None:
    stage = ready(0)
    stage.offers()
    stage.hush()
    stage.commits(1)
    assert stage.core.round is None
    assert next(type(action) for action in stage.actions) is e.Release
    assert stage.core.done == (m.DoneUnit(unit(0), 0),), "it was left out"
    stage.hears(void())
    assert stage.actions == []


def test_a_commit_of_a_host_that_is_gone_is_a_fact_all_the_same() -> None:
    stage = ready()
    stage.hears(m.Rehello(run=RUN, fence=9))
    stage.commits(1, fence=1)
    assert stage.core.index == 1
    assert stage.core.fence == 9
    assert commit(1).fence == 1

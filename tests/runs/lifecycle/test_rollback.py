"""What a run can go back to, and that it is wanted once."""

import hashlib
from collections.abc import Callable

import pytest

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import storage
from runs.lifecycle.services import ask_rollback, end_run, finish_run, rollback_targets
from runs.models import Run, Snapshot
from runs.snapshots.retention import thin_snapshots
from runs.snapshots.state_check import restate
from runs.timeline import trail_of
from tests.runs.factories import Owned, committed, state_bytes, state_file


@pytest.fixture
def trained(run: Run, laptop: Owned) -> Run:
    """Six steps, with a snapshot at each second."""
    for step in range(1, 7):
        committed(run, (laptop.machine, 4))
        if step % 2 == 0:
            kept(run, step)
    return run


def kept(run: Run, step: int, **changes: object) -> Snapshot:
    content = state_bytes(step=step, index=step, log_digest="d" * 64)
    file = hashlib.sha256(content).hexdigest()
    storage.snapshot_path(run, file).write_bytes(content)
    facts = {"state_digest": "5" * 16, "file": file, "size": len(content), "state": Snapshot.State.VERIFIED}
    return Snapshot.objects.create(run=run, index=step, step=step, **{**facts, **changes})


def test_verified_states_before_the_present_one(trained: Run) -> None:
    assert [row.step for row in rollback_targets(trained)] == [4, 2, 0]


@pytest.mark.parametrize(
    "change", [{"state": Snapshot.State.ADMITTED}, {"is_stored": False}, {"is_undone": True}], ids=str
)
def test_nothing_else(trained: Run, change: dict[str, object]) -> None:
    trained.snapshots.filter(index=4).update(**change)
    assert [row.step for row in rollback_targets(trained)] == [2, 0]
    with pytest.raises(Problem, match="E412"):
        ask_rollback(run=trained, index=4)


def test_nor_what_has_lost_its_file(trained: Run) -> None:
    storage.snapshot_path(trained, trained.snapshots.get(index=4).file).unlink()
    assert [row.step for row in rollback_targets(trained)] == [2, 0]
    with pytest.raises(Problem, match="E412"):
        ask_rollback(run=trained, index=4)


def test_it_is_wanted_once_and_stands_in_the_trail(trained: Run, organizer: Person) -> None:
    ask_rollback(run=trained, index=4, by=organizer)
    ask_rollback(run=trained, index=4, by=organizer)
    trained.refresh_from_db()
    assert trained.rollback_index == 4
    assert [line.text for line in trail_of(trained)] == ["Amina is rolling the run back to step 4."]
    with pytest.raises(Problem, match=r"E412: .*being rolled back"):
        ask_rollback(run=trained, index=2, by=organizer)


@pytest.mark.parametrize("state", [Run.State.DRAFT, Run.State.PREPARING, Run.State.FINISHING, Run.State.FINISHED])
def test_a_run_that_is_not_under_way_stays(trained: Run, state: Run.State) -> None:
    Run.objects.update(state=state)
    with pytest.raises(Problem, match=f"E412: .*{state}"):
        ask_rollback(run=trained, index=4)


def test_nor_one_that_is_ending(trained: Run) -> None:
    end_run(run=trained)
    with pytest.raises(Problem, match="E412"):
        ask_rollback(run=trained, index=4)


def test_a_paused_one_may(trained: Run) -> None:
    Run.objects.update(state=Run.State.PAUSED)
    ask_rollback(run=trained, index=4)


@pytest.mark.parametrize("ends", [lambda run: end_run(run=run), lambda run: kept_from_finishing(run=run)])
def test_until_it_is_done_the_run_does_not_end(trained: Run, ends: Callable[[Run], None]) -> None:
    ask_rollback(run=trained, index=4)
    with pytest.raises(Problem, match="E412"):
        ends(trained)


def kept_from_finishing(*, run: Run) -> None:
    if not finish_run(run=run):
        raise Problem.of("E412", reason="the next host goes on")


def test_what_is_wanted_is_not_thinned_out(trained: Run) -> None:
    for step in range(7, 60):
        kept(trained, step)
    ask_rollback(run=trained, index=4)
    trained.refresh_from_db()
    thin_snapshots(trained.pk, now=4e9)
    assert trained.snapshots.get(index=4).is_stored


def test_a_state_at_another_place_has_the_bytes_a_replica_would_hand_in(trained: Run, tmp_path) -> None:  # type: ignore[no-untyped-def]
    source = state_file(tmp_path / "source", step=4, index=4, log_digest="d" * 64)
    made = restate(source, tmp_path / "target", step=4, index=123456, log_digest="e" * 64)
    expected = state_bytes(step=4, index=123456, log_digest="e" * 64)
    assert (tmp_path / "target").read_bytes() == expected
    assert made == (hashlib.sha256(expected).hexdigest(), len(expected))

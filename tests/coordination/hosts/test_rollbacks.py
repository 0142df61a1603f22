"""Rollback of a run to a snapshot: one transaction, applied once, on every database."""

import hashlib

import pytest
from django.db import transaction

from coordination import store
from coordination.hosts import claims
from coordination.models import Election
from coordination.snapshots import as_message, elect_keeper, news_of
from peer_agent.protocol.coordinator.events import Directed, Persist, Target
from peer_agent.protocol.coordinator.rollback import roll_back
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Record, Unit, digest_of
from runs import storage
from runs.ledger.audit import audit
from runs.models import Head, LogEntry, Run, Snapshot
from runs.selectors import best_snapshot, heldout_points, loss_points
from tests.coordination.example_run import (
    UNIT,
    Example,
    books,
    everything,
    example_run,
    next_record,
    require_equal_books,
    sealed,
)
from tests.runs.factories import state_bytes

UNITS = [UNIT, *(Unit(0, 0, 2 * n, 2 * n + 2) for n in range(1, 12))]


@pytest.fixture
def example(database: str) -> Example:
    found = example_run()
    claims.claim(found.run, "host")
    for step in range(1, 6):
        steps_on(found)
        if step in (2, 4):
            snapshot_at(found.run, heldout_loss=6.0 - step)
    return found


def steps_on(example: Example) -> None:
    used = LogEntry.objects.filter(kind="update").count()
    record = next_record(example.run, (example.teo, (UNITS[used],)))
    assert store.commit(example.run, sealed(record), record, duration_s=1.0, attempts=1) == "committed"
    example.run.refresh_from_db()
    example.run.head.refresh_from_db()


def snapshot_at(run: Run, *, heldout_loss: float) -> Snapshot:
    head = Head.objects.get(run=run)
    content = state_bytes(step=head.step, index=head.index, log_digest=head.digest)
    file = hashlib.sha256(content).hexdigest()
    storage.snapshot_path(run, file).write_bytes(content)
    return Snapshot.objects.create(
        run=run,
        index=head.index,
        step=head.step,
        digest=head.digest,
        state_digest="5" * 16,
        file=file,
        size=len(content),
        state=Snapshot.State.VERIFIED,
        heldout_loss=heldout_loss,
    )


def wish(run: Run, index: int = 2) -> Record:
    """Request a rollback as the organizer does. Return the coordinator's record of the rollback."""
    Run.objects.filter(pk=run.pk).update(rollback_index=index)
    run.refresh_from_db()
    directed = store.directed(run)
    assert isinstance(directed, Directed)
    assert isinstance(directed.back_to, Target)
    commands = roll_back(store.load(Run.objects.get(pk=run.pk), Head.objects.get(run=run).fence), directed.back_to)
    (record,) = [command.record for command in commands if isinstance(command, Persist)]
    return record


def go_back(run: Run, record: Record) -> str:
    outcome = store.roll_back(run, sealed(record), record)
    run.refresh_from_db()
    run.head.refresh_from_db()
    return outcome


def test_head_log_and_snapshot_move_together(example: Example) -> None:
    run = example.run
    record = wish(run)
    assert go_back(run, record) == "committed"
    head = Head.objects.get(run=run)
    assert (head.index, head.step, head.digest) == (6, 2, digest_of(sealed(record)))
    assert run.rollback_index is None
    entry = LogEntry.objects.get(index=6)
    assert (entry.kind, entry.step, entry.peers) == ("rollback", 2, 0)
    assert list(LogEntry.objects.filter(is_undone=True).values_list("index", flat=True)) == [3, 4, 5]
    assert run.activity.filter(text__startswith="Rolled back to step 2: the 3 steps after it are undone.").exists()


def test_its_state_is_that_of_the_snapshot_at_a_place_of_its_own(example: Example) -> None:
    run = example.run
    before = run.snapshots.get(index=2)
    record = wish(run)
    go_back(run, record)
    newest = run.snapshots.order_by("-index").first()
    assert newest is not None
    assert (newest.index, newest.step, newest.state, newest.heldout_loss) == (6, 2, "verified", 4.0)
    assert (newest.state_digest, newest.created_at) == (before.state_digest, before.created_at)
    expected = state_bytes(step=2, index=6, log_digest=digest_of(sealed(record)))
    assert storage.snapshot_path(run, newest.file).read_bytes() == expected
    assert newest.size == len(expected)
    assert hashlib.sha256(expected).hexdigest() == newest.file
    assert news_of(run).snapshot == as_message(newest)
    assert news_of(run).verified == 6


def test_the_next_host_begins_from_there(example: Example) -> None:
    run = example.run
    go_back(run, wish(run))
    state = store.load(Run.objects.get(pk=run.pk), 2)
    assert (state.index, state.step, state.rolled_back, state.snapshot.index) == (6, 2, 6, 6)
    assert store.directed(run).back_to is None
    steps_on(example)
    assert (run.head.index, run.head.step) == (7, 3)


def test_credit_is_taken_back_but_what_was_used_is_not_used_again(example: Example) -> None:
    run = example.run
    given, covered = books(run), list(run.coverage.values_list("ranges", flat=True))
    go_back(run, wish(run))
    assert books(run) == given
    assert run.totals.get().samples == 4
    assert list(run.ledger.exclude(reverses=None).values_list("step", "samples")) == [(3, -2), (4, -2), (5, -2)]
    assert run.activity.filter(text__endswith="6 samples no longer count.").exists()
    assert list(run.coverage.values_list("ranges", flat=True)) == covered
    require_equal_books(run)
    steps_on(example)
    assert audit(run)["faults"] == []


def test_the_curve_and_the_best_snapshot_are_those_of_the_model(example: Example) -> None:
    run = example.run
    assert best_snapshot(run) == run.snapshots.get(index=4)
    go_back(run, wish(run))
    assert [point.step for point in loss_points(run)] == [1, 2]
    assert [(point.place, point.step) for point in heldout_points(run)] == [(6, 2)]
    assert best_snapshot(run) == run.snapshots.get(index=6)
    steps_on(example)
    assert [point.step for point in loss_points(run)] == [1, 2, 3]


def test_a_digest_is_noted_at_the_step_that_is_in_the_model(example: Example) -> None:
    run = example.run
    go_back(run, wish(run))
    steps_on(example)
    store.agree(run, 3, "7" * 16)
    noted = LogEntry.objects.filter(step=3).order_by("index").values_list("state_digest", flat=True)
    assert list(noted) == ["", "7" * 16]


def test_saying_it_again_after_an_unknown_answer_changes_nothing(example: Example) -> None:
    run = example.run
    record = wish(run)
    go_back(run, record)
    before = everything(run), run.snapshots.count(), run.activity.count()
    assert go_back(run, record) == "committed"
    assert (everything(run), run.snapshots.count(), run.activity.count()) == before


def test_a_wish_that_was_taken_back_is_not_fulfilled(example: Example) -> None:
    run = example.run
    record = wish(run)
    Run.objects.filter(pk=run.pk).update(rollback_index=None)
    before = everything(run)
    assert go_back(run, record) == "refused"
    assert everything(run) == before
    assert not LogEntry.objects.filter(is_undone=True)


def test_a_wish_for_what_was_undone_is_forgotten(example: Example) -> None:
    """If the request were kept, the host would retry the rollback every second."""
    run = example.run
    record = wish(run)
    run.snapshots.filter(index=2).update(is_undone=True)
    assert go_back(run, record) == "failed"
    assert run.rollback_index is None


def test_another_host_has_the_run(example: Example) -> None:
    run = example.run
    record = wish(run)
    Head.objects.filter(run=run).update(fence=9)
    assert go_back(run, record) == "stale"
    assert run.rollback_index == 2, "it is for the other to do"


def test_a_file_that_is_gone_is_told_once(example: Example) -> None:
    run = example.run
    record = wish(run)
    storage.snapshot_path(run, run.snapshots.get(index=2).file).unlink()
    assert go_back(run, record) == "refused"
    assert run.rollback_index is None
    assert run.activity.filter(kind="failed", text__contains="E413").count() == 1


def test_what_was_still_to_come_of_undone_steps_is_not_awaited(example: Example) -> None:
    run = example.run
    elect_keeper(run, peer=PeerId("0a" * 16), index=5, step=5)
    go_back(run, wish(run))
    assert not Election.objects.filter(run=run)
    assert store.last_index(run) == 6


def test_back_to_the_first_state_and_twice(example: Example) -> None:
    run = example.run
    go_back(run, wish(run))
    steps_on(example)
    assert go_back(run, wish(run, 6)) == "committed"
    assert (run.head.index, run.head.step) == (8, 2)
    assert [point.step for point in loss_points(run)] == [1, 2]
    assert go_back(run, wish(run, 0)) == "committed"
    assert (run.head.index, run.head.step) == (9, 0)
    assert loss_points(run) == []
    assert audit(run)["faults"] == []


def test_rollback_that_the_database_has_lost_is_carried_out_again(example: Example) -> None:
    """The backup is older than the rollback, and a relay hands in the rollback's record (rule 16)."""
    run = example.run
    with transaction.atomic():
        record = wish(run)
        go_back(run, record)
        before = everything(run)
        transaction.set_rollback(True)
    assert Head.objects.get(run=run).index == 5
    assert store.adopt(run, Head.objects.get(run=run).fence, [sealed(record)]) == 1
    assert everything(run) == before
    newest = run.snapshots.order_by("-index").first()
    assert newest is not None
    assert (newest.index, newest.step) == (6, 2)
    assert storage.snapshot_path(run, newest.file).exists()

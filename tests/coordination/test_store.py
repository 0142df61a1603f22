"""The contract of the store: a commit is one transaction, and after a lost answer only the row tells whether it
happened."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from msgspec.structs import replace

from accounts.models import Machine
from coordination import store
from coordination.hosts import claims
from coordination.snapshots import news_of
from notices.models import Event, Notice, Way
from notices.services import choose
from peer_agent.protocol.averaged import averaged_bytes
from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.coordinator.leases import LeaseBook
from peer_agent.protocol.log.records import GENESIS, Entry, Record, Unit, digest_of
from peer_agent.protocol.messages import Snapshot as SnapshotMessage
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.text.recipe import samples_in
from runs import timeline
from runs.ledger import audit as auditing
from runs.ledger.audit import audit
from runs.ledger.records import sealed_of, settled_units
from runs.lifecycle.services import pause_run, resume_run
from runs.models import ActivityLine, Head, LeaseMark, LedgerEntry, LogEntry, MachineTotal, Run, SealedRecord, Snapshot
from runs.selectors import steps as steps_of
from tests.coordination.engines import in_other_thread
from tests.coordination.example_run import (
    ACCUMULATOR,
    UNIT,
    Example,
    everything,
    example_run,
    next_record,
    require_equal_books,
    sealed,
)
from tests.runs.factories import RECIPE, opened

SECOND = Unit(0, 0, 2, 4)
Commit = Callable[..., store.Outcome]


@pytest.fixture
def example(database: str) -> Example:
    found = example_run()
    claims.claim(found.run, "host")
    return found


def commit(run: Run, record: Record, by: Commit = store.commit) -> store.Outcome:
    return by(run, sealed(record), record, duration_s=1.5, attempts=2)


def steps(example: Example, *rounds: tuple[Unit, ...]) -> list[Record]:
    """Commit one step for each of these rounds. All their units belong to Teo."""
    records = []
    for units in rounds:
        records.append(next_record(example.run, (example.teo, units)))
        assert commit(example.run, records[-1]) == "committed"
    return records


class TestCommit:
    def test_head_log_and_ledger_move_together(self, example: Example) -> None:
        record = next_record(example.run, (example.teo, (UNIT,)), (example.noor, (SECOND,)))
        assert commit(example.run, record) == "committed"
        head, entry = Head.objects.get(), LogEntry.objects.get()
        assert (head.index, head.step, head.digest) == (1, 1, digest_of(sealed(record)))
        assert (entry.index, entry.peers, entry.samples, entry.attempts) == (1, 2, 4, 2)
        given = averaged_bytes(record)
        assert (entry.learning_rate, entry.bytes_averaged) == (record.scalars.learning_rate, sum(given.values()))
        rows = LedgerEntry.objects.values_list("machine", "person__username", "samples", "weight")
        assert sorted(row[1:] for row in rows) == [("Noor", 2, 14), ("Teo", 2, 14)]
        require_equal_books(example.run)

    def test_saying_it_again_after_an_unknown_answer_changes_nothing(self, example: Example) -> None:
        record = next_record(example.run, (example.teo, (UNIT,)))
        commit(example.run, record)
        before = everything(example.run)
        assert commit(example.run, record) == "committed"
        assert everything(example.run) == before

    def test_also_when_the_log_has_gone_on(self, example: Example) -> None:
        first, _ = steps(example, (UNIT,), (SECOND,))
        assert commit(example.run, first) == "committed"
        assert LogEntry.objects.count() == 2

    def test_another_record_of_the_same_index_is_stale(self, example: Example) -> None:
        rival = next_record(example.run, (example.noor, (SECOND,)))
        steps(example, (UNIT,))
        before = everything(example.run)
        assert commit(example.run, rival) == "stale"
        assert everything(example.run) == before

    @pytest.mark.parametrize(
        "change", [{"previous": "e" * 64}, {"index": 3}, {"step": 3}], ids=["previous", "index", "step"]
    )
    def test_a_record_that_does_not_follow_the_head_changes_nothing(
        self, example: Example, change: dict[str, Any]
    ) -> None:
        steps(example, (UNIT,))
        before = everything(example.run)
        assert commit(example.run, next_record(example.run, (example.teo, (SECOND,)), **change)) != "committed"
        assert everything(example.run) == before

    def test_a_stale_fence_changes_nothing(self, example: Example) -> None:
        deposed_changes_nothing(example, store.commit)

    def test_failed_commit_leaves_nothing_and_can_be_repeated(
        self, example: Example, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record, before = next_record(example.run, (example.teo, (UNIT,))), everything(example.run)
        with monkeypatch.context() as patch:
            patch.setattr(LedgerEntry.objects, "bulk_create", failing(OperationalError("no space left on device")))
            assert commit(example.run, record) == "failed"
        assert everything(example.run) == before
        assert commit(example.run, record) == "committed"

    def test_of_two_hosts_that_commit_one_step_one_succeeds(self, example: Example) -> None:
        records = [next_record(example.run, (who, (UNIT,))) for who in (example.teo, example.noor)]
        asides = [in_other_thread(lambda record=record: commit(example.run, record)) for record in records]  # type: ignore[misc]
        assert sorted(aside.outcome() for aside in asides) == ["committed", "stale"]
        assert LogEntry.objects.count() == LedgerEntry.objects.count() == 1


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def deposed_changes_nothing(example: Example, by: Commit) -> None:
    """Require that a host changes no row after another host has taken over its claim."""
    record = next_record(example.run, (example.teo, (UNIT,)))
    claims.forget_the_dead()
    claims.claim(example.run, "another host")
    before = everything(example.run)
    assert commit(example.run, record, by) == "stale"
    assert everything(example.run) == before


# --- the answer of COMMIT is lost -----------------------------------------------------------------------------------


@dataclass
class Cut:
    """A database connection that breaks at a COMMIT. `after`: the database executes the COMMIT before the connection
    breaks.
    """

    url: str
    after: bool
    was_cut: bool = False

    def commit(self, original: Callable[[], None]) -> None:
        if self.was_cut:
            return original()
        self.was_cut = True
        if self.after:
            original()
        if self.url.startswith("sqlite"):
            if not self.after:
                connection.connection.rollback()
            raise OperationalError("disk I/O error")
        self._end_backend()
        return original()

    def _end_backend(self) -> None:
        """End the session on the server, as a restart does. The driver has to notice this by itself."""
        assert connection.connection is not None
        process = connection.connection.info.backend_pid
        with psycopg.connect(self.url, autocommit=True) as control:
            control.execute("SELECT pg_terminate_backend(%s, 5000)", (process,))
        if self.after:
            connection.cursor().execute("SELECT 1")  # the answer to this query never comes


@contextmanager
def cut(url: str, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> Iterator[Cut]:
    connection.ensure_connection()
    severed = Cut(url, after)
    original = type(connection._connections[connection._alias])._commit  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        wrapper = connection._connections[connection._alias]  # type: ignore[attr-defined]
        patch.setattr(wrapper, "_commit", lambda: severed.commit(lambda: original(wrapper)))
        yield severed


class TestLostAnswer:
    """A host that gets no answer to its COMMIT reads the row to learn the outcome."""

    def test_of_a_commit_that_happened(self, example: Example, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        record = next_record(example.run, (example.teo, (UNIT,)))
        with cut(database, monkeypatch, after=True) as severed:
            assert commit(example.run, record) == "committed"
        assert severed.was_cut
        assert LogEntry.objects.count() == LedgerEntry.objects.count() == 1
        require_equal_books(example.run)

    def test_of_a_commit_that_did_not(self, example: Example, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
        record, before = next_record(example.run, (example.teo, (UNIT,))), everything(example.run)
        with cut(database, monkeypatch, after=False) as severed:
            assert commit(example.run, record) == "failed"
        assert severed.was_cut
        assert everything(example.run) == before
        assert commit(example.run, record) == "committed"

    def test_of_a_commit_that_did_not_while_another_host_took_over(
        self, example: Example, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record, decide = next_record(example.run, (example.teo, (UNIT,))), store.decide

        def decide_later(*arguments: Any) -> store.Outcome:
            claims.forget_the_dead()
            claims.claim(example.run, "another host")
            return decide(*arguments)

        monkeypatch.setattr(store, "decide", decide_later)
        with cut(database, monkeypatch, after=False):
            assert commit(example.run, record) == "stale"
        assert LogEntry.objects.count() == 0

    def test_a_database_that_stays_away_decides_nothing(
        self, example: Example, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record = next_record(example.run, (example.teo, (UNIT,)))
        monkeypatch.setattr(Head.objects, "filter", failing(OperationalError("away")))
        monkeypatch.setattr(Head.objects, "get", failing(OperationalError("away")))
        with pytest.raises(DatabaseError):
            store.commit(example.run, sealed(record), record, duration_s=1, attempts=1)


# --- the rest of the rows -------------------------------------------------------------------------------------------


def marks(run: Run) -> dict[tuple[int, int], int]:
    return {(row.epoch, row.shard): row.mark for row in LeaseMark.objects.filter(run=run)}


class TestMarks:
    """Rule 11: all leased samples stay below the stored marks."""

    def test_they_are_raised(self, example: Example) -> None:
        store.raise_marks(example.run, 1, [Mark(0, 0, 8), Mark(1, 0, 2)])
        store.raise_marks(example.run, 1, [Mark(0, 0, 16)])
        assert marks(example.run) == {(0, 0): 16, (1, 0): 2}

    def test_they_are_never_lowered(self, example: Example) -> None:
        store.raise_marks(example.run, 1, [Mark(0, 0, 16)])
        store.raise_marks(example.run, 1, [Mark(0, 0, 8), Mark(1, 0, 4)])
        assert marks(example.run) == {(0, 0): 16, (1, 0): 4}

    def test_also_not_by_several_at_once(self, example: Example) -> None:
        asides = [
            in_other_thread(lambda n=n: store.raise_marks(example.run, 1, [Mark(0, 0, n)]))  # type: ignore[misc]
            for n in (16, 2, 8, 4)
        ]
        for aside in asides:
            aside.outcome()
        assert marks(example.run) == {(0, 0): 16}

    def test_a_host_that_was_deposed_meanwhile_raises_none(self, example: Example) -> None:
        Head.objects.update(fence=2)
        with pytest.raises(store.Stale):
            store.raise_marks(example.run, 1, [Mark(0, 0, 16)])
        assert marks(example.run) == {}
        store.raise_marks(example.run, 2, [Mark(0, 0, 16)])


class TestSettledUnits:
    def test_are_those_of_committed_records(self, example: Example) -> None:
        steps(example, (UNIT,), (SECOND, Unit(0, 0, 4, 6)))
        assert list(settled_units(example.run)) == [Unit(0, 0, 0, 6)]

    def test_are_merged_whatever_their_order(self, example: Example) -> None:
        steps(example, (Unit(0, 0, 4, 6),), (UNIT,), (SECOND, Unit(1, 0, 0, 2)))
        assert list(settled_units(example.run)) == [Unit(0, 0, 0, 6), Unit(1, 0, 0, 2)]

    def test_are_those_of_this_run_alone(self, example: Example) -> None:
        other = opened(example.teo.machine.person, slug="other")
        steps(example, (UNIT,))
        assert list(settled_units(other)) == []


class TestLoad:
    def test_of_a_run_at_its_beginning(self, example: Example) -> None:
        state = store.load(store.run_named(example.run.run_id), 7)
        assert (state.index, state.step, state.digest, state.fence) == (0, 0, GENESIS, 7)
        assert (state.started, state.sealed, state.goal) == (False, None, "running")
        assert state.snapshot == news_of(example.run).snapshot

    def test_of_a_run_on_its_way(self, example: Example) -> None:
        store.raise_marks(example.run, 1, [Mark(0, 0, 8)])
        _, last = steps(example, (UNIT,), (SECOND,))
        state = store.load(store.run_named(example.run.run_id), 1)
        assert (state.index, state.step, state.sealed) == (2, 2, sealed(last))
        assert (state.started, state.digest) == (True, digest_of(sealed(last)))
        assert state.leases.granted == {(0, 0): 8}
        assert state.leases.orphans == [Unit(0, 0, 4, 8)], "under the mark and in no update: claimed, or dealt again"

    def test_of_what_the_organizer_wants(self, example: Example) -> None:
        pause_run(run=example.run)
        assert store.load(store.run_named(example.run.run_id), 1).goal == store.directed(example.run).goal == "paused"
        resume_run(run=example.run)
        assert store.load(store.run_named(example.run.run_id), 1).goal == store.directed(example.run).goal == "running"

    def test_of_how_sources_are_mixed(self, example: Example) -> None:
        mixed = replace(example.run.parsed_recipe, mix=(1.0, 3.0))
        Run.objects.filter(pk=example.run.pk).update(recipe=encode_recipe(mixed).decode())
        assert store.directed(example.run).mix == (1.0, 3.0)

    def test_of_the_newest_snapshot(self, example: Example) -> None:
        facts = {"step": 2, "digest": "d" * 64, "state_digest": "5" * 16, "file": "f" * 64, "size": 3}
        Snapshot.objects.create(run=example.run, index=2, **facts)
        newest = SnapshotMessage(index=2, **facts)  # type: ignore[arg-type]
        assert store.load(store.run_named(example.run.run_id), 1).snapshot == newest


class TestRestart:
    """Rule 11: after a restart, a new host leases no sample that is already in an update, in any epoch."""

    @pytest.mark.parametrize("are_there", [True, False], ids=["with records", "without records"])
    def test_no_settled_sample_is_leased_again(self, example: Example, *, are_there: bool) -> None:
        settled = self._through_epochs(example, epochs=5)
        if not are_there:
            SealedRecord.objects.filter(entry__index__lt=example.run.log.count()).delete()
        book = store.load(store.run_named(example.run.run_id), 1).leases
        book.release_orphans()
        granted = self._granted(example, book)
        assert {sample for unit in granted for sample in samples_of(unit)} & settled == set()
        assert {unit.epoch for unit in granted} == {5}

    def test_nor_what_was_left_out(self, example: Example) -> None:
        store.raise_marks(example.run, 1, [Mark(0, 0, 16), Mark(1, 0, 4)])
        steps(example, (UNIT,))
        for unit in (Unit(0, 0, 4, 6), Unit(0, 0, 6, 8), Unit(1, 0, 0, 2)):
            store.abandon(example.run, 1, [unit])
        steps(example, (SECOND,))
        book = store.load(store.run_named(example.run.run_id), 1).leases
        assert book.orphans == [Unit(0, 0, 8, 16), Unit(1, 0, 2, 4)]
        assert book.lost_samples == 6
        assert audit(example.run)["faults"] == []

    def test_a_host_that_was_deposed_leaves_nothing_out(self, example: Example) -> None:
        Head.objects.update(fence=2)
        with pytest.raises(store.Stale):
            store.abandon(example.run, 1, [UNIT])
        assert not example.run.coverage.exists()

    def _through_epochs(self, example: Example, *, epochs: int) -> set[tuple[int, int, int]]:
        """Commit each epoch in two halves, the second half first. Return the samples."""
        size = samples_in(1000, RECIPE.model.context)
        settled = set()
        for epoch in range(epochs):
            store.raise_marks(example.run, 1, [Mark(epoch, 0, size)])
            for unit in (Unit(epoch, 0, size // 2, size), Unit(epoch, 0, 0, size // 2)):
                steps(example, (unit,))
                settled |= set(samples_of(unit))
        return settled

    def _granted(self, example: Example, book: LeaseBook) -> tuple[Unit, ...]:
        wanted = book.wanted_marks({ACCUMULATOR: 40})
        store.raise_marks(example.run, 1, wanted)
        book.raise_marks(wanted)
        return book.grant(ACCUMULATOR, 40)


def samples_of(unit: Unit) -> Iterator[tuple[int, int, int]]:
    return ((unit.epoch, unit.shard, position) for position in range(unit.start, unit.stop))


def test_a_load_reads_one_record_however_many_there_are(example: Example) -> None:
    counts = []
    for unit in (UNIT, SECOND, Unit(0, 0, 4, 6)):
        steps(example, (unit,))
        with CaptureQueriesContext(connection) as asked:
            store.load(store.run_named(example.run.run_id), 1)
        records = [line["sql"] for line in asked if "runs_sealedrecord" in line["sql"]]
        counts.append((len(asked), len(records)))
        assert "LIMIT 1" in records[0]
    assert counts == [(counts[0][0], 1)] * 3


def test_records_are_said_again_in_their_order(example: Example) -> None:
    records = steps(example, (UNIT,), (SECOND,), (Unit(0, 0, 4, 6),))
    assert store.sealed_from(example.run, 2, 64) == [sealed(record) for record in records[1:]]
    assert store.sealed_from(example.run, 4, 64) == []
    assert len(store.sealed_from(example.run, 1, 2)) == 2


def test_what_replicas_agree_on_is_kept_with_its_step(example: Example) -> None:
    steps(example, (UNIT,), (SECOND,))
    store.agree(example.run, 2, "5" * 16)
    store.agree(example.run, 0, "6" * 16)
    assert list(LogEntry.objects.values_list("step", "state_digest")) == [(1, ""), (2, "5" * 16)]


def test_words_fit_their_rows(example: Example) -> None:
    timeline.add_line(run=example.run, kind="k" * 40, text="t" * 900)
    store.set_waiting(example.run, "w" * 900)
    told = ActivityLine.objects.get()
    assert (len(told.kind), len(told.text)) == (20, 300)
    assert len(Run.objects.get().waiting_for) == 900


def test_whoever_may_not_work_any_more(example: Example) -> None:
    peers = [example.teo.machine.peer_id, example.noor.machine.peer_id]
    assert store.revoked(peers) == []
    example.noor.machine.person.is_active = False
    example.noor.machine.person.save()
    assert store.revoked(peers) == [example.noor.machine.peer_id]


# --- planted faults: the tests above must catch these ---------------------------------------------------------------


def lost(example: Example, *rounds: tuple[Unit, ...]) -> list[Entry]:
    """Commit one step for each round, and then restore the database that was before them. Return the records."""
    with transaction.atomic():
        records = [sealed(record) for record in steps(example, *rounds)]
        transaction.set_rollback(True)
    return records


class TestAdopt:
    """A database that was restored gets its lost entries back from a relay's records (rule 16)."""

    def test_log_ledger_and_leases_are_as_before(self, example: Example) -> None:
        steps(example, (UNIT,))
        with transaction.atomic():
            made = [sealed(record) for record in steps(example, (SECOND,), (Unit(0, 0, 6, 8),))]
            before = everything(example.run)
            transaction.set_rollback(True)
        fence = claims.claim(example.run, "next") or Head.objects.get().fence
        assert store.adopt(example.run, fence, made) == 2
        assert everything(example.run) == before
        assert audit(example.run)["faults"] == []
        assert marks(example.run)[0, 0] >= 8, "nobody is leased these samples again"
        assert "steps 2 to 3" in ActivityLine.objects.get(kind="recovered").text
        assert store.adopt(example.run, fence, made) == 0

    def test_records_that_do_not_follow_are_left_out(self, example: Example) -> None:
        first, second = lost(example, (UNIT,), (SECOND,))
        fence = Head.objects.get().fence
        assert store.adopt(example.run, fence, [second]) == 0
        forged = Entry(replace(first.head, signature=bytes(64)), first.contributions)
        assert store.adopt(example.run, fence, [forged, second]) == 0
        assert store.adopt(example.run, fence, [first, first, second]) == 1
        assert Head.objects.get().step == 1

    def test_a_deposed_host_appends_nothing(self, example: Example) -> None:
        records = lost(example, (UNIT,))
        with pytest.raises(store.Stale):
            store.adopt(example.run, Head.objects.get().fence - 1, records)
        assert Head.objects.get().step == 0

    def test_credit_of_machines_that_are_not_known_is_told(self, example: Example) -> None:
        records = lost(example, (UNIT,))
        Machine.objects.filter(pk=example.teo.machine.pk).delete()
        assert store.adopt(example.run, Head.objects.get().fence, records) == 1
        assert "2 samples is missing" in ActivityLine.objects.get(kind="recovered").text
        assert audit(example.run)["faults"] == []

    def test_lost_branch_keeps_its_credit(self, example: Example) -> None:
        branch = lost(example, (UNIT,), (SECOND,))
        steps(example, (SECOND,))
        audit(example.run)  # the next audit continues from here
        covered, fence = list(settled_units(example.run)), Head.objects.get().fence
        for _ in range(2):
            store.credit_branch(example.run, fence, branch)
        store.credit_branch(example.run, fence, [sealed_of(LogEntry.objects.get(index=1))])
        text = ActivityLine.objects.get(kind="lost steps").text
        assert text == "Steps 1 to 2 were lost when the site was restored: 4 samples by 1 person. Their credit stays."
        assert [(row.index, row.step, row.kind) for row in example.run.log.order_by("-index")] == [
            *((1, 1, "update"), (-1, 1, "lost"), (-2, 2, "lost"))
        ]
        total = MachineTotal.objects.get()
        assert (total.samples, total.rounds, total.last_step) == (6, 3, 1)
        assert list(settled_units(example.run)) == covered, "lost samples may be leased again"
        assert [row.step for row in steps_of(example.run)] == [1], "pages and the API show the log alone"
        for is_full in (False, True):
            found = audit(example.run, is_full=is_full)
            assert (found["faults"], found["ledger_samples"], found["lost_samples"]) == ([], 6, 4)

    def test_deposed_host_credits_no_branch(self, example: Example) -> None:
        branch = lost(example, (UNIT,))
        with pytest.raises(store.Stale):
            store.credit_branch(example.run, Head.objects.get().fence - 1, branch)
        assert not LedgerEntry.objects.exists()

    def test_forged_branch_gets_no_credit(self, example: Example) -> None:
        (record,) = lost(example, (UNIT,))
        steps(example, (SECOND,))
        forged = Entry(replace(record.head, signature=bytes(64)), record.contributions)
        store.credit_branch(example.run, Head.objects.get().fence, [forged])
        assert LogEntry.objects.get().index == 1

    def test_records_that_may_still_come_back_are_not_lost(self, example: Example) -> None:
        steps(example, (UNIT,))
        with transaction.atomic():
            later = [sealed(record) for record in steps(example, (SECOND,), (Unit(0, 0, 4, 6),))]
            transaction.set_rollback(True)
        fence = Head.objects.get().fence
        store.credit_branch(example.run, fence, [sealed_of(LogEntry.objects.get()), *later])
        assert not LogEntry.objects.filter(index__lt=0).exists()
        assert store.adopt(example.run, fence, later) == 2
        store.credit_branch(example.run, fence, later)
        assert (LedgerEntry.objects.count(), audit(example.run, is_full=True)["faults"]) == (3, [])

    def test_pages_of_a_branch_that_is_longer_than_the_log_are_credited(self, example: Example) -> None:
        branch = lost(example, (UNIT,), (SECOND,), (Unit(0, 0, 4, 6),))
        steps(example, (SECOND,))
        fence = Head.objects.get().fence
        store.credit_branch(example.run, fence, branch[2:])
        assert not LogEntry.objects.filter(index__lt=0).exists(), "it is not known yet that it is lost"
        for page in (branch[:1], branch[1:2], branch[2:]):
            store.credit_branch(example.run, fence, page)
        assert list(example.run.log.filter(index__lt=0).order_by("-index").values_list("step", flat=True)) == [1, 2, 3]

    def test_lost_credit_of_unknown_machines_is_told(self, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
        branch = lost(example, (UNIT,))
        steps(example, (SECOND,))
        monkeypatch.setattr(store, "_ledger_rows", lambda *_: [])
        store.credit_branch(example.run, Head.objects.get().fence, branch)
        assert "2 samples is missing" in ActivityLine.objects.get(kind="lost steps").text


def careless(run: Run, seal: Entry, record: Record, *, duration_s: float, attempts: int) -> store.Outcome:
    with transaction.atomic():
        Head.objects.filter(run=run).update(index=record.index - 1, step=record.step - 1, digest=record.previous)
        Head.objects.filter(run=run).update(fence=record.fence)
        store._write(run, seal, record, duration_s, attempts)
    return "committed"


class TestPlantedFaults:
    def test_a_commit_that_skips_the_head_check_is_caught(self, example: Example) -> None:
        with pytest.raises(AssertionError, match="committed"):
            deposed_changes_nothing(example, careless)

    def test_a_changed_ledger_row_is_found(self, example: Example) -> None:
        steps(example, (UNIT,))
        with connection.cursor() as cursor:
            cursor.execute("UPDATE runs_ledgerentry SET credit = credit + 1")
        with pytest.raises(AssertionError, match="the ledger has"):
            require_equal_books(example.run)


def stored(key: Any) -> Any:
    """Return a UUID as this database stores it."""
    return key if connection.vendor == "postgresql" else key.hex


START = datetime(2026, 12, 5, 18, tzinfo=UTC)
BEFORE, REASON = START - timedelta(seconds=1), "the run starts on 2026-12-05 at 18:00 UTC"


@pytest.mark.parametrize(
    ("state", "wanted", "now", "goal"),
    [
        ("open", "", BEFORE, ("paused", REASON)),
        ("open", "", START, ("running", "")),
        ("paused", "paused", BEFORE, ("paused", "")),
        ("open", "finished", BEFORE, ("finishing", "")),
    ],
)
def test_a_run_rests_until_its_start_time(state: str, wanted: str, now: datetime, goal: tuple[str, str]) -> None:
    found = store.goal_of(Run(state=state, wanted=wanted, starts_at=START), now)
    assert (found["goal"], found["pause_reason"]) == goal


LOSS = "the loss rose from 1 to 2.5 by step 5; roll back to an earlier snapshot, or resume"


def test_host_pauses_a_run_whose_loss_rose_until_it_is_resumed(example: Example) -> None:
    run, fence = example.run, Head.objects.get().fence
    choose(person=run.organizer, wanted=[(Event.HALTED, Way.BROWSER)])
    with pytest.raises(store.Stale):
        store.halt(run, fence - 1, LOSS)
    store.halt(run, fence, LOSS)
    store.halt(run, fence, LOSS)
    run.refresh_from_db()
    assert (run.state, run.wanted, run.waiting_for) == ("paused", "paused", LOSS)
    assert store.goal_of(run) == {"goal": "paused", "pause_reason": LOSS}
    assert [notice.event for notice in Notice.objects.filter(person=run.organizer)] == ["halted"]
    resume_run(run=run)
    assert store.goal_of(run) == {"goal": "running", "pause_reason": ""}


def test_next_host_knows_the_losses_that_were_not_undone(example: Example) -> None:
    steps(example, (UNIT,), (SECOND,))
    losses = list(LogEntry.objects.order_by("index").values_list("loss", flat=True))
    assert list(store.load(example.run, 9).losses) == losses
    LogEntry.objects.filter(index=2).update(is_undone=True)
    assert list(store.load(example.run, 9).losses) == losses[:1]


def test_commits_during_an_audit_are_no_fault(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another connection commits a step while the audit runs, after it has read the log."""
    steps(example, (UNIT,))
    strays: Any = auditing._strays
    outcomes = []

    def commit_first(*arguments: Any) -> Any:
        outcomes.append(in_other_thread(lambda: steps(example, (SECOND,))).outcome())
        return strays(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(auditing, "_strays", commit_first)
        found = audit(example.run)
    assert (len(outcomes), found["faults"], found["steps"]) == (1, [], 1)
    assert (audit(example.run)["steps"], Head.objects.get().step) == (2, 2)
    require_equal_books(example.run)

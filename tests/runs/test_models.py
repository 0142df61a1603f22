"""Constraints enforced by the tables themselves."""

import pytest
from django.db import IntegrityError, transaction

from accounts.models import Person
from runs.models import LedgerEntry, LogEntry, Run, Snapshot
from tests.runs.factories import Owned, committed, opened, owned


class TestContract:
    def test_an_index_is_committed_once(self, any_database: str, data_folder: object) -> None:
        organizer = Person.objects.create_user("Amina", None)
        run = opened(organizer)
        entry = committed(run, (owned(organizer).machine, 4))
        entry.pk = None
        with pytest.raises(IntegrityError), transaction.atomic():
            entry.save(force_insert=True)
        with pytest.raises(IntegrityError), transaction.atomic():
            Snapshot.objects.create(run=run, index=0, step=0, state_digest="", file="f" * 64, size=1)

    def test_a_machine_is_in_an_entry_once(self, any_database: str, data_folder: object) -> None:
        organizer = Person.objects.create_user("Amina", None)
        machine = owned(organizer).machine
        with pytest.raises(IntegrityError), transaction.atomic():
            committed(opened(organizer), (machine, 4), (machine, 4))


class TestLedger:
    @pytest.fixture
    def row(self, run: Run, laptop: Owned) -> LedgerEntry:
        committed(run, (laptop.machine, 4))
        return LedgerEntry.objects.get()

    def test_a_row_is_not_changed(self, row: LedgerEntry) -> None:
        row.samples = 1_000_000
        with pytest.raises(TypeError, match="append-only"):
            row.save()
        with pytest.raises(TypeError, match="append-only"):
            LedgerEntry.objects.update(samples=1_000_000)
        with pytest.raises(TypeError, match="append-only"):
            LedgerEntry.objects.filter(pk=row.pk).update(samples=1_000_000)

    def test_a_row_is_not_deleted(self, row: LedgerEntry) -> None:
        with pytest.raises(TypeError, match="append-only"):
            row.delete()
        with pytest.raises(TypeError, match="append-only"):
            LedgerEntry.objects.all().delete()

    def test_what_a_row_speaks_of_is_not_deleted(self, row: LedgerEntry) -> None:
        for thing in (row.machine, row.person, row.entry, row.run):
            with pytest.raises(Exception, match=r"referenced|protected"):
                thing.delete()
        assert LogEntry.objects.count() == 1

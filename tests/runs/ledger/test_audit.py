"""The audit finds every planted fault, and finds none in correct books."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from accounts.keys import site_key
from coordination import store
from peer_agent.protocol.log.records import (
    GENESIS,
    ChunkRange,
    Contribution,
    Record,
    Scalars,
    SpanEntry,
    Unit,
    digest_of,
    seal,
    whole,
)
from runs import storage
from runs.ledger.audit import audit
from runs.models import AuditMark, Head, Run
from tests.golden import golden, shape_of
from tests.runs.factories import ELEMENTS, Owned

pytestmark = pytest.mark.django_db


def record_of(run: Run, machine: Owned, step: int, previous: str, start: int) -> Record:
    peer = machine.machine.peer_id
    unit = Unit(0, 0, start, start + 4)
    part = Contribution(
        peer=peer,
        person="volunteer",
        machine="laptop",
        slot=0,
        accumulator="0" * 32,  # type: ignore[arg-type]
        units=(unit,),
        weight=28,
        credit=28 * ELEMENTS,
        samples=4,
        tokens=28,
        included=(ChunkRange(0, 1),),
        codec="fp16",
    )
    span = SpanEntry(
        span=0,
        first=0,
        stop=1,
        attempt=1,
        reducer=peer,
        root="0" * 64,
        sum_squares=1.0,
    )
    return whole(
        run=run.run_id,
        index=step,
        step=step,
        fence=0,
        attempt=1,
        round=step,
        previous=previous,
        elements=ELEMENTS,
        chunk_elements=16384,
        codec="fp32",
        spans=(span,),
        scalars=Scalars(learning_rate=0.1, clip=1.0, inverse_bias_1=1.0, inverse_bias_2=1.0, inverse_tokens=0.5),
        contributions=(part,),
        loss=5.0,
        tokens=28,
        samples=4,
        exact=True,
    )


@pytest.fixture
def audited(run: Run, laptop: Owned) -> Run:
    previous = GENESIS
    for step in (1, 2, 3):
        record = record_of(run, laptop, step, previous, start=4 * step)
        sealed = seal(site_key(), record)
        assert store.commit(run, sealed, record, duration_s=1.0, attempts=1) == "committed"
        previous = digest_of(sealed)
    return run


def test_honest_books_have_no_fault(audited: Run) -> None:
    found = audit(audited)
    assert found == {
        "run": audited.slug,
        "steps": 3,
        "read": 3,
        "committed_samples": 12,
        "ledger_samples": 12,
        "lost_samples": 0,
        "unknown_samples": 0,
        "reversed_samples": 0,
        "checked_samples": 0,
        "overdue": [],
        "snapshots": [{"step": 0, "state": "verified", "file": audited.snapshots.get().file}],
        "faults": [],
    }
    assert shape_of(found).keys() == shape_of(golden("audit")).keys()


def execute(statement: str) -> None:
    """Execute SQL without the models, as anyone with access to the database can."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


FAULTS: dict[str, tuple[str, str]] = {
    "a dropped ledger row": ("delete from runs_ledgerentry where step = 2", "step 2: 4 samples .* not in the ledger"),
    "a ledger row that was changed": ("update runs_ledgerentry set samples = 9 where step = 1", "has 9 samples"),
    "a record that was changed": (
        "update runs_sealedrecord set payload = x'7b7d' where entry_id = (select max(id) from runs_logentry)",
        "E218",
    ),
    "a record that is gone": (
        "delete from runs_sealedrecord where entry_id in (select max(id) from runs_logentry)",
        "no record",
    ),
    "records exchanged": ("update runs_logentry set digest = 'x' where \"index\" = 1", "not the record that its row"),
    "a dropped step": (
        (
            "delete from runs_ledgerentry where step = 3;"
            "delete from runs_sealedrecord where entry_id in (select id from runs_logentry where step = 3);"
            "delete from runs_logentry where step = 3"
        ),
        "head",
    ),
    "coverage of what is in no record": ("update runs_coverage set ranges = '[[4, 17]]'", "shard 0: the coverage"),
    "coverage that is gone": ("delete from runs_coverage", "shard 0: the coverage"),
    "a total that was raised": ("update runs_machinetotal set samples = samples + 1", "not the sum of its ledger"),
    "a total that is gone": ("delete from runs_machinetotal", "not the sum of its ledger"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(audited: Run, fault: str) -> None:
    statements, expected = FAULTS[fault]
    for statement in statements.split(";"):
        execute(statement)
    assert any(re.search(expected, line) for line in audit(audited)["faults"])


def test_samples_that_were_used_twice_are_found(audited: Run, laptop: Owned) -> None:
    head = Head.objects.get(run=audited)
    record = record_of(audited, laptop, 4, head.digest, start=10)
    store.commit(audited, seal(site_key(), record), record, duration_s=1.0, attempts=1)
    assert any("are in 2 updates" in line for line in audit(audited)["faults"])


def one_more(run: Run, laptop: Owned) -> None:
    head = Head.objects.get(run=run)
    record = record_of(run, laptop, head.step + 1, head.digest, start=4 * (head.step + 1))
    assert store.commit(run, seal(site_key(), record), record, duration_s=1.0, attempts=1) == "committed"


def with_lost_step(run: Run, laptop: Owned) -> None:
    """Credit a step that a restored database had lost."""
    lost = record_of(run, laptop, 3, GENESIS, start=40)
    store.credit_branch(run, Head.objects.get(run=run).fence, [seal(site_key(), lost)])


LOST_FAULTS = {
    "a lost row that was changed": ("update runs_ledgerentry set samples = 9 where entry_id = {lost}", "has 9 samples"),
    "a lost record of another step": (
        "update runs_logentry set step = 9 where id = {lost}",
        "not the record that its row",
    ),
    "a lost record that is gone": ("delete from runs_sealedrecord where entry_id = {lost}", "no record"),
    "a lost record that was changed": (
        "update runs_sealedrecord set payload = x'7b7d' where entry_id = {lost}",
        "E218",
    ),
    "a step that is credited twice": (
        ('update runs_logentry set digest = (select digest from runs_logentry where id = {lost}) where "index" = 3'),
        "entry -1 is in the log twice",
    ),
}


@pytest.mark.parametrize("fault", LOST_FAULTS)
def test_fault_in_a_lost_step_is_found(audited: Run, laptop: Owned, fault: str) -> None:
    with_lost_step(audited, laptop)
    assert audit(audited)["faults"] == []
    statement, expected = LOST_FAULTS[fault]
    execute(statement.format(lost=audited.log.get(index=-1).pk))
    assert any(re.search(expected, line) for line in audit(audited, is_full=True)["faults"])


def test_command_names_lost_samples(audited: Run, laptop: Owned, capsys: pytest.CaptureFixture[str]) -> None:
    with_lost_step(audited, laptop)
    with pytest.raises(SystemExit):
        call_command("audit", audited.slug)
    assert "4 samples of steps that a restore lost" in capsys.readouterr().out


class TestSecondAudit:
    def test_it_reads_only_what_is_new(self, audited: Run, laptop: Owned) -> None:
        assert audit(audited)["read"] == 3
        one_more(audited, laptop)
        found = audit(audited)
        assert (found["read"], found["steps"], found["committed_samples"], found["faults"]) == (1, 4, 16, [])
        assert (audit(audited)["read"], audit(audited, is_full=True)["read"]) == (0, 4)

    @pytest.mark.parametrize(
        "fault", sorted(set(FAULTS) - {"records exchanged", "a record that was changed", "a record that is gone"})
    )
    def test_it_names_a_fault_in_what_was_audited(self, audited: Run, fault: str) -> None:
        assert audit(audited)["faults"] == []
        statements, expected = FAULTS[fault]
        for statement in statements.split(";"):
            execute(statement)
        assert any(re.search(expected, line) for line in audit(audited)["faults"])

    def test_a_fault_is_found_again_and_again(self, audited: Run, laptop: Owned) -> None:
        audit(audited)
        one_more(audited, laptop)
        execute("delete from runs_ledgerentry where step = 4")
        assert [bool(audit(audited)["faults"]) for _ in range(3)] == [True] * 3

    def test_what_another_log_or_version_left_is_not_used(self, audited: Run) -> None:
        for change in ({"digest": "0" * 64}, {"books": b"other"}):
            audit(audited)
            AuditMark.objects.update(**change)
            assert audit(audited)["read"] == 3

    def test_a_file_is_read_once_and_when_it_changes(self, audited: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        reads: list[Any] = []
        digest = hashlib.file_digest

        def count(file: Any, name: str) -> Any:
            reads.append(file)
            return digest(file, name)

        monkeypatch.setattr(hashlib, "file_digest", count)
        audit(audited)
        audit(audited)
        assert len(reads) == 1
        file = storage.snapshot_path(audited, audited.snapshots.get().file)
        file.write_bytes(file.read_bytes() + b"0")
        assert any("another sha256" in line for line in audit(audited)["faults"])


def test_the_command_says_so_by_its_status(audited: Run, capsys: Any) -> None:

    statuses: list[Callable[..., Any] | int | str | None] = []
    for statement in ("", "delete from runs_ledgerentry where step = 2"):
        if statement:
            execute(statement)
        with pytest.raises(SystemExit) as stop:
            call_command("audit", audited.slug, "--json")
        statuses.append(stop.value.code)
    assert statuses == [0, 1]
    assert '"faults"' in capsys.readouterr().out

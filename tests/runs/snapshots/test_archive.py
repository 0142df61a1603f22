"""The archive of a run's log: how far it reaches, what it may delete, and what follows if averages are lost."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from coordination.snapshots import news_of
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import Later
from peer_agent.averaging.update_log import span_path
from peer_agent.protocol.coordinator.events import Archived as Reached
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import RecordHead
from peer_agent.site_work import archive as copying
from peer_agent.site_work.archive import Archived
from runs import background
from runs.models import Head, Run
from runs.snapshots import archive
from runs.snapshots.archive import archive_next, archived_span
from runs.snapshots.verification import verify_next
from tests.jobs.requests import forget_requests, requested_kinds
from tests.runs.factories import Owned
from tests.runs.snapshots.test_verification import Children, children, hand_in, long_run, true_state

__all__ = ["children", "long_run"]
SIZE = 1000


class Logs:
    """Relays' logs with a span of each entry, except those that a test removes."""

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def __call__(self, records: Iterable[RecordHead], folder: Path, *_: Any) -> Iterator[Archived]:
        for record in records:
            if record.index in self.lost:
                return
            path = span_path(folder, record.index, 0)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"a" * SIZE)
            yield Archived(record.index, SIZE)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Logs:
    made = Logs()
    monkeypatch.setattr(copying, "archive", made)
    # The factory's entries have no real records.
    monkeypatch.setattr(archive, "_records", lambda run, first: run.log.filter(index__gte=first).order_by("index"))
    return made


def kept(run: Run) -> list[int]:
    return [index for index in range(1, 7) if archived_span(run, index, 0).exists()]


def reach(run: Run) -> tuple[int, int]:
    head = Head.objects.get(run=run)
    return head.archived, head.gap


def test_every_entry_is_archived_once(long_run: Run, logs: Logs) -> None:
    assert archive_next(long_run.pk) == "done"
    assert (reach(long_run), kept(long_run)) == ((6, 0), [1, 2, 3, 4, 5, 6])
    assert Head.objects.get().archive_bytes == 6 * SIZE
    assert archive_next(long_run.pk) == "done"
    assert Head.objects.get().archive_bytes == 6 * SIZE


def test_host_asks_for_new_entries_and_is_told(long_run: Run, logs: Logs) -> None:
    forget_requests()
    assert news_of(long_run).archived == Reached(0, gap=False)
    assert Kind.ARCHIVE_LOG in requested_kinds()
    archive_next(long_run.pk)
    forget_requests()
    assert news_of(long_run).archived == Reached(6, gap=False)
    assert Kind.ARCHIVE_LOG not in requested_kinds()


def test_averages_that_no_relay_has_are_told_and_tried_again(long_run: Run, logs: Logs) -> None:
    logs.lost = {3}
    fault = archive_next(long_run.pk)
    assert not isinstance(fault, str)
    assert fault.code == "E341"
    assert reach(long_run) == (2, 3)
    assert news_of(long_run).archived == Reached(2, gap=True)
    logs.lost = set()
    assert archive_next(long_run.pk) == "done"
    assert reach(long_run) == (6, 0)


def test_they_do_not_matter_once_a_verified_snapshot_covers_them(long_run: Run, logs: Logs, children: Children) -> None:
    logs.lost = {3}
    archive_next(long_run.pk)
    for _ in range(2):
        verify_next(long_run.pk)
    assert archive_next(long_run.pk) == "done"
    assert (reach(long_run), kept(long_run)) == ((6, 0), [1, 2, 4, 5, 6])


def test_oldest_averages_go_if_a_verified_snapshot_covers_them(
    long_run: Run, logs: Logs, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "ARCHIVE_BYTES", 3 * SIZE)
    archive_next(long_run.pk)
    assert kept(long_run) == [1, 2, 3, 4, 5, 6]
    verify_next(long_run.pk)
    Head.objects.update(archived=5)
    archive_next(long_run.pk)
    assert kept(long_run) == [3, 4, 5, 6], "no further than the verified snapshot of step 2"
    verify_next(long_run.pk)
    Head.objects.update(archived=5, archive_bytes=4 * SIZE)
    archive_next(long_run.pk)
    assert kept(long_run) == [5, 6]
    assert Head.objects.get().archive_bytes <= 3 * SIZE


def test_one_run_does_not_keep_the_others_waiting(long_run: Run, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "TURN_S", -1.0)
    assert archive_next(long_run.pk) == "more"
    monkeypatch.setattr(archive, "TURN_S", 20.0)
    assert archive_next(long_run.pk) == "done"


class TestBridge:
    """Averages that are lost for good must not keep a run from its release."""

    def fails(self, children: Children, run: Run, failures: int) -> Any:
        children.errors = [problem()]
        return verify_next(run.pk, failures=failures)

    def test_snapshot_of_the_majority_is_trusted_in_the_end(
        self, long_run: Run, children: Children, laptop: Owned
    ) -> None:
        for failures in range(4):
            assert self.fails(children, long_run, failures) == "failed"
            assert not long_run.snapshots.filter(is_bridged=True).exists()
        assert self.fails(children, long_run, 4) == "more"
        bridged = long_run.snapshots.get(is_bridged=True)
        assert (bridged.index, bridged.state) == (2, "verified")
        text = long_run.activity.get(kind="bridged").text
        assert text.startswith("Steps 1 to 2 can no longer be checked, because no relay has their averages.")
        assert verify_next(long_run.pk) == "more", "the log after it is verified as usual"
        assert long_run.snapshots.get(index=4).is_bridged is False
        hand_in(long_run, laptop, true_state(long_run, 6), 6)
        assert verify_next(long_run.pk) == "more"

    def test_no_other_failure_is_bridged(self, long_run: Run, children: Children) -> None:
        children.errors = [problem("E342")]
        assert verify_next(long_run.pk, failures=50) == "failed"
        assert not long_run.snapshots.filter(is_bridged=True).exists()


def problem(code: str = "E341") -> Exception:
    return Problem.of(code, step=1, reason="a test")


def test_job_is_tried_again_with_its_fault(long_run: Run, logs: Logs) -> None:
    logs.lost = {1}
    outcome = background.archive_log(Job(kind=Kind.ARCHIVE_LOG, key=long_run.pk.hex))
    assert isinstance(outcome, Later)
    assert outcome.fault.startswith("E341")

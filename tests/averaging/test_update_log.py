"""The update log appends only the next record, stores spans with their record, and keeps no partial state after a
crash.
"""

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from peer_agent.averaging import update_log
from peer_agent.averaging.reducer import ClosedSpan
from peer_agent.averaging.update_log import Forked, UpdateLog, read_span, write_durably, write_span
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.merkle import leaf_of
from peer_agent.protocol.log.records import GENESIS, Entry, digest_of, from_lines, seal
from tests.averaging.rounds import RUN, averaged, contributor, entry_of, plan_of, record_of
from tests.protocol.identities import SITE_PUBLIC as SITE_KEY

SENDINGS = [contributor(1, 700).offer("fp16"), contributor(2, 300).offer("int8")]
PLAN = plan_of(SENDINGS, codec_down="fp16")
SPANS, PAYLOADS = averaged(PLAN, SENDINGS)
ENTRIES = record_of(PLAN, SPANS).spans


def chain(length: int) -> list[Entry]:
    """Build a chain of `length` records, one per step. All of them name the same spans."""
    records: list[Entry] = []
    for index in range(1, length + 1):
        previous = digest_of(records[-1]) if records else GENESIS
        record = record_of(PLAN, SPANS, index=index, previous=previous)
        records.append(entry_of(replace(record, step=index)))
    return records


CHAIN = chain(4)


def payloads_of(span: ClosedSpan) -> list[bytes]:
    return [PAYLOADS[c] for c in range(span.first, span.stop)]


def hold(log: UpdateLog, span: ClosedSpan, *, step: int = 1, attempt: int = 1) -> None:
    """Store a span that was averaged for the update to `step`, before the update is committed."""
    log.hold(RUN, step - 1, 3, attempt, span)


def held_payloads(log: UpdateLog, index: int, span: int) -> list[bytes] | None:
    stored = log.span(RUN, index, span)
    return [bytes(payload) for payload in stored.payloads] if stored else None


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder / RUN)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def log(tmp_path: Path) -> UpdateLog:
    return UpdateLog(tmp_path, SITE_KEY)


# Records


def test_an_empty_log(log: UpdateLog) -> None:
    assert (log.last_index(RUN), log.records(RUN, 1, 10)) == (0, [])
    assert log.span(RUN, 1, 0) is None


def test_records_follow_one_another(log: UpdateLog) -> None:
    assert not any(log.append(record) for record in CHAIN)
    assert log.last_index(RUN) == 4
    assert log.records(RUN, 2, 2) == CHAIN[1:3]
    assert log.records(RUN, 0, 100) == CHAIN
    assert log.records(RUN, 5, 100) == []


def test_a_record_is_a_file_that_people_can_read(log: UpdateLog, tmp_path: Path) -> None:
    log.append(CHAIN[0])
    data = (tmp_path / RUN / "records" / "00000001.json").read_bytes()
    assert data.startswith(b'{"version":2,"run":"abab')
    assert from_lines(data) == CHAIN[0]


def test_an_equal_record_changes_nothing(log: UpdateLog) -> None:
    for record in [*CHAIN[:2], *CHAIN[:2]]:
        log.append(record)
    assert log.records(RUN, 1, 10) == CHAIN[:2]


def test_a_gap_is_refused(log: UpdateLog) -> None:
    log.append(CHAIN[0])
    with pytest.raises(Problem, match=r"E402: .*record 3 came after record 1"):
        log.append(CHAIN[2])
    assert log.last_index(RUN) == 1


def test_a_fork_is_refused(log: UpdateLog) -> None:
    log.append(CHAIN[0])
    other_first = entry_of(replace(record_of(PLAN, SPANS), loss=9.0))
    other_second = record_of(PLAN, SPANS, index=2, previous=digest_of(other_first))
    with pytest.raises(Problem, match=r"E402: .*two different records 1"):
        log.append(other_first)
    with pytest.raises(Problem, match=r"E402: .*follows another record than 1"):
        log.append(entry_of(other_second))
    with pytest.raises(Problem, match="E402"):
        log.append(entry_of(record_of(PLAN, SPANS, index=0)))
    assert log.records(RUN, 1, 10) == CHAIN[:1]


def branch(start: int, length: int, fence: int = 9) -> list[Entry]:
    """Build a chain of `length` records of a newer host, the first `start` of which are those of CHAIN."""
    records = CHAIN[:start]
    for index in range(start + 1, length + 1):
        previous = digest_of(records[-1]) if records else GENESIS
        record = record_of(PLAN, SPANS, index=index, previous=previous)
        records.append(entry_of(replace(record, step=index, fence=fence)))
    return records


@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_newer_branch_replaces_the_records_here(log: UpdateLog, tmp_path: Path, start: int) -> None:
    for record in CHAIN:
        hold(log, SPANS[0], step=CHAIN.index(record) + 1)
        log.append(record)
    newer = branch(start, 6)
    assert log.append(newer[start])
    assert not any(log.append(record) for record in newer)
    assert log.lost_page(RUN).records == tuple(CHAIN[start:])
    again = UpdateLog(tmp_path, SITE_KEY)
    for opened in (log, again):
        assert opened.records(RUN, 1, 10) == newer
        assert [opened.span(RUN, index, 0) is not None for index in range(1, 5)] == [n < start for n in range(4)]
    assert {name for name in files(tmp_path) if name.startswith("lost")} == {
        f"lost/{index:08d}-3.json" for index in range(start + 1, 5)
    }


def test_a_branch_that_began_earlier_is_asked_for(log: UpdateLog) -> None:
    for record in CHAIN:
        log.append(record)
    newer = branch(1, 6)
    for record in newer[3:5]:
        with pytest.raises(Forked):
            log.append(record)
    assert log.records(RUN, 1, 10) == CHAIN


def test_an_older_branch_replaces_nothing(log: UpdateLog) -> None:
    for record in CHAIN:
        log.append(record)
    older = branch(1, 6, fence=2)
    for record in older[1:]:
        with pytest.raises(Problem, match="E402") as caught:
            log.append(record)
        assert not isinstance(caught.value, Forked)
    assert log.records(RUN, 1, 10) == CHAIN


def test_a_page_for_the_site_is_limited(log: UpdateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for record in CHAIN:
        log.append(record)
    assert log.page(RUN, 2) == tuple(CHAIN[1:])
    monkeypatch.setattr(update_log, "PAGE_BYTES", 1)
    assert log.page(RUN, 2) == (CHAIN[1],)
    log.append(branch(1, 2)[1])
    given = []
    while (lost := log.lost_page(RUN)).paths:
        given.append(lost.records)
        log.put_aside(RUN, lost)
    assert given == [(record,) for record in CHAIN[1:]]


def test_damaged_lost_record_is_left_out(log: UpdateLog, tmp_path: Path) -> None:
    for record in CHAIN:
        log.append(record)
    log.append(branch(1, 2)[1])
    next(tmp_path.rglob("lost/00000003-*.json")).write_bytes(b"damaged")
    lost = log.lost_page(RUN)
    assert lost.records == (CHAIN[1], CHAIN[3])
    log.put_aside(RUN, lost)
    assert not log.lost_page(RUN).paths


def test_a_record_that_the_site_did_not_sign_is_refused(log: UpdateLog) -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
    with pytest.raises(Problem, match="E218"):
        log.append(seal(stranger, record_of(PLAN, SPANS)))
    with pytest.raises(Problem, match="E218"):
        log.append(Entry(replace(CHAIN[0].head, payload=CHAIN[0].head.payload.replace(b"2.5", b"2.4"))))
    assert log.last_index(RUN) == 0


@pytest.mark.parametrize("run", ["..", "../" + RUN, "*", RUN.upper(), RUN + "\n", ""])
def test_a_run_that_is_no_run_is_refused(log: UpdateLog, run: str, tmp_path: Path) -> None:
    assert log.span(RunId(run), 1, 0) is None
    with pytest.raises(ValueError, match="is not a run"):
        log.forget(RunId(run), 7)
    with pytest.raises(ValueError, match="is not a run"):
        log.hold(RunId(run), 0, 3, 1, SPANS[0])
    assert list(tmp_path.iterdir()) == []


def test_runs_are_apart(log: UpdateLog) -> None:
    other = replace(record_of(PLAN, SPANS), run=RunId("cd" * 16))
    log.append(CHAIN[0])
    log.append(entry_of(other))
    log.append(CHAIN[1])
    assert (log.last_index(RUN), log.last_index(other.run)) == (2, 1)


# Spans


def test_the_record_promotes_what_it_names_and_the_rest_goes(log: UpdateLog, tmp_path: Path) -> None:
    for span in SPANS:
        hold(log, span)
        hold(log, span, attempt=2)
    hold(log, SPANS[0], step=2)
    log.append(CHAIN[0])
    assert [held_payloads(log, 1, span.span) for span in SPANS] == [payloads_of(span) for span in SPANS]
    assert log.missing(RUN, 1) == []
    later = f"tentative/1-3-1-0-{SPANS[0].root.hex()}.span"
    assert files(tmp_path) == {"records/00000001.json", "spans/00000001-0.span", "spans/00000001-1.span", later}


def test_other_bytes_for_a_span_are_not_promoted(log: UpdateLog) -> None:
    log.hold(RUN, 0, 3, 1, replace(SPANS[0], root=b"o" * 32))
    log.append(CHAIN[0])
    assert log.missing(RUN, 1) == list(ENTRIES)


def test_the_same_average_of_the_next_step_is_another_span(log: UpdateLog) -> None:
    """Parameters that never get a gradient have the same root at every step, so the root alone does not identify a
    span."""
    hold(log, SPANS[0], step=2)
    log.append(CHAIN[0])
    assert log.span(RUN, 1, 0) is None
    log.append(CHAIN[1])
    assert held_payloads(log, 2, 0) == payloads_of(SPANS[0])


def test_leaves_that_the_record_does_not_name_are_not_given_out(log: UpdateLog, tmp_path: Path) -> None:
    for span in SPANS:
        hold(log, span)
    log.append(CHAIN[0])
    spans = tmp_path / RUN / "spans"
    (spans / "00000001-0.span").replace(spans / "00000001-1.span")
    assert log.missing(RUN, 1) == list(ENTRIES)


def test_what_is_missing_can_be_stored(log: UpdateLog) -> None:
    hold(log, SPANS[0])
    log.append(CHAIN[0])
    assert log.missing(RUN, 1) == [ENTRIES[1]]
    log.store(RUN, 1, 1, [memoryview(data) for data in payloads_of(SPANS[1])])
    assert log.missing(RUN, 1) == []
    stored = log.span(RUN, 1, 1)
    assert stored is not None
    assert (stored.entry, stored.leaves) == (ENTRIES[1], SPANS[1].leaves)


def test_only_what_the_record_names_is_stored(log: UpdateLog) -> None:
    log.append(CHAIN[0])
    damaged = bytearray(PAYLOADS[1])
    damaged[77] ^= 4
    for payloads in ([PAYLOADS[0], bytes(damaged)], [PAYLOADS[1], PAYLOADS[0]], [PAYLOADS[0]]):
        with pytest.raises(Problem, match=r"E111: .*span 0 of record 1"):
            log.store(RUN, 1, 0, payloads)
    with pytest.raises(Problem, match=r"E402: .*no span 7"):
        log.store(RUN, 1, 7, payloads_of(SPANS[0]))
    with pytest.raises(Problem, match=r"E402: .*record 2 is missing"):
        log.store(RUN, 2, 0, payloads_of(SPANS[0]))
    assert log.missing(RUN, 1) == list(ENTRIES)


def test_a_damaged_span_is_missing_and_can_be_stored_again(log: UpdateLog, tmp_path: Path) -> None:
    hold(log, SPANS[0])
    log.append(CHAIN[0])
    path = tmp_path / RUN / "spans" / "00000001-0.span"
    path.write_bytes(path.read_bytes()[:-1])
    assert ENTRIES[0] in log.missing(RUN, 1)
    log.store(RUN, 1, 0, payloads_of(SPANS[0]))
    assert held_payloads(log, 1, 0) == payloads_of(SPANS[0])


def test_what_a_snapshot_covers_is_forgotten_but_for_the_records(log: UpdateLog) -> None:
    for step, record in enumerate(CHAIN, 1):
        hold(log, SPANS[0], step=step)
        log.append(record)
    log.forget(RUN, keep_after=2)
    assert [log.span(RUN, index, 0) is not None for index in (1, 2, 3, 4)] == [False, False, True, True]
    assert log.records(RUN, 1, 10) == CHAIN


def test_newest_of_them_are_kept_as_a_reserve(tmp_path: Path) -> None:
    """A site that is restored from an old backup may need them once more."""
    log = UpdateLog(tmp_path, SITE_KEY)
    for step, record in enumerate(CHAIN, 1):
        hold(log, SPANS[0], step=step)
        log.append(record)
    (size,) = {path.stat().st_size for path in (tmp_path / RUN / "spans").iterdir()}
    for reserve, kept in ((10 * size, [1, 2, 3, 4]), (2 * size, [3, 4]), (2 * size - 1, [4])):
        log._keep_bytes = reserve
        log.forget(RUN, keep_after=3)
        assert [index for index in (1, 2, 3, 4) if log.span(RUN, index, 0)] == kept


def test_a_void_attempt_is_forgotten_and_no_other(log: UpdateLog, tmp_path: Path) -> None:
    hold(log, SPANS[0])
    hold(log, SPANS[0], attempt=2)
    hold(log, SPANS[0], step=2)
    log.void(RUN, 0, 3, 1)
    root = SPANS[0].root.hex()
    assert files(tmp_path) == {f"tentative/0-3-2-0-{root}.span", f"tentative/1-3-1-0-{root}.span"}


def test_void_round_deletes_spans_kept_from_earlier_attempts(log: UpdateLog, tmp_path: Path) -> None:
    hold(log, SPANS[0])
    hold(log, SPANS[1], attempt=2)
    log.void(RUN, 0, 3, 2)
    assert files(tmp_path) == set()


# Crashes


class Crash(BaseException):
    """Raised in place of a disk write to simulate a machine that stops at that point."""


def moments(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> Iterator[int]:
    """Repeat the work, crashing it before its first, second, … call that changes the disk."""
    for moment in range(1, 100):
        with monkeypatch.context() as patched:
            crash_at(patched, moment)
            try:
                work()
            except Crash:
                pass
            else:
                return
        yield moment


def crash_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """Raise `Crash` in every call that changes the disk, starting with call number `moment`."""
    calls = count(1)

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if next(calls) >= moment:  # cleanup fails too, because a dead process does nothing more
                raise Crash
            return real(*args, **kwargs)

        return call

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


def test_a_crash_at_any_moment_leaves_a_log_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = (tmp_path / str(number) for number in range(100))
    folder = next(folders)

    def two_rounds() -> None:
        log = UpdateLog(folder, SITE_KEY)
        for step, record in enumerate(CHAIN[:2], 1):
            for span in SPANS:
                hold(log, span, step=step)
                hold(log, span, step=step, attempt=2)
            log.append(record)

    crashes = 0
    for _ in moments(monkeypatch, two_rounds):
        log = UpdateLog(folder, SITE_KEY)
        last = log.last_index(RUN)
        assert log.records(RUN, 1, 10) == CHAIN[:last]
        for index in range(1, last + 1):
            assert [held_payloads(log, index, span.span) for span in SPANS] == [payloads_of(s) for s in SPANS]
        for record in CHAIN:
            log.append(record)
        assert not any(name.endswith(".tmp") or name.startswith("tentative") for name in files(folder))
        folder, crashes = next(folders), crashes + 1
    assert crashes > 30


def test_leftover_temporary_files_are_removed(tmp_path: Path) -> None:
    hold(UpdateLog(tmp_path, SITE_KEY), SPANS[0])
    (tmp_path / RUN / "records" / "00000001.json.tmp").write_bytes(b"{")
    (tmp_path / RUN / "tentative" / "half.span.tmp").write_bytes(b"MHSPAN1\n")
    (tmp_path / "note.txt").write_text("not a run")
    UpdateLog(tmp_path, SITE_KEY)
    assert [path.name for path in tmp_path.rglob("*.tmp")] == []
    assert (tmp_path / "note.txt").exists()


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"", lambda data: data[:-20] + b"\n"])
def test_a_damaged_newest_record_is_fetched_again(
    log: UpdateLog, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    for record in CHAIN[:3]:
        log.append(record)
    path = tmp_path / RUN / "records" / "00000003.json"
    path.write_bytes(damage(path.read_bytes()))
    reopened = UpdateLog(tmp_path, SITE_KEY)
    assert reopened.last_index(RUN) == 2
    reopened.append(CHAIN[2])
    assert reopened.records(RUN, 1, 10) == CHAIN[:3]


def test_a_damaged_older_record_is_a_numbered_error(log: UpdateLog, tmp_path: Path) -> None:
    for record in CHAIN[:3]:
        log.append(record)
    (tmp_path / RUN / "records" / "00000002.json").write_bytes(b"{}")
    with pytest.raises(Problem, match=r"E402: .*record 2 is missing or damaged"):
        log.records(RUN, 1, 10)


def test_a_log_that_is_opened_again_goes_on(log: UpdateLog, tmp_path: Path) -> None:
    hold(log, SPANS[0])
    log.append(CHAIN[0])
    hold(log, SPANS[1], step=2)
    reopened = UpdateLog(tmp_path, SITE_KEY)
    reopened.append(CHAIN[1])
    assert held_payloads(reopened, 1, 0) == payloads_of(SPANS[0])
    assert held_payloads(reopened, 2, 1) == payloads_of(SPANS[1])


BODIES = [b"first chunk", b"", b"the third"]
LEAVES = [leaf_of(payload, 1.5) for payload in BODIES]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "1-0.span"
    write_span(path, LEAVES, BODIES)
    return path


def test_what_was_written_is_read(path: Path) -> None:
    stored = read_span(path)
    assert stored is not None
    assert list(stored.leaves) == LEAVES
    assert [bytes(payload) for payload in stored.payloads] == BODIES
    assert [file.name for file in path.parent.iterdir()] == ["1-0.span"]


def test_a_span_that_is_being_read_may_be_deleted(path: Path) -> None:
    stored = read_span(path)
    path.unlink()
    assert stored is not None
    assert bytes(stored.payloads[2]) == b"the third"


def test_no_file_is_no_span(tmp_path: Path) -> None:
    assert read_span(tmp_path / "1-0.span") is None


def test_a_file_cut_anywhere_is_no_span(path: Path) -> None:
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert read_span(path) is None
    path.write_bytes(data + b"x")
    assert read_span(path) is None
    path.write_bytes(b"X" + data[1:])
    assert read_span(path) is None


def test_each_payload_needs_a_leaf(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 leaves for 3 chunks"):
        write_span(tmp_path / "1-0.span", LEAVES[:2], BODIES)


def test_a_full_disk_is_a_numbered_error_and_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Problem, match=r"E106: .*No space left"):
        write_durably(path, [b"new"])
    assert [file.name for file in path.parent.iterdir()] == ["1-0.span"]
    assert read_span(path) is not None


def test_a_missing_folder_is_a_numbered_error(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E106"):
        write_durably(tmp_path / "gone" / "file", [b"new"])

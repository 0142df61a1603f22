"""Choosing the snapshots whose files are kept."""

import hashlib
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from jobs.queue import Kind
from runs import selectors, storage
from runs.models import LogEntry, Run, Snapshot
from runs.snapshots import retention
from runs.snapshots.replay import log_folders
from runs.snapshots.verification import ask_the_log, verify_next
from tests.jobs.requests import do
from tests.runs.factories import Owned, committed

LONG_AGO = retention.ASKED_FOR_S + 1
BEGIN = retention.superfluous(range(30))[-1]  # a snapshot that would be removed if the next replay did not start there
places = st.sets(st.integers(0, 100_000), min_size=1, max_size=80).map(sorted)


class TestTheRule:
    @given(places)
    def test_first_and_newest_two_stay_within_the_maximum(self, taken: list[int]) -> None:
        gone = retention.superfluous(taken)
        kept = [place for place in taken if place not in gone]
        assert kept[:1] == taken[:1]
        assert kept[-2:] == taken[-2:]
        assert len(kept) == min(len(taken), retention.MOST)

    @given(places)
    def test_what_stays_stays_when_it_is_asked_again(self, taken: list[int]) -> None:
        gone = set(retention.superfluous(taken))
        assert retention.superfluous([place for place in taken if place not in gone]) == []

    @given(places, st.data())
    def test_a_pinned_one_stays_and_no_more_than_that_many(self, taken: list[int], data: st.DataObject) -> None:
        pinned = data.draw(st.sampled_from(taken))
        kept = set(taken) - set(retention.superfluous(taken, pinned={pinned}))
        assert pinned in kept
        assert len(kept) == min(len(taken), retention.MOST)

    @pytest.mark.parametrize("count", [20, 50, 317, 1000])
    def test_what_stays_of_a_long_run_is_spread_evenly(self, count: int) -> None:
        kept: list[int] = []
        for place in range(count):
            kept.append(place)
            gone = retention.superfluous(kept)
            kept = [each for each in kept if each not in gone]
        gaps = [late - early for early, late in pairwise(kept)]
        assert len(kept) == retention.MOST
        assert max(gaps) <= 3 * count / retention.BETWEEN


def handed_in(run: Run, laptop: Owned, *, ago_s: float = LONG_AGO) -> Path:
    """Commit a step with a snapshot. The snapshot's file was last touched `ago_s` seconds ago."""
    entry = committed(run, (laptop.machine, 4), state_digest="5" * 16)
    content = f"the state of step {entry.step}".encode()
    file = hashlib.sha256(content).hexdigest()
    path = storage.snapshot_path(run, file)
    path.write_bytes(content)
    touched(path, ago_s)
    facts = {"digest": entry.digest, "state_digest": "5" * 16, "file": file, "size": len(content)}
    Snapshot.objects.create(run=run, index=entry.index, step=entry.step, heldout_loss=4 - entry.step / 100, **facts)
    return path


def touched(path: Path, ago_s: float) -> None:
    then = time.time() - ago_s
    os.utime(path, (then, then))


@pytest.fixture
def long_run(run: Run, laptop: Owned) -> Run:
    touched(storage.snapshot_path(run, run.snapshots.get().file), LONG_AGO)
    for _ in range(29):
        handed_in(run, laptop)
    run.snapshots.filter(index=BEGIN).update(state=Snapshot.State.VERIFIED)
    return run


def stored(run: Run) -> list[int]:
    return [snapshot.index for snapshot in selectors.snapshots(run)]


class TestFiles:
    def test_go_and_rows_stay_for_their_held_out_losses(self, long_run: Run) -> None:
        assert do(Kind.THIN_SNAPSHOTS, long_run.pk) is None
        kept = stored(long_run)
        assert len(kept) == retention.MOST
        assert {0, 28, 29} <= set(kept)
        files = {path.stem for path in storage.snapshots_folder(long_run).iterdir()}
        assert files == set(selectors.snapshots(long_run).values_list("file", flat=True))
        assert len(selectors.heldout_points(long_run)) == 29

    def test_somebody_who_is_loading_one_finds_it_again(self, long_run: Run, laptop: Owned) -> None:
        wanted = long_run.snapshots.get(index=1)
        header = laptop.credential(long_run, now=int(time.time()))
        address = f"/api/v1/files/snapshots/{wanted.file}"
        first = Client().get(address, headers={**header, "Range": "bytes=0-3"})
        assert first.status_code == 206
        retention.thin_snapshots(long_run.pk)
        assert Client().get(address, headers={**header, "Range": "bytes=4-"}).status_code == 206, "it goes on"
        retention.thin_snapshots(long_run.pk, now=time.time() + LONG_AGO)
        gone = Client().get(address, headers=header)
        assert (gone.status_code, gone.json()["code"]) == (410, "E326")

    def test_fresh_files_are_kept_and_leftovers_removed(self, long_run: Run) -> None:
        fresh, old = (storage.snapshots_folder(long_run) / f"{name}.safetensors" for name in ("a" * 64, "b" * 64))
        for path, ago_s in ((fresh, 1), (old, LONG_AGO)):
            path.write_bytes(b"no row yet")
            touched(path, ago_s)
        retention.thin_snapshots(long_run.pk)
        assert (fresh.exists(), old.exists()) == (True, False)

    def test_a_file_that_is_gone_already_stops_nothing(self, long_run: Run) -> None:
        for path in storage.snapshots_folder(long_run).iterdir():
            path.unlink()
        retention.thin_snapshots(long_run.pk)
        assert len(stored(long_run)) == retention.MOST

    def test_a_few_all_stay(self, run: Run, laptop: Owned) -> None:
        paths = [handed_in(run, laptop) for _ in range(retention.MOST - 1)]
        retention.thin_snapshots(run.pk)
        assert all(path.exists() for path in paths)


def test_replay_begins_at_a_kept_verified_one_with_the_log_since(
    long_run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/site_work/test_replay.py covers the child process's own work."""
    retention.thin_snapshots(long_run.pk, now=time.time() + LONG_AGO)
    assert BEGIN in stored(long_run), "it is where the next replay begins"
    long_run.snapshots.filter(state=Snapshot.State.ADMITTED).update(is_stored=False)
    monkeypatch.setattr("runs.snapshots.replay.to_lines", lambda _: b"a record")
    ask_the_log(long_run, index=BEGIN + 2, step=BEGIN + 2)
    given_to: list[list[str]] = []

    def child(command: list[str], **_: Any) -> None:
        given_to.append([command[2], *sorted(path.name for path in Path(command[3]).iterdir())])
        assert Path(command[2]).exists()
        raise RuntimeError("seen enough")

    monkeypatch.setattr("runs.snapshots.replay.run_child", child)
    verify_next(long_run.pk)
    begin = long_run.snapshots.get(index=BEGIN).file
    path = str(storage.snapshot_path(long_run, begin))
    assert given_to == [[path, f"{BEGIN + 1:012d}.json", f"{BEGIN + 2:012d}.json"]]
    assert LogEntry.objects.filter(run=long_run).count() == 29


def test_replay_reads_the_sites_relays_and_those_of_the_operator(run: Run, settings: Any, tmp_path: Path) -> None:
    own, other, idle = settings.DATA / "relay", tmp_path / "elsewhere", tmp_path / "another"
    for home in (own, other):
        (home / "log" / run.run_id).mkdir(parents=True)
    idle.mkdir()
    settings.RELAY_FOLDERS = [idle, other]
    assert log_folders(run) == [own / "log" / run.run_id, other / "log" / run.run_id]

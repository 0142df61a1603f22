"""The last state of a run, made here from snapshot and log because nobody is left to hand it in."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import IntegrityError, transaction

from accounts.keys import site_key
from peer_agent.protocol.credentials import Signed, public_bytes
from peer_agent.protocol.records import to_lines
from runs import storage
from runs.child import run_child
from runs.models import LogEntry, Run, Snapshot
from runs.preparation import faults_to, recipe_file
from runs.timeline import tell, tell_once

_lock = threading.Lock()
_replaying: set[UUID] = set()

MADE = "Nobody was left to hand in the model, so it was made from the log."


def replay_log(run_id: UUID) -> None:
    """Make the snapshot at the head of the log. Does nothing where there is one, or where it is being made."""
    with _once_at_a_time(run_id) as is_first:
        if is_first:
            _replay(Run.objects.select_related("head").get(pk=run_id))


@contextmanager
def _once_at_a_time(run_id: UUID) -> Iterator[bool]:
    """Whether no other thread of this process is at it: a host asks every minute, and a long log takes longer."""
    with _lock:
        is_first = run_id not in _replaying
        _replaying.add(run_id)
    try:
        yield is_first
    finally:
        if is_first:
            _replaying.discard(run_id)


def _replay(run: Run) -> None:
    newest = run.snapshots.order_by("-index")[0]
    if newest.index >= run.head.index:
        return
    with (
        faults_to(lambda fault: tell_once(run=run, kind="failed", text=str(fault)), "E312"),
        storage.workspace() as work,
    ):
        made = run_child(_command(run, newest, work))
        storage.put(work / "out" / f"{made['file']}.safetensors", storage.snapshot_path(run, made["file"]))
        _keep(run, made)


def log_folders(run: Run) -> list[Path]:
    """This run's log on each relay of this site's own, and on those whose folders the operator has named."""
    homes = [*sorted(Path(settings.DATA).glob("relay*")), *settings.RELAY_FOLDERS]
    return [log for home in homes if (log := home / "log" / run.run_id).is_dir()]


def _command(run: Run, newest: Snapshot, work: Path) -> list[str]:
    paths = [recipe_file(run, work), storage.snapshot_path(run, newest.file), _records(run, newest, work), work / "out"]
    logs = [part for folder in log_folders(run) for part in ("--log", str(folder))]
    key = ["--site-key", public_bytes(site_key()).hex(), "--digests", str(_digests(run, newest, work))]
    return ["replay", *map(str, paths), *key, *logs]


def _records(run: Run, newest: Snapshot, work: Path) -> Path:
    """What the site has committed since the snapshot, a file each."""
    folder = work / "records"
    folder.mkdir()
    for entry in run.log.filter(index__gt=newest.index).order_by("index").iterator(chunk_size=100):
        sealed = Signed(bytes(entry.record), bytes(entry.signature))
        (folder / f"{entry.index:012d}.json").write_bytes(to_lines(sealed))
    return folder


def _digests(run: Run, newest: Snapshot, work: Path) -> Path:
    """What replicas reported of their states since the snapshot."""
    reported = run.log.filter(index__gt=newest.index).exclude(state_digest="").values_list("index", "state_digest")
    path = work / "digests.json"
    path.write_bytes(msgspec.json.encode({newest.index: newest.state_digest, **dict(reported)}))
    return path


def _keep(run: Run, made: dict[str, Any]) -> None:
    facts = {"index": made["index"], "step": made["step"], "digest": made["log_digest"]}
    try:
        with transaction.atomic():
            Snapshot.objects.create(
                run=run, **facts, state_digest=made["state_digest"], file=made["file"], size=made["size"]
            )
            LogEntry.objects.filter(run=run, index=made["index"], state_digest="").update(
                state_digest=made["state_digest"]
            )
            tell(run=run, kind="replayed", text=MADE)
    except IntegrityError:
        pass  # somebody came back and handed it in first

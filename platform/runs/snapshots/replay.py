"""Functions that replay a run's log from a snapshot, in a child process.

The child reads averaged bytes from the site's archive and from relay folders on this machine. It fetches the rest from
relays over data links. It authenticates there with its own key, and with a credential that the site renews.
"""

import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings

from accounts.keys import site_key
from accounts.services import issue_reader
from peer_agent.protocol.credentials import LIFETIME_S, public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Entry, read_contributions, to_lines
from peer_agent.protocol.messages import Listener
from peer_agent.site_work.relay_logs import MOST_RELAYS, Reach, write_reach
from runs import storage
from runs.ledger.records import AT_ONCE, sealed_of, with_records
from runs.models import LogEntry, RelayAddress, Run, Snapshot
from runs.processes import run_child
from runs.storage import recipe_file

RENEW_S = LIFETIME_S / 2
TIMEOUT_S = 7 * 24 * 3600  # enough for the steps between two snapshots of a large model on a busy site
RECHECK_S = 3600  # of a recheck; its child computes contributions for ten minutes, and else replays

Tell = Callable[[int], None]


class Made(msgspec.Struct, frozen=True):
    """A state rebuilt from the log. `file` is the SHA-256 of its canonical snapshot; `size` is in bytes."""

    file: str
    size: int
    index: int
    step: int
    log_digest: str
    state_digest: str


def replay_to(run: Run, start: Snapshot, index: int, work: Path, *, expected: str, tell: Tell) -> Made:
    """Replay the log from a snapshot up to an entry, calling `tell` with the current step every few seconds.

    The child writes the state to `<work>/out/<file>.safetensors`, unless it is the `expected` file.

    Raises Problem E341 if no relay has an update, E342 if a record does not follow the state, E218 if the site did not
    sign a record, E310 if the snapshot is malformed, E106 if the disk is full, or E327 if the child fails otherwise.
    Raises ChildStopped if the site is shutting down.
    """
    paths = [*_paths(run, start, index, work), str(work / "out")]
    expectations = ["--begins", start.file, "--expected", expected]
    return msgspec.convert(_child(run, start, index, ["replay", *paths, *expectations], work, tell=tell), Made)


def recheck(run: Run, start: Snapshot, indexes: Collection[int], asked: bytes, work: Path) -> dict[str, Any]:
    """Compute contributions to these entries again while replaying the log from a snapshot.

    `asked` is what the child computes, and the result is what it found, both as in `peer_agent.site_work.recheck`.
    Raises the errors of `replay_to`, and E111 if a shard is damaged.
    """
    used = _shards_of(run, indexes)
    folder = storage.prepared_folder(run.dataset) / "shards"
    file, shards = work / "asked.json", storage.local(folder, lambda name: name.partition(".")[0] in used)
    file.write_bytes(asked)
    paths = [*_paths(run, start, max(indexes), work, whole=indexes), str(file), str(shards)]
    return _child(run, start, max(indexes), ["recheck", *paths], work, timeout_s=RECHECK_S)


def _shards_of(run: Run, indexes: Collection[int]) -> set[str]:
    """Return the digests of the shards that contributions to these entries are from."""
    entries = with_records(run, first=min(indexes)).filter(index__in=indexes)
    parts = [part for entry in entries for part in read_contributions(sealed_of(entry))]
    numbers = {unit.shard for part in parts for unit in part.units}
    return set(run.dataset.shards.filter(position__in=numbers).values_list("digest", flat=True))


def _child(
    run: Run,
    start: Snapshot,
    index: int,
    command: list[str],
    work: Path,
    *,
    tell: Tell = lambda _: None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Run a child that replays the log from a snapshot up to an entry, and return what it prints."""
    reader = Reader(run, work / "reach")
    progress = work / "progress"

    def beat() -> None:
        reader.renew()
        tell(_read_step(progress, start.step))

    spans = storage.archive_folder(run) / "spans"
    storage.local(spans, lambda name: start.index < int(name.partition("-")[0]) <= index)
    command = [*command, *_options(run, reader.path, progress), *storage.model_files(run)]
    return run_child(command, timeout_s=timeout_s, secret=reader.secret, beat=beat)


def replay_all(run: Run) -> dict[str, Any]:
    """Replay a run's log up to its latest verified snapshot, and compare the result with that snapshot.

    The replay starts from the earliest verified snapshot that is stored, but after the last rollback and after any lost
    averages. Return the first and last step, and the fault if the replay is impossible or gives a different state.
    """
    verified = run.snapshots.filter(state=Snapshot.State.VERIFIED, is_undone=False).order_by("index")
    breaks = run.log.filter(kind=LogEntry.Kind.ROLLBACK).values_list("index", flat=True)
    bridged = verified.filter(is_bridged=True).values_list("index", flat=True)
    since = max([0, *breaks, *bridged])
    start, end = verified.filter(index__gte=since, is_stored=True).first(), verified.last()
    found: dict[str, Any] = {"replayed_from": start.step if start else 0, "replayed_to": 0, "replay_fault": ""}
    if start is None or end is None or end.index <= start.index:
        return found | {"replay_fault": "no verified snapshot can be replayed yet"}
    try:
        with storage.workspace() as work:
            made = replay_to(run, start, end.index, work, expected=end.file, tell=lambda _: None)
    except Problem as problem:
        return found | {"replay_fault": str(problem)}
    if made.file != end.file:
        return found | {"replay_fault": f"step {end.step}: the replay gives another state than the snapshot"}
    return found | {"replayed_to": end.step}


def log_folders(run: Run) -> list[Path]:
    """Return a run's log folders on this machine: those of the site's own relays, and those the operator listed."""
    homes = [*sorted(Path(settings.DATA).glob("relay*")), *settings.RELAY_FOLDERS]
    return [log for home in homes if (log := home / "log" / run.run_id).is_dir()]


class Reader:
    """The child's access to a run's log on relays: its key, and a file with a credential that the site renews."""

    def __init__(self, run: Run, path: Path) -> None:
        self.run, self.path = run, path
        self.key, self._peer = Ed25519PrivateKey.generate(), PeerId(uuid.uuid4().hex)
        self._renewed_at = -RENEW_S
        self.renew()

    @property
    def secret(self) -> str:
        """The private key in hexadecimal, passed to the child on standard input."""
        return self.key.private_bytes_raw().hex()

    def renew(self) -> None:
        """Write a new credential and the relays' addresses once half of the old credential's lifetime has passed."""
        if time.monotonic() - self._renewed_at < RENEW_S and self.path.exists():
            return
        self._renewed_at = time.monotonic()
        key = public_bytes(self.key)
        credential = issue_reader(key=key, peer=self._peer, run=self.run.run_id, now=int(time.time()))
        reach = Reach(run=self.run.run_id, peer=self._peer, credential=credential, relays=_known_relays())
        write_reach(self.path, reach)


def _known_relays() -> tuple[Listener, ...]:
    rows = RelayAddress.objects.order_by("-heard_at")[:MOST_RELAYS]
    return tuple(Listener(peer=PeerId(row.peer), url=row.url, fingerprint=row.fingerprint) for row in rows)


def _paths(run: Run, start: Snapshot, index: int, work: Path, *, whole: Collection[int] = ()) -> list[str]:
    state = storage.local(storage.snapshot_path(run, start.file))
    return [*map(str, (recipe_file(run, work), state, _records(run, start, index, work, whole)))]


def _options(run: Run, reach: Path, progress: Path) -> list[str]:
    folders = [storage.archive_folder(run), *log_folders(run)]
    logs = [part for folder in folders for part in ("--log", str(folder))]
    return ["--site-key", public_bytes(site_key()).hex(), "--reach", str(reach), "--progress", str(progress), *logs]


def _records(run: Run, start: Snapshot, index: int, work: Path, whole: Collection[int]) -> Path:
    """Write the entries after a snapshot to files. A replay needs only the head, except of the entries in `whole`."""
    folder = work / "records"
    folder.mkdir()
    entries = with_records(run, first=start.index + 1).filter(index__lte=index)
    for entry in entries.iterator(chunk_size=AT_ONCE):
        sealed = sealed_of(entry)
        lines = to_lines(sealed if entry.index in whole else Entry(sealed.head))
        (folder / f"{entry.index:012d}.json").write_bytes(lines)
    return folder


def _read_step(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return otherwise

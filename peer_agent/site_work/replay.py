"""Replay a run's log from a snapshot. The site computes the state itself instead of trusting an upload. It reads
averaged bytes from relays' files on this disk, or else fetches them from relays over the network.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from peer_agent.averaging.assembly import Assembly, span_sizes
from peer_agent.averaging.update_log import read_span
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.records import Entry, RecordHead, SpanEntry, digest_of, from_lines, open_head
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import NO_FILES
from peer_agent.site_work.relay_logs import RelayLogs
from peer_agent.training.replica import OutOfOrder, Replica


class Initial(Struct, frozen=True, kw_only=True):
    """A run's initial state, the snapshot at step 0. `file`: its SHA-256 in hexadecimal. `size`: in bytes."""

    file: str
    size: int
    elements: int
    parameters: int
    state_digest: str


def make_initial(recipe: Recipe, out: Path, files: Path = NO_FILES) -> Initial:
    """Write a recipe's snapshot at step 0 to a folder. `files`: the folder of files that the model needs. Raises
    Problem E106 if the disk fails, or E111 if one of the model's files is damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    replica = Replica(recipe, files=files)
    part = out / "initial.safetensors"
    digest = replica.save(part)
    path = part.replace(out / f"{digest}.safetensors")
    return Initial(
        file=digest,
        size=path.stat().st_size,
        elements=replica.layout.elements,
        parameters=sum(parameter.numel() for parameter in replica.model.parameters()),
        state_digest=replica.digest(),
    )


Tell = Callable[[int], None]


class Replayed(Struct, frozen=True, kw_only=True):
    """The state after a replay. `file`: the snapshot's SHA-256 in hexadecimal. `size`: in bytes."""

    file: str
    size: int
    index: int
    step: int
    log_digest: str
    state_digest: str


class Logs(Struct, frozen=True):
    """Sources of averaged bytes. Local relays' log folders are tried first, then relays over the network."""

    folders: Sequence[Path] = ()
    relays: RelayLogs | None = None


def replay(
    *,
    recipe: Recipe,
    snapshot: Path,
    records: Path,
    logs: Logs,
    site_key: bytes,
    out: Path,
    begins: str = "",
    expected: str = "",
    tell: Tell = lambda _: None,
    files: Path = NO_FILES,
) -> Replayed:
    """Apply signed records to a snapshot, and write the result to `<out>/<file>.safetensors`. `records`: a folder whose
    files are applied in order of name. `begins`: the snapshot's SHA-256, or "" to skip this check. `expected`: the
    SHA-256 of a state that is already stored and need not be written. Raises Problem E341 if no source has a span's
    averaged bytes, or E342 if the snapshot has changed or a record does not follow the state. Raises Problem E218 if
    the site did not sign a record, E310 if the snapshot belongs to another model, or E106 if the disk fails.
    """
    replica = Replica(recipe, files=files)
    replica.load(snapshot)
    if begins and replica.state_hash()[0] != begins:
        raise Problem.of("E342", step=replica.step, reason="its first snapshot has changed on disk")
    for path in sorted(records.iterdir()):
        apply_entry(replica, from_lines(path.read_bytes()), logs, site_key)
        tell(replica.step)
    return _written(replica, out, expected)


def telling(path: Path | None) -> Tell:
    """Return a function that writes the step to a file for the site, or does nothing if `path` is None."""

    def tell(step: int) -> None:
        if path is not None:
            draft = path.with_suffix(".new")
            draft.write_text(str(step))
            draft.replace(path)

    return tell


def apply_entry(replica: Replica, sealed: Entry, logs: Logs, site_key: bytes) -> None:
    """Apply a signed record's averages to a replica. Raises the errors of `replay`."""
    record = open_head(sealed.head, site_key)
    assembly = Assembly(Grid(record.elements, record.chunk_elements), record.codec)
    for entry in record.spans:
        if not (_is_on_disk(assembly, record, entry, logs.folders) or _is_fetched(assembly, record, entry, logs)):
            raise Problem.of("E341", step=record.step)
    gradient = assembly.gradient(record)
    try:
        assert not isinstance(gradient, list)  # every span was inserted, or E341 was raised
        replica.apply(record, digest_of(sealed), gradient)
    except OutOfOrder as error:
        raise Problem.of("E342", step=record.step, reason=error) from error


def _is_on_disk(assembly: Assembly, record: RecordHead, entry: SpanEntry, folders: Sequence[Path]) -> bool:
    return any(_is_filled(assembly, entry, path) for log in folders for path in _places(log, record, entry))


def _is_fetched(assembly: Assembly, record: RecordHead, entry: SpanEntry, logs: Logs) -> bool:
    if logs.relays is None:
        return False

    def take(payloads: Sequence[bytes]) -> bool:
        with contextlib.suppress(Problem):
            assembly.fill(entry, payloads)
            return True
        return False

    return logs.relays.fetch(record.index, entry.span, entry.first, span_sizes(record, entry), take)


def _is_filled(assembly: Assembly, entry: SpanEntry, path: Path) -> bool:
    """Insert a span from a file. Return False if the file is missing or its bytes are wrong, because another relay may
    have the right ones.
    """
    file = read_span(path)
    if file is None:
        return False
    with contextlib.suppress(Problem):
        assembly.fill(entry, file.payloads)
        return True
    return False


def _places(log: Path, record: RecordHead, entry: SpanEntry) -> list[Path]:
    held = f"{record.step - 1}-*-{entry.attempt}-{entry.span}-{entry.root}.span"
    return [log / "spans" / f"{record.index:08d}-{entry.span}.span", *sorted((log / "tentative").glob(held))]


def _written(replica: Replica, out: Path, expected: str) -> Replayed:
    file, size = replica.state_hash()
    if file != expected:
        out.mkdir(parents=True, exist_ok=True)
        part = out / "replayed.safetensors"
        replica.save(part)
        part.replace(out / f"{file}.safetensors")
    return Replayed(
        file=file,
        size=size,
        index=replica.index,
        step=replica.step,
        log_digest=replica.log_digest,
        state_digest=replica.digest(),
    )

"""The state at the end of a run's log, where no replica is left to hand it in: a snapshot, and the log replayed.

Reads what relays keep on disk while they may be at work, and changes nothing there. Not responsible for which records
count: it is given them.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.span_file import read_span
from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.records import Record, SpanEntry, digest_of, from_lines, open_record
from peer_agent.training.replica import OutOfOrder, Replica

Digests = dict[int, str]  # by index of the log, what replicas reported of their state


class Replayed(Struct, frozen=True, kw_only=True):
    """The state, written to `<file>.safetensors`; `file` is its sha256 in hexadecimal, `size` in bytes."""

    file: str
    size: int
    index: int
    step: int
    log_digest: str
    state_digest: str


def replay(
    *, recipe: Recipe, snapshot: Path, records: Path, logs: Sequence[Path], site_key: bytes, digests: Digests, out: Path
) -> Replayed:
    """Apply the sealed records in a folder, in the order of their names, to a snapshot.

    `logs`: this run's folder in the log of each relay. Raises Problem E341 where bytes are nowhere, E342 where a
    state is not the one that replicas reported, E218, E310, E106.
    """
    replica = Replica(recipe)
    replica.load(snapshot)
    _compare(replica, digests)
    for path in sorted(records.iterdir()):
        _apply(replica, from_lines(path.read_bytes()), logs, site_key)
        _compare(replica, digests)
    return _written(replica, out)


def read_digests(path: Path) -> Digests:
    """What replicas reported, as the site has written it down."""
    return msgspec.json.decode(path.read_bytes(), type=Digests)


def _apply(replica: Replica, sealed: Signed, logs: Sequence[Path], site_key: bytes) -> None:
    record = open_record(sealed, site_key)
    assembly = Assembly(Grid(record.elements, record.chunk_elements), record.codec)
    for entry in record.spans:
        if not any(_filled(assembly, entry, path) for log in logs for path in _places(log, record, entry)):
            raise Problem.of("E341", step=record.step)
    gradient = assembly.gradient(record)
    try:
        assert not isinstance(gradient, list)  # every span was filled in, or nothing came this far
        replica.apply(record, digest_of(sealed), gradient)
    except OutOfOrder as error:
        raise Problem.of("E342", step=record.step, reason=error) from error


def _filled(assembly: Assembly, entry: SpanEntry, path: Path) -> bool:
    """Whether the bytes that the record names were there. Others are passed over: another relay may have them."""
    file = read_span(path)
    if file is None:
        return False
    with contextlib.suppress(Problem):
        assembly.fill(entry, file.payloads)
        return True
    return False


def _places(log: Path, record: Record, entry: SpanEntry) -> list[Path]:
    """Where a relay keeps a span, and where it does while the commit has not reached it."""
    held = f"{record.step - 1}-*-{entry.attempt}-{entry.span}-{entry.root}.span"
    return [log / "spans" / f"{record.index:08d}-{entry.span}.span", *sorted((log / "tentative").glob(held))]


def _compare(replica: Replica, digests: Digests) -> None:
    reported = digests.get(replica.index)
    if reported and reported != (digest := replica.digest()):
        raise Problem.of("E342", step=replica.step, reason=f"{digest} instead of {reported}")


def _written(replica: Replica, out: Path) -> Replayed:
    out.mkdir(parents=True, exist_ok=True)
    part = out / "replayed.safetensors"
    file = replica.save(part)
    path = part.replace(out / f"{file}.safetensors")
    return Replayed(
        file=file,
        size=path.stat().st_size,
        index=replica.index,
        step=replica.step,
        log_digest=replica.log_digest,
        state_digest=replica.digest(),
    )

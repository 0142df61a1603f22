"""The commit record: one self-contained entry in a run's log (rules 13, 15, 16).

The site signs the head, which is encoded once for all peers. The head contains scalars, spans, sums, and a Merkle root
over the contributions. Log keepers get all the contributions; a trainer gets only its own, with its Merkle path. The
format is canonical JSON, so that people can audit and replay records without this program.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from peer_agent.protocol.credentials import RECORD, Signed, is_signed_by, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import Accumulator, Count, Medium, Peer, Run, Short, Small
from peer_agent.protocol.log.merkle import is_under, tree_of
from peer_agent.protocol.recipe import MOST_SOURCES, Codec, Weight

GENESIS = "0" * 64  # the first entry's `previous` digest
MAX_CONTRIBUTIONS = 65_536  # maximum number of slots
MAX_SPANS = 65_536

Hex = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Credit = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # token-elements
MOST_SQUARES = 1e90  # more than the sum of the squares of 2^31 float32 values
Squares = Annotated[float, Meta(ge=0, le=MOST_SQUARES)]
Scalar = Annotated[float, Meta(ge=-3.5e38, le=3.5e38)]  # an exact float32
Nats = Annotated[float, Meta(ge=0, le=1e15)]
Norm = Annotated[float, Meta(ge=0, le=1e45)]  # more than the norm of 2^31 float32 values


class Unit(Struct, frozen=True, array_like=True, order=True, gc=False):
    """A leased range of samples: positions [start, stop) in one shard's order in one epoch."""

    epoch: Count
    shard: Medium
    start: Count
    stop: Count

    @property
    def samples(self) -> int:
        return self.stop - self.start


class Included(Struct, frozen=True, array_like=True):
    """A range of chunks [first, stop), and the slots whose gradients are averaged in it."""

    first: Medium
    stop: Medium
    slots: tuple[Small, ...]


class ChunkRange(Struct, frozen=True, array_like=True, gc=False):
    """The chunks from `first` up to, but not including, `stop`."""

    first: Medium
    stop: Medium


class SpanEntry(Struct, frozen=True, kw_only=True, array_like=True):
    """One averaged span: chunks [first, stop), averaged by `reducer` in `attempt`. Its Merkle root is `root`."""

    span: Small
    first: Medium
    stop: Medium
    attempt: Small
    reducer: Peer
    root: Hex
    sum_squares: Squares  # sum of the decoded averages' squares, in float64


class Scalars(Struct, frozen=True, kw_only=True):
    """The values that the optimizer needs besides the averaged gradient. Every value is an exact float32."""

    learning_rate: Scalar
    clip: Scalar
    inverse_bias_1: Scalar
    inverse_bias_2: Scalar
    inverse_tokens: Scalar


class Evidence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A contribution as it was offered before the plan was made. An audit compares a recomputation with it."""

    root: Hex  # Merkle root over the encoded chunks of the gradient, averaged over its loss tokens
    norm: Norm
    loss_sum: Nats  # over all the contribution's loss tokens


class Contribution(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One peer's averaged work in an entry. `samples` and `tokens` are derived from `credit`, in token-elements."""

    peer: Peer
    person: Short
    machine: Short
    slot: Small
    accumulator: Accumulator
    units: Annotated[tuple[Unit, ...], Meta(max_length=100_000)]
    weight: Count  # loss tokens
    credit: Credit
    samples: Count
    tokens: Count
    included: Annotated[tuple[ChunkRange, ...], Meta(max_length=100_000)]  # where the gradient was averaged, ascending
    clipped: bool = False  # the gradient's norm or weight exceeded rule 12's bound
    stale: Annotated[tuple[Unit, ...], Meta(max_length=100_000)] = ()  # `units` computed on older parameters (rule 10)
    codec: Codec
    evidence: Evidence | UnsetType = UNSET  # entries of older versions have none


class Restored(Struct, frozen=True, array_like=True):
    """The state that a rollback restores: the one at entry `index`, in the snapshot file with SHA-256 `file`."""

    index: Count
    file: Hex


class RecordHead(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The signed part of an entry. `index` counts entries, `step` counts updates; a rollback makes them differ."""

    version: Literal[2]
    run: Run
    index: Count
    step: Count
    fence: Medium
    attempt: Small
    round: Count
    previous: Hex  # sha256 of the previous entry's head
    kind: Literal["update", "rollback"] = "update"
    elements: Count
    chunk_elements: Medium
    codec: Codec
    spans: Annotated[tuple[SpanEntry, ...], Meta(max_length=MAX_SPANS)]
    scalars: Scalars
    contributors: Annotated[int, Meta(ge=0, le=MAX_CONTRIBUTIONS)]
    contributions_root: Hex
    loss: Nats  # mean loss over the round's loss tokens
    tokens: Count
    samples: Count
    exact: bool
    mix: Annotated[tuple[Weight, ...], Meta(max_length=MOST_SOURCES)] = ()  # the sources' weights, or empty
    restored: Restored | None = None  # set only in a rollback


class Record(RecordHead, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole committed entry: the head and all the contributions."""

    contributions: Annotated[tuple[Contribution, ...], Meta(max_length=MAX_CONTRIBUTIONS)]

    @property
    def is_whole(self) -> bool:
        return all(is_everywhere(contribution, self) for contribution in self.contributions)


class Entry(Struct, frozen=True):
    """A stored entry: the signed head, and all contributions as canonical JSON. A replay needs only the head."""

    head: Signed
    contributions: Annotated[bytes, Meta(max_length=64 * 1024 * 1024)] = b""


def is_everywhere(contribution: Contribution, head: RecordHead) -> bool:
    """Return True if a contribution is averaged in every chunk."""
    covered = sum(part.stop - part.first for part in contribution.included)
    return covered == -(-head.elements // head.chunk_elements)


def contributions_tree(contributions: Sequence[Contribution]) -> list[list[bytes]]:
    """Return the Merkle tree over contributions, whose root is in the record's head."""
    return tree_of([_canonical(contribution) for contribution in contributions])


def is_in(head: RecordHead, contribution: Contribution, position: int, path: Sequence[bytes]) -> bool:
    """Return True if this is contribution number `position` in the entry with this head. `path`: its Merkle path."""
    root = bytes.fromhex(head.contributions_root)
    return is_under(root, _canonical(contribution), position, head.contributors, path)


def whole(*, contributions: tuple[Contribution, ...], **facts: Any) -> Record:
    """Make a record from its contributions and other fields. Compute the contributions' number and Merkle root."""
    root = contributions_tree(contributions)[-1][0].hex()
    return Record(
        version=2, contributions=contributions, contributors=len(contributions), contributions_root=root, **facts
    )


def seal(site_key: Ed25519PrivateKey, record: Record) -> Entry:
    """Sign a record for storage. Raises Problem E230 if the record would not read back unchanged.

    JSON cannot represent infinity, and a database column cannot store every 64-bit integer. No replica or host could
    use such a record.
    """
    try:
        head = RecordHead(**{name: getattr(record, name) for name in RecordHead.__struct_fields__})
        contributions = msgspec.json.encode(record.contributions, order="deterministic")
        again = whole_of(msgspec.json.decode(_canonical(head), type=RecordHead), contributions)
    except (msgspec.MsgspecError, OverflowError, Problem) as error:
        raise Problem.of("E230", step=record.step, reason=error) from error
    if again != record:
        raise Problem.of("E230", step=record.step, reason="it was read back differently")
    return Entry(sign(site_key, RECORD, _canonical(head)), contributions)


def digest_of(sealed: Signed | Entry) -> str:
    """Return the SHA-256 of a sealed head, in hexadecimal. The next entry contains it as `previous`."""
    head = sealed.head if isinstance(sealed, Entry) else sealed
    return hashlib.sha256(head.payload).hexdigest()


def read_contributions(entry: Entry) -> tuple[Contribution, ...]:
    """Decode a stored entry's contributions, which were verified before they were stored.

    Raises Problem E218 if they are malformed.
    """
    try:
        return msgspec.json.decode(entry.contributions or b"[]", type=tuple[Contribution, ...])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem.of("E218") from error


def whole_of(head: RecordHead, contributions: bytes) -> Record:
    """Join a head with its entry's contributions.

    Raises Problem E218 if the contributions are malformed or do not match the head's Merkle root.
    """
    try:
        parts = msgspec.json.decode(contributions, type=tuple[Contribution, ...])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem.of("E218") from error
    if len(parts) != head.contributors or contributions_tree(parts)[-1][0].hex() != head.contributions_root:
        raise Problem.of("E218")
    return Record(contributions=parts, **structs.asdict(head))


def joined(ranges: Iterable[ChunkRange]) -> tuple[ChunkRange, ...]:
    """Merge adjacent ranges. `ranges` must be in ascending order."""
    out: list[ChunkRange] = []
    for part in ranges:
        if out and out[-1].stop == part.first:
            out[-1] = ChunkRange(out[-1].first, part.stop)
        else:
            out.append(part)
    return tuple(out)


def to_lines(entry: Entry) -> bytes:
    """Write an entry as lines for a file: the head's JSON, the signature in hex, and the contributions' JSON."""
    lines = [entry.head.payload, entry.head.signature.hex().encode()]
    if entry.contributions:
        lines.append(entry.contributions)
    return b"\n".join(lines) + b"\n"


def from_lines(data: bytes) -> Entry:
    """Parse the output of `to_lines`. Raises ValueError for anything else."""
    payload, signature, *rest = data.split(b"\n")
    if not rest or rest[-1] or len(rest) > 2:
        raise ValueError("an entry has two lines, or three")
    return Entry(Signed(payload, bytes.fromhex(signature.decode())), rest[0])


def to_json(entry: Entry) -> dict[str, Any]:
    return {**json.loads(entry.head.payload), "contributions": json.loads(entry.contributions or b"[]")}


def open_head(signed: Signed, site_public_key: bytes) -> RecordHead:
    """Verify a head's signature and return the decoded head. Raises Problem E218 if either fails."""
    if not is_signed_by(site_public_key, RECORD, signed):
        raise Problem.of("E218")
    return read_head(signed)


def open_record(entry: Entry, site_public_key: bytes) -> Record:
    """Verify an entry's signature and Merkle root and return the whole record.

    Raises Problem E218 if the signature is wrong, the contributions do not match the root, or the entry is malformed.
    """
    return whole_of(open_head(entry.head, site_public_key), entry.contributions)


def read_head(signed: Signed) -> RecordHead:
    """Decode a stored head, whose signature was verified before it was stored.

    Raises Problem E218 if the head is malformed or has an unknown version.
    """
    try:
        return msgspec.json.decode(signed.payload, type=RecordHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem.of("E218") from error


def read_record(entry: Entry) -> Record:
    """Decode a stored entry, which was verified before it was stored. Raises Problem E218 if the entry is malformed."""
    return whole_of(read_head(entry.head), entry.contributions)


def _canonical(value: RecordHead | Contribution) -> bytes:
    return msgspec.json.encode(value, order="deterministic")

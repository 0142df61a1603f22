"""The commit record: one self-contained entry of a run's log, signed by the site (rules 13, 15, 16).

Written as canonical JSON, so that it can be read, audited and replayed without this program.
"""

import hashlib
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from peer_agent.protocol.credentials import RECORD, Signed, is_signed_by, sign
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import Accumulator, Peer, Run
from peer_agent.protocol.recipe import Codec

GENESIS = "0" * 64  # digest before the first entry


class Unit(Struct, frozen=True, array_like=True, order=True):
    """A leased range of samples: positions [start, stop) in the order of one shard in one epoch."""

    epoch: int
    shard: int
    start: int
    stop: int

    @property
    def samples(self) -> int:
        """How many samples it holds."""
        return self.stop - self.start


class Included(Struct, frozen=True, array_like=True):
    """Which slots are averaged in chunks [first, stop)."""

    first: int
    stop: int
    slots: tuple[int, ...]


class SpanEntry(Struct, frozen=True, kw_only=True):
    """One averaged span: chunks [first, stop) under `root` (hex), reduced by `reducer` in `attempt`."""

    span: int
    first: int
    stop: int
    attempt: int
    reducer: Peer
    root: str
    sum_squares: float  # of the decoded averages, float64
    included: tuple[Included, ...]


class Scalars(Struct, frozen=True, kw_only=True):
    """What the optimizer needs beside the averaged gradient. Every value is an exact float32."""

    learning_rate: float
    clip: float
    inverse_bias_1: float
    inverse_bias_2: float
    inverse_tokens: float


class Contribution(Struct, frozen=True, kw_only=True):
    """One peer's averaged-in work. `credit` is in token-elements; `samples` and `tokens` are rounded from it once."""

    peer: Peer
    person: str
    machine: str
    slot: int
    accumulator: Accumulator
    units: tuple[Unit, ...]
    weight: int  # loss tokens
    credit: int
    samples: int
    tokens: int


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A committed entry. `index` counts entries, `step` counts updates; they part at the first rollback."""

    run: Run
    index: int
    step: int
    fence: int
    attempt: int
    round: int
    previous: str  # sha256 of the record before, hex
    kind: Literal["update", "parameters", "rollback"] = "update"
    elements: int
    chunk_elements: int
    codec: Codec
    spans: tuple[SpanEntry, ...]
    scalars: Scalars
    contributions: tuple[Contribution, ...]
    loss: float  # mean nats over the round's loss tokens
    tokens: int
    samples: int
    exact: bool
    clipped: tuple[Peer, ...] = ()


def seal(site_key: Ed25519PrivateKey, record: Record) -> Signed:
    """The record's canonical bytes under the site's signature."""
    return sign(site_key, RECORD, msgspec.json.encode(record, order="deterministic"))


def digest_of(signed: Signed) -> str:
    """sha256 of a sealed record, hex: the `previous` of the next."""
    return hashlib.sha256(signed.payload).hexdigest()


def open_record(signed: Signed, site_public_key: bytes) -> Record:
    """The record, once its signature holds. Raises Problem E218."""
    if not is_signed_by(site_public_key, RECORD, signed):
        raise Problem.of("E218")
    try:
        return msgspec.json.decode(signed.payload, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem.of("E218") from error


def to_lines(signed: Signed) -> bytes:
    """A sealed record as a file: its JSON, and the signature in hexadecimal, a line each."""
    return signed.payload + b"\n" + signed.signature.hex().encode() + b"\n"


def from_lines(data: bytes) -> Signed:
    """Inverse of `to_lines`. Raises ValueError on anything else."""
    payload, signature, rest = data.split(b"\n")
    if rest:
        raise ValueError("a sealed record has two lines")
    return Signed(payload, bytes.fromhex(signature.decode()))

"""Records of version 1, which had their contributions inside the signed part. They are read, and never written."""

from typing import Literal

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import Accumulator, Peer, Run
from peer_agent.protocol.log.records import (
    ChunkRange,
    Contribution,
    Hex,
    Included,
    Nats,
    Record,
    Scalars,
    SpanEntry,
    Squares,
    Unit,
    joined,
    whole,
)
from peer_agent.protocol.recipe import Codec


class SpanEntry1(Struct, frozen=True, kw_only=True):
    """An averaged span, with who is included in which chunks."""

    span: int
    first: int
    stop: int
    attempt: int
    reducer: Peer
    root: Hex
    sum_squares: Squares
    included: tuple[Included, ...]


class Contribution1(Struct, frozen=True, kw_only=True):
    """One peer's averaged-in work."""

    peer: Peer
    person: str
    machine: str
    slot: int
    accumulator: Accumulator
    units: tuple[Unit, ...]
    weight: int
    credit: int
    samples: int
    tokens: int


class Record1(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A committed entry."""

    run: Run
    index: int
    step: int
    fence: int
    attempt: int
    round: int
    previous: Hex
    kind: Literal["update", "parameters", "rollback"] = "update"
    elements: int
    chunk_elements: int
    codec: Codec
    spans: tuple[SpanEntry1, ...]
    scalars: Scalars
    contributions: tuple[Contribution1, ...]
    loss: Nats
    tokens: int
    samples: int
    exact: bool
    clipped: tuple[Peer, ...] = ()


def converted(payload: bytes) -> Record:
    """A version 1 payload as a record of today. Raises Problem E218 where it is none."""
    try:
        old = msgspec.json.decode(payload, type=Record1)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem.of("E218") from error
    spans = tuple(
        SpanEntry(
            span=s.span,
            first=s.first,
            stop=s.stop,
            attempt=s.attempt,
            reducer=s.reducer,
            root=s.root,
            sum_squares=s.sum_squares,
        )
        for s in old.spans
    )
    facts = {name: getattr(old, name) for name in _SAME}
    return whole(contributions=tuple(_converted(part, old) for part in old.contributions), spans=spans, **facts)


_SAME = [name for name in Record1.__struct_fields__ if name not in ("spans", "contributions", "clipped")]


def _converted(part: Contribution1, record: Record1) -> Contribution:
    facts = {name: getattr(part, name) for name in Contribution1.__struct_fields__}
    included = [
        ChunkRange(there.first, there.stop)
        for span in sorted(record.spans, key=lambda span: span.first)
        for there in span.included
        if part.slot in there.slots
    ]
    return Contribution(**facts, included=joined(included), clipped=part.peer in record.clipped)

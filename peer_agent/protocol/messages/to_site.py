"""Messages from a peer to the site, on the control link."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from peer_agent.protocol.identifiers import (
    Accumulator,
    Count,
    Digest,
    Medium,
    Peer,
    Run,
    Short,
    Small,
)
from peer_agent.protocol.log.records import Included, Unit
from peer_agent.protocol.messages.base import (
    Attempted,
    Hex,
    Index,
    Message,
    Nats,
    Norm,
    Seconds,
    Squares,
    StateDigest,
    Units,
)


class DoneUnit(Struct, frozen=True, array_like=True, gc=False):
    """A unit whose gradient is in the accumulator, and the step of the parameters it was computed on."""

    unit: Unit
    base: Count


class InDoubt(Struct, frozen=True, array_like=True):
    """An attempt whose outcome the peer does not know (rule 4)."""

    step: Count
    fence: Medium
    attempt: Small


MOST_RESERVED = 90  # percent


class Hello(Message, frozen=True, kw_only=True):
    """Everything a peer holds, so that repeating it changes nothing. `step` is -1 without a state.

    Reachable (`url`), reduces, keeps the log: three independent properties of a peer.
    """

    run: Run
    accumulator: Accumulator
    done: Annotated[tuple[DoneUnit, ...], Meta(max_length=100_000)] = ()
    undone: Units = ()
    carried: Count = 0  # most tokens in a chunk that earlier updates left out; checked against the records
    step: Index = -1
    digest: StateDigest = ""
    fence: Medium = 0
    in_doubt: Annotated[tuple[InDoubt, ...], Meta(max_length=64)] = ()
    url: Short = ""  # where it listens; empty: it cannot be dialled
    reduces: bool = False
    keeps_log: bool = False
    fingerprint: Short = ""  # of the listener's certificate (rule 38)
    log_index: Index = -1  # the last record it holds or has applied
    reserve_percent: Annotated[int, Meta(ge=0, le=MOST_RESERVED)] = 0  # of its uplink: the household's reserve


class Report(Message, frozen=True, kw_only=True):
    """Progress since the last commit, as totals (never a delta), and the digest of the state at `step`.

    It reveals lost messages: `index` shows a missed commit, `undone` a missed lease.
    """

    run: Run
    accumulator: Accumulator
    done: Annotated[tuple[DoneUnit, ...], Meta(max_length=100_000)]
    loss_tokens: Count
    loss_sum: Nats
    step: Index
    index: Index  # of the last entry it has applied
    digest: StateDigest
    undone: Count = 0  # leased units that are still to be computed


class Heartbeat(Message, frozen=True, kw_only=True):
    """Sent when nothing else was for a while: the peer is alive and holds the log up to `index`."""

    run: Run
    index: Index


class StateHash(Message, frozen=True, kw_only=True):
    """The sha256 of the canonical snapshot of an entry on this replica. A snapshot is accepted under it."""

    run: Run
    index: Count
    step: Count
    sha256: Hex
    size: Count  # bytes


class Reaches(Message, frozen=True, kw_only=True):
    """All listeners to which the peer has a data link now. Repeating it changes nothing."""

    run: Run
    listeners: Annotated[tuple[Peer, ...], Meta(max_length=1024)]


class Probed(Message, frozen=True, kw_only=True):
    """Bytes that came from the other end in a probe, and in how many seconds."""

    run: Run
    number: Count
    size: Count
    seconds: Seconds


class Weight(Struct, frozen=True, array_like=True, gc=False):
    """Loss tokens accumulated in chunks [first, stop)."""

    first: Medium
    stop: Medium
    tokens: Count


class Offer(Attempted, frozen=True, kw_only=True):
    """A contributor's sum at the cut: the digest first, the bytes later (rules 1 and 9)."""

    accumulator: Accumulator
    units: Annotated[tuple[DoneUnit, ...], Meta(max_length=100_000)]
    weights: Annotated[tuple[Weight, ...], Meta(max_length=100_000)]
    loss_tokens: Count
    loss_sum: Nats
    norm: Norm
    root: Digest


class UnitsReturned(Message, frozen=True, kw_only=True):
    """Leased units that this machine will not compute."""

    run: Run
    units: Units
    reason: Literal["leaving", "non_finite", "stale"]


class SpanDone(Attempted, frozen=True, kw_only=True):
    """A reducer has averaged a span and written it to its disk."""

    span: Small
    root: Digest
    sum_squares: Squares
    included: Annotated[tuple[Included, ...], Meta(max_length=100_000)]


class Have(Attempted, frozen=True, kw_only=True):
    """A peer holds a span on its disk (rule 5)."""

    span: Small
    root: Digest


class Progress(Attempted, frozen=True, kw_only=True):
    """How many chunks of each slot a reducer has, so that the coordinator can tell slow from stuck."""

    received: Annotated[tuple[tuple[Small, Medium], ...], Meta(max_length=65_536)]  # (slot, chunks)


class Arrival(Struct, frozen=True, array_like=True, gc=False):
    """Bytes of an attempt from one peer, and when the first and last came, in seconds since the plan.

    `late`: the lateness of its latest gradient chunk, in parts of the plan's time (rule 8). `held_s`: seconds in which
    the reducer did not read from it, because it was ahead of others.
    """

    sender: Peer
    size: Count
    first_s: Seconds
    last_s: Seconds
    late: Annotated[float, Meta(ge=0, le=1)] = 0.0
    held_s: Seconds = 0.0


class Departure(Struct, frozen=True, array_like=True, gc=False):
    """Seconds in which the link to one reducer was too full to take more chunks of a gradient."""

    receiver: Peer
    full_s: Seconds


class Arrivals(Attempted, frozen=True, kw_only=True):
    """All arrivals of an attempt, sent when the last own span is averaged or the last average has come (rule 31).

    `holds`: the Merkle root over the roots of all spans in order, from a peer that has all averages (rule 5).
    `departures`: how a contributor's own gradient went, sent once it has all averages.
    """

    arrivals: Annotated[tuple[Arrival, ...], Meta(max_length=65_536)]
    holds: Annotated[bytes, Meta(max_length=32)] = b""
    departures: Annotated[tuple[Departure, ...], Meta(max_length=65_536)] = ()


class SlotRefused(Attempted, frozen=True, kw_only=True):
    """A reducer found a chunk that differs from the offer."""

    slot: Small
    chunk: Medium
    code: Short


class Leave(Message, frozen=True, kw_only=True):
    """The peer leaves; its leases return to the pool."""

    run: Run

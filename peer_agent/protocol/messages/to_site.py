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
from peer_agent.protocol.log.records import Included, Norm, Squares, Unit
from peer_agent.protocol.messages.base import (
    Attempted,
    Hex,
    Index,
    Message,
    Nats,
    Seconds,
    Sketch,
    StateDigest,
    Units,
)


class DoneUnit(Struct, frozen=True, array_like=True, gc=False):
    """A unit whose gradient is in the accumulator. `base`: the step of the parameters that it was computed with."""

    unit: Unit
    base: Count


class InDoubt(Struct, frozen=True, array_like=True):
    """An attempt whose outcome the peer does not know (rule 4)."""

    step: Count
    fence: Medium
    attempt: Small


class Heard(Struct, frozen=True, array_like=True, gc=False):
    """How far a peer has heard of a round. The site repeats what the peer has not received.

    `attempt`: the latest attempt that the peer knows. `has_plan`: the peer has that attempt's plan. `dropped`: the
    number of slots that the site has told the peer to continue without; a trainer counts only its own slot.
    """

    step: Count
    fence: Medium
    attempt: Small
    has_plan: bool
    dropped: Small = 0


MOST_RESERVED = 90  # percent


class Hello(Message, frozen=True, kw_only=True):
    """Everything that a peer has, so that repeating a hello changes nothing. `step` is -1 without a model state."""

    run: Run
    accumulator: Accumulator
    done: Annotated[tuple[DoneUnit, ...], Meta(max_length=100_000)] = ()
    undone: Units = ()
    carried: Count = 0  # most tokens in a chunk left out by earlier updates; the site checks this against the log
    step: Index = -1
    digest: StateDigest = ""
    fence: Medium = 0
    in_doubt: Annotated[tuple[InDoubt, ...], Meta(max_length=64)] = ()
    url: Short = ""  # address that the peer listens on; empty if it cannot be dialed
    reduces: bool = False
    keeps_log: bool = False
    fingerprint: Short = ""  # fingerprint of the peer's certificate for incoming links (rule 38)
    log_index: Index = -1  # index of the last log entry that the peer holds or has applied
    reserve_percent: Annotated[int, Meta(ge=0, le=MOST_RESERVED)] = 0  # percent of the uplink that the household keeps


class Report(Message, frozen=True, kw_only=True):
    """A trainer's work since the last commit. From `index` and `undone`, the site detects a lost commit or lease."""

    run: Run
    accumulator: Accumulator
    done: Annotated[tuple[DoneUnit, ...], Meta(max_length=100_000)]
    loss_tokens: Count
    loss_sum: Nats
    step: Index
    index: Index  # index of the last log entry applied by the trainer
    digest: StateDigest
    undone: Count = 0  # leased units still to be computed
    heard: Heard | None = None  # None: no round is open


class Heartbeat(Message, frozen=True, kw_only=True):
    """A sign of life from a peer that has sent nothing else for a while. `index`: the peer's last log entry."""

    run: Run
    index: Index
    heard: Heard | None = None  # None: no round is open


class StateHash(Message, frozen=True, kw_only=True):
    """The SHA-256 of this replica's canonical snapshot at a log entry. The site accepts the majority's hash."""

    run: Run
    index: Count
    step: Count
    sha256: Hex
    size: Count  # bytes


class Reaches(Message, frozen=True, kw_only=True):
    """All listeners that the peer now has a data link to. Repeating the message changes nothing."""

    run: Run
    listeners: Annotated[tuple[Peer, ...], Meta(max_length=1024)]


class Probed(Message, frozen=True, kw_only=True):
    """The result of a link probe: how many bytes arrived from the other end, and in how many seconds."""

    run: Run
    number: Count
    size: Count
    seconds: Seconds


class Weight(Struct, frozen=True, array_like=True, gc=False):
    """The number of loss tokens accumulated in each of the chunks [first, stop)."""

    first: Medium
    stop: Medium
    tokens: Count


class Offer(Attempted, frozen=True, kw_only=True):
    """A contributor's description of its gradient sum at the cut. `root` commits to the sum's bytes (rules 1 and 9)."""

    accumulator: Accumulator
    units: Annotated[tuple[DoneUnit, ...], Meta(max_length=100_000)]
    weights: Annotated[tuple[Weight, ...], Meta(max_length=100_000)]
    loss_tokens: Count
    loss_sum: Nats
    norm: Norm
    root: Digest


class UnitsReturned(Message, frozen=True, kw_only=True):
    """Leased units that the sender will not compute, or whose gradients it has discarded."""

    run: Run
    units: Units
    reason: Literal["leaving", "non_finite", "stale"]


class SpanDone(Attempted, frozen=True, kw_only=True):
    """A reducer's report that it has averaged a span and written it to disk.

    `sketches` are those of each slot's chunks in this span, 256 float32 numbers, or empty if it averaged none of them.
    """

    span: Small
    root: Digest
    sum_squares: Squares
    included: Annotated[tuple[Included, ...], Meta(max_length=100_000)]
    sketches: Annotated[tuple[Sketch, ...], Meta(max_length=65_536)] = ()  # one per slot, if the plan has a seed


class Have(Attempted, frozen=True, kw_only=True):
    """A peer's report that it has stored an averaged span (rule 5).

    The peer computed `root` and `sum_squares` from the bytes that it stored.
    """

    span: Small
    root: Digest
    sum_squares: Squares


class Progress(Attempted, frozen=True, kw_only=True):
    """A reducer's count of chunks from each slot. The coordinator uses it to tell slow slots from stuck ones.

    `behind`: slots without which the reducer closed more consecutive chunks of a span than a batch has, told at once.
    """

    received: Annotated[tuple[tuple[Small, Medium], ...], Meta(max_length=65_536)]  # (slot, chunks)
    dropped: Small = 0  # slots that the reducer has been told to continue without
    behind: Annotated[tuple[Small, ...], Meta(max_length=65_536)] = ()


class Arrival(Struct, frozen=True, array_like=True, gc=False):
    """The bytes of an attempt from one sender. `first_s`, `last_s`: seconds from the plan to the first and last bytes.

    `late`: the lateness of the latest gradient chunk, as a fraction of the plan's time (rule 8). `held_s`: how many
    seconds the reducer paused reading because the sender was ahead of the others.
    """

    sender: Peer
    size: Count
    first_s: Seconds
    last_s: Seconds
    late: Annotated[float, Meta(ge=0, le=1)] = 0.0
    held_s: Seconds = 0.0


class Departure(Struct, frozen=True, array_like=True, gc=False):
    """The number of seconds for which the link to one reducer was too full to take more gradient chunks."""

    receiver: Peer
    full_s: Seconds


class Arrivals(Attempted, frozen=True, kw_only=True):
    """A reducer's report once its last span is averaged, or a contributor's once it has all the averages (rule 31).

    `holds`: the Merkle root over the leaves of all spans, from a peer that has all the averages (rule 5). `departures`:
    how fast a contributor was able to send its own gradient.
    """

    arrivals: Annotated[tuple[Arrival, ...], Meta(max_length=65_536)]
    holds: Annotated[bytes, Meta(max_length=32)] = b""
    departures: Annotated[tuple[Departure, ...], Meta(max_length=65_536)] = ()


class SlotRefused(Attempted, frozen=True, kw_only=True):
    """A reducer's report that it refused one of this slot's chunks. `code`: the number of the error."""

    slot: Small
    chunk: Medium
    code: Short


class Audited(Message, frozen=True, kw_only=True):
    """The answer to an audit. `sketch` is empty if this machine could not compute the units, for example because it no
    longer has the parameters.
    """

    run: Run
    number: Count
    sketch: Sketch = b""
    loss_sum: Nats = 0.0
    loss_tokens: Count = 0


class Leave(Message, frozen=True, kw_only=True):
    """The peer is leaving the run. Its leased units return to the pool."""

    run: Run

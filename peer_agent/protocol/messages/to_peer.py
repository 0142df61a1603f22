"""Messages from the site to a peer, on the control link."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.identifiers import (
    Accumulator,
    Count,
    Digest,
    Medium,
    Peer,
    Run,
    Short,
    Small,
    Text,
)
from peer_agent.protocol.log.records import ChunkRange, Contribution, Norm
from peer_agent.protocol.messages.base import MAX_MESSAGE, Attempted, Hex, Message, Path, Units, Wait
from peer_agent.protocol.messages.to_site import Weight
from peer_agent.protocol.recipe import MOST_SOURCES, AveragingRule, Codec

MOST_COMING = 2 * MOST_SOURCES  # most shards announced to a machine before it leases units from them


class Listener(Struct, frozen=True):
    """A peer that other peers can dial. `reduces`: it averages spans. `keeps_log`: it stores the log."""

    peer: Peer
    url: Short
    fingerprint: Short = ""
    reduces: bool = True
    keeps_log: bool = True


class Shard(Struct, frozen=True, array_like=True):
    """A content-addressed safetensors file with a single uint16 tensor, `tokens`."""

    digest: Hex
    tokens: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """A stored state: parameters and moments at `step`, as safetensors. `digest`: the log's digest at this entry."""

    index: int
    step: int
    digest: str
    state_digest: str
    file: str  # the file's sha256, in hexadecimal
    size: int  # bytes


class Greeting(Message, frozen=True, kw_only=True):
    """Everything a peer needs to become a replica: the run's description, and where to get the state and the log."""

    run: Run
    slug: Short
    title: Short
    fence: Medium
    recipe: bytes
    elements: Count
    shards: Annotated[tuple[Shard, ...], Meta(max_length=100_000)]
    snapshot: Snapshot
    index: Count
    step: Count
    digest: Hex
    listeners: Annotated[tuple[Listener, ...], Meta(max_length=1000)]
    site_key: bytes
    reconciled: bool  # the site has checked the peer's leases; if not, the peer sends another hello once up to date


class Listeners(Message, frozen=True, kw_only=True):
    """All peers that can be dialed now."""

    run: Run
    listeners: Annotated[tuple[Listener, ...], Meta(max_length=1000)]


class Rehello(Message, frozen=True, kw_only=True):
    """A request for another hello, because a new host drives the run or a message was lost."""

    run: Run
    fence: Medium


class Lease(Message, frozen=True, kw_only=True):
    """More units for a trainer. `quota`: its accumulator's sample limit (rule 22). `coming`: shards to prefetch."""

    run: Run
    fence: Medium
    units: Units
    quota: Count
    coming: Annotated[tuple[Count, ...], Meta(max_length=MOST_COMING)] = ()


class AccumulatorRevoked(Message, frozen=True, kw_only=True):
    """This accumulator's leases have ended. The trainer discards the accumulator and starts another (rule 11)."""

    run: Run
    accumulator: Accumulator
    reason: Text


class Cut(Attempted, frozen=True, kw_only=True):
    """A request to offer the finished work in this codec and grid. With staleness 0, the trainer then stops working."""

    round: Count
    codec: Codec
    chunk_elements: Medium


class SitOut(Attempted, frozen=True, kw_only=True):
    """A notice that this round continues without the peer, because its link would slow the others down (rule 30).

    The peer gets this message instead of a cut. It receives the averages and keeps its gradients. The next round cannot
    leave it out again. The site sends this message only in runs with `contributors: fast`.
    """

    round: Count
    reason: Text


class Slot(Struct, frozen=True, kw_only=True):
    """A contributor's entry in a plan: token weights, the Merkle root of its chunks, and the scale (rule 12).

    Frames identify a slot by its position in the plan.
    """

    peer: Peer
    weights: Annotated[tuple[Weight, ...], Meta(max_length=100_000)]
    root: Digest
    norm: Norm  # the offered norm, whose square must equal the total of the leaves' sums of squares
    codec: Codec
    scale: Annotated[float, Meta(ge=0, le=1)] = 1.0


class PlannedSpan(Struct, frozen=True, kw_only=True, array_like=True):
    """Chunks [first, stop), averaged by one reducer. `root` is set if an earlier attempt has already averaged them."""

    span: Small
    first: Medium
    stop: Medium
    reducer: Peer
    attempt: Small
    root: Annotated[bytes, Meta(max_length=32)] = b""


class PlanHead(Struct, frozen=True, kw_only=True):
    """The signed part of a plan, encoded once for all peers: spans, grid, and a Merkle root over the slots."""

    run: Run
    step: Count
    fence: Medium
    attempt: Small
    round: Count
    elements: Count
    chunk_elements: Medium
    spans: Annotated[tuple[PlannedSpan, ...], Meta(max_length=65_536)]
    contributors: Small  # the number of slots
    slots_root: Digest
    codec_down: Codec
    duration_s: Wait  # T, the planned duration; 0 if no bandwidth is known
    sigma: Annotated[float, Meta(ge=0, le=1)] = 0.0  # fraction of T to wait for a chunk (rule 8); 0: forever
    seed: Count = 0  # for the sketches of all slots; 0: reducers make none
    pace: Annotated[float, Meta(ge=0, le=16)] = 0.0  # multiple of the plan's pace for gradients; 0: full speed
    rule: AveragingRule = "mean"  # how reducers combine the gradients


class Plan(PlanHead, frozen=True, kw_only=True):
    """A plan with all its slots. It says which contributor sends which chunks to which reducer."""

    slots: tuple[Slot, ...]


class Planned(Message, frozen=True, kw_only=True):
    """A signed plan (a `PlanHead` in MessagePack). A reducer gets all the slots, any other receiver only its own.

    `number` and `path` prove that `slot` is under the head's root. Without a slot, `number` is -1.
    """

    plan: Signed
    slots: Annotated[tuple[Slot, ...], Meta(max_length=65_536)] = ()
    number: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    slot: Slot | None = None
    path: Path = ()


class Probe(Message, frozen=True, kw_only=True):
    """A request to measure the idle link to `partner` in both directions. One of the two peers starts (rule 31)."""

    run: Run
    number: Count
    partner: Peer
    begins: bool


class Audit(Message, frozen=True, kw_only=True):
    """A request to compute another machine's contribution again and to answer with its sketch.

    `units` are computed on the parameters of step `step`, and `stale` on those of the step before. The sum is averaged
    over the loss tokens of both, and encoded in `codec`.
    """

    run: Run
    number: Count
    step: Count
    units: Units
    stale: Units = ()
    codec: Codec
    chunk_elements: Medium
    parts: Annotated[tuple[ChunkRange, ...], Meta(max_length=65_536)]  # make a sketch of these chunks only
    seed: Count  # of the sketch


class Uplink(Message, frozen=True, kw_only=True):
    """A machine's upload limit, which leaves the household its reserved share of the uplink."""

    run: Run
    bytes_per_s: Count


class Drop(Attempted, frozen=True, kw_only=True):
    """A request to continue without this slot from the next open chunk on."""

    slot: Small


class Void(Attempted, frozen=True, kw_only=True):
    """The attempt has ended without an update. Trainers keep their gradients."""

    round: Count
    reason: Text


class Commit(Message, frozen=True, kw_only=True):
    """An update has been committed. The receiver uploads its state if `snapshot`, and hashes it if `hash_state`.

    Log keepers get all the `contributions` (canonical JSON). A contributor gets its own, proved by `position` and
    `path`.
    """

    run: Run
    fence: Medium
    record: Signed
    contributions: Annotated[bytes, Meta(max_length=MAX_MESSAGE)] = b""
    contribution: Contribution | None = None
    position: Small = 0
    path: Path = ()
    snapshot: bool = False
    hash_state: bool = False


class Snapshotted(Message, frozen=True, kw_only=True):
    """The run's latest snapshot. Relays may delete averages of log entries up to index `keep_after`."""

    run: Run
    snapshot: Snapshot
    keep_after: int


class Reload(Message, frozen=True, kw_only=True):
    """This replica's state differs from the majority's. It must load the snapshot and replay the log."""

    run: Run
    step: Count


class State(Message, frozen=True, kw_only=True):
    """The run's current state and, if it is waiting, the reason."""

    run: Run
    state: Literal["running", "waiting", "paused", "finishing", "finished"]
    reason: Text


class Notice(Message, frozen=True, kw_only=True):
    """A numbered error to show to the receiving machine's user."""

    run: Run
    code: Short
    text: Text

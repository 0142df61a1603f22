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
from peer_agent.protocol.log.records import Contribution
from peer_agent.protocol.messages.base import MAX_MESSAGE, Attempted, Hex, Message, Norm, Path, Units, Wait
from peer_agent.protocol.messages.to_site import Weight
from peer_agent.protocol.recipe import MOST_SOURCES, Codec

MOST_COMING = 2 * MOST_SOURCES  # shards that are announced to a machine before it has units of them


class Listener(Struct, frozen=True):
    """A peer that can be dialled, and what it does."""

    peer: Peer
    url: Short
    fingerprint: Short = ""
    reduces: bool = True
    keeps_log: bool = True


class Shard(Struct, frozen=True, array_like=True):
    """A content-addressed safetensors file with one uint16 tensor `tokens`."""

    digest: Hex
    tokens: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """A verified state: parameters and moments at `step`, in safetensors, with the log's digest there."""

    index: int
    step: int
    digest: str
    state_digest: str
    file: str  # sha256 of the file, hex
    size: int  # bytes


class Greeting(Message, frozen=True, kw_only=True):
    """Everything a peer needs to become a replica: what the run is, and where its state and log are."""

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
    reconciled: bool  # its leases were checked; otherwise a commit came between, and it says hello again at the head


class Listeners(Message, frozen=True, kw_only=True):
    """All peers that can be dialled now."""

    run: Run
    listeners: Annotated[tuple[Listener, ...], Meta(max_length=1000)]


class Rehello(Message, frozen=True, kw_only=True):
    """A request to say hello again: a new host drives the run, or a message was lost."""

    run: Run
    fence: Medium


class Lease(Message, frozen=True, kw_only=True):
    """More units, and how many samples may lie in the accumulator before the trainer rests (rule 22).

    `coming`: shards that its next units will probably come from, to be fetched in advance.
    """

    run: Run
    fence: Medium
    units: Units
    quota: Count
    coming: Annotated[tuple[Count, ...], Meta(max_length=MOST_COMING)] = ()


class AccumulatorRevoked(Message, frozen=True, kw_only=True):
    """The accumulator's leases have ended: discard it and start another (rule 11)."""

    run: Run
    accumulator: Accumulator
    reason: Text


class Cut(Attempted, frozen=True, kw_only=True):
    """A request to offer what is finished, in this codec and grid. With staleness 0 the trainer begins nothing more."""

    round: Count
    codec: Codec
    chunk_elements: Medium


class SitOut(Attempted, frozen=True, kw_only=True):
    """Sent instead of a cut: this round is made without the peer, whose link would slow the others (rule 30).

    The peer offers nothing, takes the averages and keeps its gradients. The next round cannot leave it out again. Only
    runs whose recipe says `contributors: fast` send it.
    """

    round: Count
    reason: Text


class Slot(Struct, frozen=True, kw_only=True):
    """One contributor: its weight, its commitment and its scale (rule 12). Frames name it by its number in the plan."""

    peer: Peer
    weights: Annotated[tuple[Weight, ...], Meta(max_length=100_000)]
    root: Digest
    norm: Norm  # as offered; the leaves must add up to its square
    codec: Codec
    scale: Annotated[float, Meta(ge=0, le=1)] = 1.0


class PlannedSpan(Struct, frozen=True, kw_only=True, array_like=True):
    """Chunks [first, stop), averaged by one reducer. `root` is set if an earlier attempt's averages are kept."""

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
    duration_s: Wait  # T of the plan; 0 if no bandwidth is known
    sigma: Annotated[float, Meta(ge=0, le=1)] = 0.0  # part of T for which a chunk is waited for (rule 8); 0: for ever
    pace: Annotated[float, Meta(ge=0, le=16)] = 0.0  # times the plan's, at which gradients go; 0: as fast as they can


class Plan(PlanHead, frozen=True, kw_only=True):
    """A plan with all its slots: who sends what to whom. Frames outside a plan are dropped."""

    slots: tuple[Slot, ...]


class Planned(Message, frozen=True, kw_only=True):
    """A signed plan (MessagePack of `PlanHead`): for reducers with all slots, for a contributor with its own.

    `number` and `path` prove `slot` under the head's root. A peer without a slot gets -1 and none.
    """

    plan: Signed
    slots: Annotated[tuple[Slot, ...], Meta(max_length=65_536)] = ()
    number: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    slot: Slot | None = None
    path: Path = ()


class Probe(Message, frozen=True, kw_only=True):
    """A request to measure the idle link to this peer in both directions; one of the two begins (rule 31)."""

    run: Run
    number: Count
    partner: Peer
    begins: bool


class Uplink(Message, frozen=True, kw_only=True):
    """How fast this machine may send, so that its household keeps its reserve. Only machines with a reserve get it."""

    run: Run
    bytes_per_s: Count


class Drop(Attempted, frozen=True, kw_only=True):
    """A request to go on without this slot, from the next open chunk on."""

    slot: Small


class Void(Attempted, frozen=True, kw_only=True):
    """This attempt makes no update. Gradients are kept."""

    round: Count
    reason: Text


class Commit(Message, frozen=True, kw_only=True):
    """The update is committed. `snapshot`: this replica uploads its state at that step; `hash_state`: it hashes it.

    Keepers get all `contributions` (canonical JSON), a contributor its own, proved by `position` and `path`.
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
    """A newer verified snapshot. Relays may delete averaged bytes up to index `keep_after`."""

    run: Run
    snapshot: Snapshot
    keep_after: int


class Reload(Message, frozen=True, kw_only=True):
    """This replica differs from the others: load the snapshot and replay."""

    run: Run
    step: Count


class State(Message, frozen=True, kw_only=True):
    """The run's present state, and why it waits."""

    run: Run
    state: Literal["running", "waiting", "paused", "finishing", "finished"]
    reason: Text


class Notice(Message, frozen=True, kw_only=True):
    """A numbered message for the person at the other end."""

    run: Run
    code: Short
    text: Text

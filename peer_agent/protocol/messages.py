"""Everything that is said on a link: one small immutable struct per message, its limits beside its fields.

Messages travel as MessagePack maps tagged by `type`. All fields of all rules are here from the first version on.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.identifiers import (
    Accumulator,
    Count,
    Digest,
    Medium,
    Nonce,
    Peer,
    Run,
    Short,
    Signature,
    Small,
    Text,
)
from peer_agent.protocol.log.records import Contribution, Entry, Included, Unit
from peer_agent.protocol.recipe import Codec

PROTOCOL = 2
MAX_HANDSHAKE = 8 * 1024  # bytes of a message before a link is open: a stranger gets no more of our memory
MAX_MESSAGE = 8 * 1024 * 1024  # bytes; a frame's own length follows from the plan

Path = Annotated[tuple[Digest, ...], Meta(max_length=32)]  # up a Merkle tree
Units = Annotated[tuple[Unit, ...], Meta(max_length=100_000)]
StateDigest = Annotated[str, Meta(pattern="^([0-9a-f]{16})?$")]
Hex = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Index = Annotated[int, Meta(ge=-1, le=2**53)]  # of a log entry, or a step; -1: none
# Bounds hold wherever a number is decoded: not one of them, nor a sum of a thousand, leaves float64.
Nats = Annotated[float, Meta(ge=0, le=1e15)]  # a summed loss
Norm = Annotated[float, Meta(ge=0, le=1e45)]  # the norm of 2^31 values of float32 is below this
Squares = Annotated[float, Meta(ge=0, le=1e90)]
Clock = Annotated[float, Meta(ge=0, le=1e12)]  # seconds of UTC
Wait = Annotated[float, Meta(ge=-1, le=1e9)]  # seconds; below 0: none


class Message(Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """What every message is."""


class Attempted(Message, frozen=True, kw_only=True):
    """After the cut, everything names the attempt it belongs to (rule 2); anything older is dropped."""

    run: Run
    step: Count
    fence: Medium
    attempt: Small


# --- any link: the handshake -------------------------------------------------------------------------------------


class Challenge(Message, frozen=True, kw_only=True):
    """The listening side speaks first. `time` is its UTC clock in seconds."""

    protocol: Small
    server: Short
    nonce: Nonce
    time: Clock


class Authenticate(Message, frozen=True, kw_only=True):
    """The dialling side: who it is, and a proof that it holds the key (signature over server and nonce)."""

    protocol: Small
    version: Short
    credential: Signed
    proof: Signature
    nonce: Nonce


class Welcome(Message, frozen=True, kw_only=True):
    """The link is open. A relay proves itself by its own credential, the site by its key alone."""

    credential: Signed | None
    proof: Signature


class Refusal(Message, frozen=True, kw_only=True):
    """A numbered error after which the sender closes the link. `retry_after_s` below 0: stay away."""

    code: Short
    text: Text
    retry_after_s: Wait = -1.0


# --- control link: peer to site ----------------------------------------------------------------------------------


class DoneUnit(Struct, frozen=True, array_like=True, gc=False):
    """A unit whose gradient is in the accumulator, and the step of the parameters it was computed on."""

    unit: Unit
    base: Count


class InDoubt(Struct, frozen=True, array_like=True):
    """An attempt whose outcome the peer has not learned (rule 4)."""

    step: Count
    fence: Medium
    attempt: Small


class Hello(Message, frozen=True, kw_only=True):
    """What a peer holds, whole: saying it twice changes nothing. `step` is -1 without a state.

    Reachable (`url`), reduces, keeps the log: three properties of a peer, each of which it may have without the others.
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
    url: Short = ""  # where it listens; empty: nobody can dial it
    reduces: bool = False
    keeps_log: bool = False
    fingerprint: Short = ""  # of the listener's certificate (rule 38)
    log_index: Index = -1  # the last record it holds or has applied
    upload_bps: Count = 0  # bytes per second, measured; 0 = not measured yet
    download_bps: Count = 0


class Report(Message, frozen=True, kw_only=True):
    """Progress since the last commit, in absolute terms (never a delta), and the digest of the state at `step`.

    It says enough to notice what was lost on the way: `index` shows a missed commit, `undone` a missed lease.
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
    """Said when nothing else was for a while: it is there, and holds the log up to `index`."""

    run: Run
    index: Index


class StateHash(Message, frozen=True, kw_only=True):
    """The sha256 of the canonical snapshot at an entry, as this replica has it: what a snapshot is accepted under."""

    run: Run
    index: Count
    step: Count
    sha256: Hex
    size: Count  # bytes


class Weight(Struct, frozen=True, array_like=True, gc=False):
    """Loss tokens accumulated in chunks [first, stop)."""

    first: Medium
    stop: Medium
    tokens: Count


class Offer(Attempted, frozen=True, kw_only=True):
    """What a contributor holds at the cut: the digest first, the bytes later (rules 1 and 9)."""

    accumulator: Accumulator
    units: Annotated[tuple[DoneUnit, ...], Meta(max_length=100_000)]
    weights: Annotated[tuple[Weight, ...], Meta(max_length=100_000)]
    loss_tokens: Count
    loss_sum: Nats
    norm: Norm
    root: Digest


class UnitsReturned(Message, frozen=True, kw_only=True):
    """Leased work that will not be done here."""

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
    """A peer holds a span durably (rule 5)."""

    span: Small
    root: Digest


class Progress(Attempted, frozen=True, kw_only=True):
    """How many chunks a reducer has of each slot, so that the coordinator can tell slow from stuck."""

    received: Annotated[tuple[tuple[Small, Medium], ...], Meta(max_length=65_536)]  # (slot, chunks)


class SlotRefused(Attempted, frozen=True, kw_only=True):
    """A reducer found a chunk that is not what was offered."""

    slot: Small
    chunk: Medium
    code: Short


class Leave(Message, frozen=True, kw_only=True):
    """The peer goes; what it leased comes back by this."""

    run: Run


# --- control link: site to peer ----------------------------------------------------------------------------------


class Listener(Struct, frozen=True):
    """A peer that can be dialled, and what it does there."""

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
    reconciled: bool  # its leases were judged; else the hello was said before a commit, and is said again at the head


class Listeners(Message, frozen=True, kw_only=True):
    """Who can be dialled now."""

    run: Run
    listeners: Annotated[tuple[Listener, ...], Meta(max_length=1000)]


class Rehello(Message, frozen=True, kw_only=True):
    """A new host drives the run: say hello again."""

    run: Run
    fence: Medium


class Lease(Message, frozen=True, kw_only=True):
    """More units, and how many samples may lie in the accumulator before the trainer rests (rule 22)."""

    run: Run
    fence: Medium
    units: Units
    quota: Count


class AccumulatorRevoked(Message, frozen=True, kw_only=True):
    """The accumulator's leases have ended: forget it and start another (rule 11)."""

    run: Run
    accumulator: Accumulator
    reason: Text


class Cut(Attempted, frozen=True, kw_only=True):
    """Stop at the last finished micro-batch and offer. Names the codec and the chunk grid that the root covers."""

    round: Count
    codec: Codec
    chunk_elements: Medium


class Slot(Struct, frozen=True, kw_only=True):
    """One contributor: its place in the frames, its weight, what it committed to, how it is scaled (rule 12)."""

    peer: Peer
    weights: Annotated[tuple[Weight, ...], Meta(max_length=100_000)]
    root: Digest
    norm: Norm  # as offered; the leaves must add up to its square
    codec: Codec
    scale: Annotated[float, Meta(ge=0, le=1)] = 1.0


class PlannedSpan(Struct, frozen=True, kw_only=True, array_like=True):
    """Chunks [first, stop), averaged by one reducer. `root` is set where an earlier attempt already held it."""

    span: Small
    first: Medium
    stop: Medium
    reducer: Peer
    attempt: Small
    root: Annotated[bytes, Meta(max_length=32)] = b""


class PlanHead(Struct, frozen=True, kw_only=True):
    """What is signed of a plan, encoded once for everybody: spans, grid, and a Merkle root over the slots."""

    run: Run
    step: Count
    fence: Medium
    attempt: Small
    round: Count
    elements: Count
    chunk_elements: Medium
    spans: Annotated[tuple[PlannedSpan, ...], Meta(max_length=65_536)]
    contributors: Small  # how many slots there are
    slots_root: Digest
    codec_down: Codec
    duration_s: Wait  # T of the plan; 0 where no bandwidth is known


class Plan(PlanHead, frozen=True, kw_only=True):
    """Who sends what to whom. Frames outside a plan are dropped."""

    slots: tuple[Slot, ...]


class Planned(Message, frozen=True, kw_only=True):
    """A signed plan (MessagePack of `PlanHead`): for reducers with all slots, for a contributor with its own.

    `number` and `path` prove `slot` under the head's root; a peer that contributes nothing gets -1 and no slot.
    """

    plan: Signed
    slots: Annotated[tuple[Slot, ...], Meta(max_length=65_536)] = ()
    number: Annotated[int, Meta(ge=-1, le=65_535)] = -1
    slot: Slot | None = None
    path: Path = ()


class Drop(Attempted, frozen=True, kw_only=True):
    """From the next open chunk on, do without this slot."""

    slot: Small


class Void(Attempted, frozen=True, kw_only=True):
    """This attempt makes no update; gradients stay where they are."""

    round: Count
    reason: Text


class Commit(Message, frozen=True, kw_only=True):
    """The update is committed. `snapshot`: this replica uploads its state at that step; `hash_state`: it hashes it.

    Keepers of the log get all `contributions` (canonical JSON); a contributor its own, proved by `position` and `path`.
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
    """A newer verified snapshot; relays may drop averaged bytes up to index `keep_after`."""

    run: Run
    snapshot: Snapshot
    keep_after: int


class Reload(Message, frozen=True, kw_only=True):
    """This replica differs from the others: load the snapshot and replay."""

    run: Run
    step: Count


class State(Message, frozen=True, kw_only=True):
    """What the run does, and why it waits."""

    run: Run
    state: Literal["running", "waiting", "paused", "finishing", "finished"]
    reason: Text


class Notice(Message, frozen=True, kw_only=True):
    """A numbered message for the person at the other end."""

    run: Run
    code: Short
    text: Text


# --- data link ---------------------------------------------------------------------------------------------------


class Open(Attempted, frozen=True, kw_only=True):
    """A reducer holds the plan and takes this slot's chunks; `received` lists those it has already (rule 19)."""

    slot: Small
    received: Annotated[tuple[int, ...], Meta(max_length=1_000_000)] = ()


class Leaves(Attempted, frozen=True, kw_only=True):
    """All leaves under a slot's root, 40 bytes each, before its first chunk."""

    slot: Small
    leaves: Annotated[bytes, Meta(max_length=4_000_000)]


class SpanLeaves(Attempted, frozen=True, kw_only=True):
    """The leaves of an averaged span, after its last chunk."""

    span: Small
    leaves: Annotated[bytes, Meta(max_length=4_000_000)]


class FetchSpan(Message, frozen=True, kw_only=True):
    """Send me this span of the log."""

    run: Run
    index: Count
    span: Small


class SpanMissing(Message, frozen=True, kw_only=True):
    """It is not held here."""

    run: Run
    index: Count
    span: Small


class FetchRecords(Message, frozen=True, kw_only=True):
    """Send me the records from this index on."""

    run: Run
    first: Count


class Records(Message, frozen=True, kw_only=True):
    """Entries in order. `last` is the newest index held here."""

    run: Run
    first: Count
    last: Annotated[int, Meta(ge=-1)]
    records: Annotated[tuple[Entry, ...], Meta(max_length=256)]


HANDSHAKE_TO_SERVER = Authenticate
HANDSHAKE_TO_CLIENT = Challenge | Welcome
TO_SITE = (
    Hello | Report | Heartbeat | StateHash | Offer | UnitsReturned | SpanDone | Have | Progress | SlotRefused | Leave
)
TO_PEER = (
    Greeting
    | Listeners
    | Rehello
    | Lease
    | AccumulatorRevoked
    | Cut
    | Planned
    | Drop
    | Void
    | Commit
    | Snapshotted
    | Reload
    | State
    | Notice
)
TO_RELAY = Leaves | FetchSpan | FetchRecords
FROM_RELAY = Open | SpanLeaves | SlotRefused | SpanMissing | Records
AnyMessage = HANDSHAKE_TO_SERVER | HANDSHAKE_TO_CLIENT | Refusal | TO_SITE | TO_PEER | TO_RELAY | FROM_RELAY

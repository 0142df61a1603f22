"""A relay's events, and the actions that its shell carries out.

An event about an attempt's action names the attempt, so that the relay can ignore late answers.
"""

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Entry, Included, SpanEntry
from peer_agent.protocol.relay.opened import Opened, OpenPlan, Place
from peer_agent.protocol.wire import Frame

# --- events ------------------------------------------------------------------------------------------------------


class Heard(Struct, frozen=True):
    """A message from the site has arrived on the control link."""

    message: Opened


class Linked(Struct, frozen=True):
    """An authenticated peer has opened a data link, which may replace an older one."""

    peer: PeerId
    role: Role


class Unlinked(Struct, frozen=True):
    """The peer's data link has ended."""

    peer: PeerId


class Asked(Struct, frozen=True):
    """A peer's message has arrived on a data link."""

    peer: PeerId
    message: m.TO_RELAY


class FrameCame(Struct, frozen=True):
    """A frame has arrived on a link that a peer dialed.

    If this leads to an AddChunk action, the shell passes on its result before any other event.
    """

    peer: PeerId
    frame: Frame


class LeavesKept(Struct, frozen=True):
    """The shell has stored a slot's Merkle leaves, which match the slot's root."""

    place: Place
    slot: int


class ChunkAdded(Struct, frozen=True):
    """A chunk matched its slot's commitment, and its values are now in the sum."""

    place: Place
    slot: int
    chunk: int


class ChunkRefused(Struct, frozen=True):
    """A chunk, or the leaves (reported as chunk 0), did not match the offer. The shell has added nothing."""

    place: Place
    slot: int
    chunk: int
    code: str


class HeldBack(Struct, frozen=True):
    """The shell paused reading a slot's link for `seconds`, because the slot was ahead of the others."""

    place: Place
    slot: int
    seconds: float


class SpanWritten(Struct, frozen=True):
    """A span averaged by this peer is on disk, or in memory if this peer keeps no log."""

    place: Place
    span: int
    root: bytes
    sum_squares: float
    sketches: tuple[bytes, ...] = ()


class AverageCame(Struct, frozen=True):
    """A frame has arrived on a link that this peer dialed.

    The shell carries out all resulting actions before it passes on another event.
    """

    peer: PeerId
    frame: Frame


class SpanReceived(Struct, frozen=True):
    """Another reducer's span is on disk. `root`, `sum_squares`: computed from the received bytes."""

    place: Place
    span: int
    root: bytes
    sum_squares: float


class Appended(Struct, frozen=True):
    """The log on disk now extends to the record `index`. `replaced`: True if it replaced another branch."""

    index: int
    replaced: bool = False


class AppendFailed(Struct, frozen=True):
    """The log on disk did not accept the record `index`, for example because it is not the next one.

    `forks`: True if the record belongs to a newer branch, which diverged from the log on disk at an earlier entry.
    """

    index: int
    forks: bool = False


class Missing(Struct, frozen=True):
    """A span that a record names but that is missing from the disk."""

    index: int
    entry: SpanEntry


class Scanned(Struct, frozen=True):
    """The answer to a Scan: all spans missing from the disk among the scanned records, which end before `stop`."""

    stop: int
    missing: tuple[Missing, ...]


class Copied(Struct, frozen=True):
    """A whole span from another log is now on disk."""

    index: int
    span: int


class CopyFailed(Struct, frozen=True):
    """The peer did not deliver the span: it lacks the span, sent only part of it, or disconnected."""

    index: int
    span: int
    peer: PeerId


class Reached(Struct, frozen=True):
    """This peer's data links have changed. `listeners`: the run's listeners that it now has links to."""

    listeners: tuple[PeerId, ...]


class Ticked(Struct, frozen=True):
    """The relay's clock has ticked."""


class ControlLost(Struct, frozen=True):
    """The control link has ended. This relay's messages are lost until the site asks for a hello on a new link."""


Event = (
    Heard
    | Linked
    | Unlinked
    | Asked
    | FrameCame
    | LeavesKept
    | ChunkAdded
    | ChunkRefused
    | HeldBack
    | SpanWritten
    | AverageCame
    | SpanReceived
    | Appended
    | AppendFailed
    | Scanned
    | Copied
    | CopyFailed
    | Reached
    | Ticked
    | ControlLost
)


# --- actions -----------------------------------------------------------------------------------------------------


class Say(Struct, frozen=True):
    """Send a message to the coordinator. The message may be lost; important ones are repeated."""

    message: m.TO_SITE


class Tell(Struct, frozen=True):
    """Send a message to a peer on its data link."""

    peer: PeerId
    message: m.FROM_RELAY


class Begin(Struct, frozen=True):
    """Begin an attempt with all sums at zero.

    `fresh`: also stop sending earlier averages, because the plan is for another step or from a new host.
    """

    plan: OpenPlan
    fresh: bool


class End(Struct, frozen=True):
    """Free a finished attempt's sums. `silent`: also stop sending its averages."""

    silent: bool


class Settle(Struct, frozen=True):
    """Record that the update to `step` has been committed with these spans. A rollback has no spans.

    `fence`: the fence under which the spans were averaged. The encoding errors of averages not in `spans` are dropped.
    """

    index: int
    fence: int
    step: int
    spans: tuple[SpanEntry, ...]


class KeepLeaves(Struct, frozen=True):
    """Check Merkle leaves against the slot's root, and store them. Answer: LeavesKept or ChunkRefused."""

    slot: int
    leaves: bytes


class AddChunk(Struct, frozen=True):
    """Check a chunk against its leaf, and add it to the sum. Answer: ChunkAdded or ChunkRefused.

    `again`: the chunk is already in the sum, so only check it.
    """

    slot: int
    chunk: int
    again: bool


class CloseChunk(Struct, frozen=True):
    """Close the chunk's aggregate, which has this many tokens, encode the average, and send it to the peers."""

    span: int
    chunk: int
    tokens: int


class KeepAverage(Struct, frozen=True):
    """Store the averaged chunk that has just arrived, until its span is complete."""

    span: int
    chunk: int


class WriteReceived(Struct, frozen=True):
    """Write another reducer's complete span to disk. Answer: SpanReceived."""

    span: m.PlannedSpan


class WriteSpan(Struct, frozen=True):
    """Write a span to disk once all its chunks are closed. Answer: SpanWritten."""

    span: m.PlannedSpan
    included: tuple[Included, ...]


class Discard(Struct, frozen=True):
    """Delete the spans written for a void round, in its attempts up to and including `place`."""

    place: Place


class Append(Struct, frozen=True):
    """Append a record to the log. Answer: Appended or AppendFailed.

    If the log already has another record at `index`, this one replaces it if it begins a newer branch. Otherwise, the
    append fails.
    """

    index: int
    sealed: Entry


class Forget(Struct, frozen=True):
    """Delete the spans of records up to `keep_after`. The records themselves stay."""

    keep_after: int


class Scan(Struct, frozen=True):
    """Find the spans of records [first, stop) that are missing from the disk. Answer: Scanned."""

    first: int
    stop: int


class CopySpan(Struct, frozen=True):
    """Fetch a span from the log of `peer` and store it. Answer: Copied or CopyFailed."""

    index: int
    entry: SpanEntry
    peer: PeerId


class GiveSpan(Struct, frozen=True):
    """Send a span from the log to a peer, or report that it is missing."""

    peer: PeerId
    index: int
    span: int


class GiveRecords(Struct, frozen=True):
    """Send a page of records from the log to a peer."""

    peer: PeerId
    first: int


class HandIn(Struct, frozen=True):
    """Send the site a page of records from the log, from index `first` on, because its database lacks them (rule 16).

    If `first` is 0, send it the records of replaced branches that it has not been given, so that it gives credit.
    """

    first: int = 0


class Follow(Struct, frozen=True):
    """Keep data links to these listeners."""

    listeners: tuple[m.Listener, ...]


class CutLink(Struct, frozen=True):
    """Close the data link of a peer that was asked for its chunks but has sent nothing in time."""

    peer: PeerId


Action = (
    Say
    | Tell
    | Begin
    | End
    | Settle
    | KeepLeaves
    | AddChunk
    | CloseChunk
    | KeepAverage
    | WriteReceived
    | WriteSpan
    | Discard
    | Append
    | Forget
    | Scan
    | CopySpan
    | GiveSpan
    | GiveRecords
    | HandIn
    | Follow
    | CutLink
)

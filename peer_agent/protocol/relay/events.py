"""Events of a relay, and actions for its shell. Answers name their attempt: late ones change nothing."""

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Entry, Included, SpanEntry
from peer_agent.protocol.relay.opened import Opened, OpenPlan, Place
from peer_agent.protocol.wire import Frame

# --- events ------------------------------------------------------------------------------------------------------


class Heard(Struct, frozen=True):
    """A message of the site came on the control link."""

    message: Opened


class Linked(Struct, frozen=True):
    """An authenticated peer has a data link, perhaps in place of an older one."""

    peer: PeerId
    role: Role


class Unlinked(Struct, frozen=True):
    """The peer's data link has ended."""

    peer: PeerId


class Asked(Struct, frozen=True):
    """A message came on a data link."""

    peer: PeerId
    message: m.TO_RELAY


class FrameCame(Struct, frozen=True):
    """A frame came on a data link. The shell answers an AddChunk before it brings the next event."""

    peer: PeerId
    frame: Frame


class LeavesKept(Struct, frozen=True):
    """The leaves of a slot match its root."""

    place: Place
    slot: int


class ChunkAdded(Struct, frozen=True):
    """A chunk matched its slot's commitment and is in the sum."""

    place: Place
    slot: int
    chunk: int


class ChunkRefused(Struct, frozen=True):
    """A chunk, or the leaves (chunk 0), did not match the offer; nothing was added."""

    place: Place
    slot: int
    chunk: int
    code: str


class HeldBack(Struct, frozen=True):
    """The shell paused reading a slot's link for these seconds, because the slot was ahead of others."""

    place: Place
    slot: int
    seconds: float


class SpanWritten(Struct, frozen=True):
    """An averaged span is on the disk, or in memory where no log is kept."""

    place: Place
    span: int
    root: bytes
    sum_squares: float


class AverageCame(Struct, frozen=True):
    """A frame came on a link that this peer dialled. The shell completes the actions before the next event."""

    peer: PeerId
    frame: Frame


class SpanReceived(Struct, frozen=True):
    """Another reducer's span is on the disk; `root` is that of the bytes that came."""

    place: Place
    span: int
    root: bytes


class Appended(Struct, frozen=True):
    """The log on the disk reaches this record."""

    index: int


class AppendFailed(Struct, frozen=True):
    """The record does not follow the log."""

    index: int


class Missing(Struct, frozen=True):
    """A span that a record names and the disk lacks."""

    index: int
    entry: SpanEntry


class Scanned(Struct, frozen=True):
    """All spans that the disk lacks in the records from the Scan's beginning to before `stop`."""

    stop: int
    missing: tuple[Missing, ...]


class Copied(Struct, frozen=True):
    """A whole span came from another log and is on the disk."""

    index: int
    span: int


class CopyFailed(Struct, frozen=True):
    """That peer did not deliver the span: it lacks it, sent only a part, or is gone."""

    index: int
    span: int
    peer: PeerId


class Reached(Struct, frozen=True):
    """The listeners of the run to which there are data links now."""

    listeners: tuple[PeerId, ...]


class Ticked(Struct, frozen=True):
    """The relay's clock has ticked."""


class ControlLost(Struct, frozen=True):
    """The control link has ended: messages are not heard until the site asks for a hello."""


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
    """Send a message to the coordinator. It may be lost: what matters is repeated."""

    message: m.TO_SITE


class Tell(Struct, frozen=True):
    """Send a message to a peer on its data link."""

    peer: PeerId
    message: m.FROM_RELAY


class Begin(Struct, frozen=True):
    """Begin an attempt with sums of zero. `fresh`: stop sending what was averaged before."""

    plan: OpenPlan
    fresh: bool


class End(Struct, frozen=True):
    """Free the sums of an attempt that is over. `silent`: its averages are not needed either."""

    silent: bool


class Settle(Struct, frozen=True):
    """The update that makes `step` is committed, with these spans of attempts under this fence.

    A rollback has no spans: what was lost of averages before it is in none after it.
    """

    index: int
    fence: int
    step: int
    spans: tuple[SpanEntry, ...]


class KeepLeaves(Struct, frozen=True):
    """Check leaves against the slot's root and keep them. Answer: LeavesKept or ChunkRefused."""

    slot: int
    leaves: bytes


class AddChunk(Struct, frozen=True):
    """Check the payload against its leaf and add it; `again`: only check. Answer: ChunkAdded or ChunkRefused."""

    slot: int
    chunk: int
    again: bool


class CloseChunk(Struct, frozen=True):
    """Divide the chunk's sum by its tokens, encode it and send it out."""

    span: int
    chunk: int
    tokens: int


class KeepAverage(Struct, frozen=True):
    """Keep the frame's payload until its span is whole."""

    span: int
    chunk: int


class WriteReceived(Struct, frozen=True):
    """Write another reducer's complete span durably. Answer: SpanReceived."""

    span: m.PlannedSpan


class WriteSpan(Struct, frozen=True):
    """Write a span whose chunks are all closed durably. Answer: SpanWritten."""

    span: m.PlannedSpan
    included: tuple[Included, ...]


class Discard(Struct, frozen=True):
    """Delete the spans written for a void round, up to this attempt."""

    place: Place


class Append(Struct, frozen=True):
    """Add the record to the log; one already there must be the same. Answer: Appended or AppendFailed."""

    index: int
    sealed: Entry


class Forget(Struct, frozen=True):
    """Delete the spans of records up to `keep_after`; the records stay."""

    keep_after: int


class Scan(Struct, frozen=True):
    """Report which spans of records [first, stop) the disk lacks. Answer: Scanned."""

    first: int
    stop: int


class CopySpan(Struct, frozen=True):
    """Fetch a span from this peer's log and keep it. Answer: Copied or CopyFailed."""

    index: int
    entry: SpanEntry
    peer: PeerId


class GiveSpan(Struct, frozen=True):
    """Send a span from the log, or report that it is not held."""

    peer: PeerId
    index: int
    span: int


class GiveRecords(Struct, frozen=True):
    """Send a page of records from the log."""

    peer: PeerId
    first: int


class Follow(Struct, frozen=True):
    """Keep data links to these listeners."""

    listeners: tuple[m.Listener, ...]


class CutLink(Struct, frozen=True):
    """End this peer's data link: it was opened for its chunks and sends nothing."""

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
    | Follow
    | CutLink
)

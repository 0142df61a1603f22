"""What can happen to a relay of a run, and what it may ask of its shell. Both are data.

An attempt is named in every answer of the shell, so that what comes after its end changes nothing.
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
    """The site said something on the control link."""

    message: Opened


class Linked(Struct, frozen=True):
    """A peer that has proved who it is has a data link, perhaps in place of another."""

    peer: PeerId
    role: Role


class Unlinked(Struct, frozen=True):
    """Its data link has ended."""

    peer: PeerId


class Asked(Struct, frozen=True):
    """A message on a data link."""

    peer: PeerId
    message: m.TO_RELAY


class FrameCame(Struct, frozen=True):
    """A frame on a data link. Where it leads to AddChunk, the shell answers that before it brings anything else."""

    peer: PeerId
    frame: Frame


class LeavesKept(Struct, frozen=True):
    """The leaves of a slot are those under its root."""

    place: Place
    slot: int


class ChunkAdded(Struct, frozen=True):
    """A chunk is what its slot committed to, and lies in the chunk's sum."""

    place: Place
    slot: int
    chunk: int


class ChunkRefused(Struct, frozen=True):
    """A chunk, or the leaves (chunk 0), are not what was offered; nothing was added."""

    place: Place
    slot: int
    chunk: int
    code: str


class HeldBack(Struct, frozen=True):
    """Nothing was read of a slot's link for so long, since the slot was ahead of others."""

    place: Place
    slot: int
    seconds: float


class SpanWritten(Struct, frozen=True):
    """An averaged span is on the disk (or, where no log is kept, in memory)."""

    place: Place
    span: int
    root: bytes
    sum_squares: float


class AverageCame(Struct, frozen=True):
    """A frame on a link that this peer has dialled. The shell does what comes of it before anything else."""

    peer: PeerId
    frame: Frame


class SpanReceived(Struct, frozen=True):
    """A span that another averaged is on the disk, and this is the root of what came."""

    place: Place
    span: int
    root: bytes


class Appended(Struct, frozen=True):
    """The log on the disk goes up to this record."""

    index: int


class AppendFailed(Struct, frozen=True):
    """This record does not follow what the log has."""

    index: int


class Missing(Struct, frozen=True):
    """A span that a record names and the disk has not."""

    index: int
    entry: SpanEntry


class Scanned(Struct, frozen=True):
    """All that the disk lacks of the records before `stop`, from where the Scan began."""

    stop: int
    missing: tuple[Missing, ...]


class Copied(Struct, frozen=True):
    """A span came whole from another's log, and is on the disk."""

    index: int
    span: int


class CopyFailed(Struct, frozen=True):
    """That peer did not have it, or not whole, or went."""

    index: int
    span: int
    peer: PeerId


class Reached(Struct, frozen=True):
    """To these listeners of the run there is a data link now, and to no other."""

    listeners: tuple[PeerId, ...]


class Ticked(Struct, frozen=True):
    """The relay's clock has ticked."""


class ControlLost(Struct, frozen=True):
    """The control link has ended: nobody hears what is said until the site asks for a hello."""


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
    """To the coordinator. It may be lost: whatever matters is said again."""

    message: m.TO_SITE


class Tell(Struct, frozen=True):
    """To a peer, on its data link."""

    peer: PeerId
    message: m.FROM_RELAY


class Begin(Struct, frozen=True):
    """An attempt: its sums start from zero. `fresh`: give out nothing any more of what was averaged before."""

    plan: OpenPlan
    fresh: bool


class End(Struct, frozen=True):
    """The attempt is over: free its sums. `silent`: nobody needs its averages either."""

    silent: bool


class Settle(Struct, frozen=True):
    """The update that makes `step` is committed, of these spans, averaged in attempts of this fence.

    A rollback is one of no spans: what was lost of averages before it is in none after it.
    """

    index: int
    fence: int
    step: int
    spans: tuple[SpanEntry, ...]


class KeepLeaves(Struct, frozen=True):
    """See whether these are the leaves under the slot's root, and keep them: LeavesKept or ChunkRefused."""

    slot: int
    leaves: bytes


class AddChunk(Struct, frozen=True):
    """Check the frame's payload against its leaf and add it: ChunkAdded or ChunkRefused. `again`: check it only."""

    slot: int
    chunk: int
    again: bool


class CloseChunk(Struct, frozen=True):
    """Divide the chunk's sum by its tokens, encode it and give it out."""

    span: int
    chunk: int
    tokens: int


class KeepAverage(Struct, frozen=True):
    """Keep the frame's payload until its span is whole."""

    span: int
    chunk: int


class WriteReceived(Struct, frozen=True):
    """All chunks of another's span have come: write it durably; SpanReceived."""

    span: m.PlannedSpan


class WriteSpan(Struct, frozen=True):
    """All chunks of the span are closed: write it durably; SpanWritten."""

    span: m.PlannedSpan
    included: tuple[Included, ...]


class Discard(Struct, frozen=True):
    """Delete the spans that were written for a void round, up to this attempt."""

    place: Place


class Append(Struct, frozen=True):
    """Add the record to the log: Appended or AppendFailed. One that is there already must be the same."""

    index: int
    sealed: Entry


class Forget(Struct, frozen=True):
    """Delete the spans of records up to `keep_after`; the records stay."""

    keep_after: int


class Scan(Struct, frozen=True):
    """Say which spans of records [first, stop) the disk lacks: Scanned."""

    first: int
    stop: int


class CopySpan(Struct, frozen=True):
    """Ask this peer's log for a span and keep it: Copied or CopyFailed."""

    index: int
    entry: SpanEntry
    peer: PeerId


class GiveSpan(Struct, frozen=True):
    """Send a span out of the log, or say that it is not held."""

    peer: PeerId
    index: int
    span: int


class GiveRecords(Struct, frozen=True):
    """Send a page of records out of the log."""

    peer: PeerId
    first: int


class Follow(Struct, frozen=True):
    """Keep data links to these."""

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

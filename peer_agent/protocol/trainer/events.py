"""A trainer's events, and the actions that its shell carries out.

Jobs are numbered, so that the trainer can ignore the results of jobs that it has abandoned.
"""

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import Message, Snapshot
from peer_agent.protocol.sealed import OpenedPlan, OpenedRecord
from peer_agent.protocol.trainer.tokens import Ranges, Span

# --- events ------------------------------------------------------------------------------------------------------


class Linked(Struct, frozen=True):
    """A new control link is open. Messages sent on the previous link will get no answer."""


class Heard(Struct, frozen=True):
    """A message from the site has arrived, other than a plan or a commit."""

    message: m.TO_PEER


class PlanHeard(Struct, frozen=True):
    """The coordinator's plan has arrived. The event contains only the verified part that concerns this trainer."""

    plan: OpenedPlan


class CommitHeard(Struct, frozen=True):
    """A commit has arrived. The event contains only the verified part that concerns this trainer."""

    record: OpenedRecord


class OpenHeard(Struct, frozen=True):
    """A reducer has the plan and is ready for this trainer's chunks."""

    peer: PeerId
    message: m.Open


class Computed(Struct, frozen=True):
    """The gradient of a job's units has been computed."""

    job: int
    loss_sum: float  # in nats, over all loss tokens
    loss_tokens: tuple[int, ...]  # loss tokens in each unit
    base: int  # the parameters' step when the job began; the replica may be ahead by now
    in_one_pass: int = 1  # units that the device can compute in the next pass


class NotFinite(Struct, frozen=True):
    """The job's gradient was not finite and has been discarded. `in_one_pass`: as in `Computed`."""

    job: int
    in_one_pass: int = 1


class Frozen(Struct, frozen=True):
    """The held sum has been encoded. `root`: the Merkle root over its chunks. `norm`: the decoded values' norm."""

    job: int
    root: bytes
    norm: float


class Overflowed(Struct, frozen=True):
    """The sum of finite gradients is not itself finite, so the trainer cannot offer it."""

    job: int


class Applied(Struct, frozen=True):
    """The replica has applied the update. `digest`: the cheap digest of the replica's state."""

    job: int
    digest: str


class BytesMissing(Struct, frozen=True):
    """Neither relays nor the site's archive delivered all of this update's averages. The replica is unchanged."""

    job: int


class Loaded(Struct, frozen=True):
    """The replica has loaded the snapshot. `digest`: the cheap digest of its new state."""

    job: int
    digest: str


class LoadFailed(Struct, frozen=True):
    """The site no longer has the snapshot."""

    job: int


class Hashed(Struct, frozen=True):
    """The SHA-256 (hexadecimal) and size (bytes) of the canonical snapshot of the state at an entry."""

    index: int
    step: int
    sha256: str
    size: int


class GaveBack(Struct, frozen=True):
    """The user has asked this trainer to start no more leased units."""


class Left(Struct, frozen=True):
    """The process is shutting down, so the trainer leaves the run."""


class Gathered(Struct, frozen=True):
    """All of an attempt's averages have arrived, but no record confirms them yet.

    `holds`: the Merkle root over the roots and sums of squares of all spans.
    """

    attempt: int
    holds: bytes
    arrivals: tuple[m.Arrival, ...]
    departures: tuple[m.Departure, ...] = ()


class Reached(Struct, frozen=True):
    """This machine's data links have changed. `listeners`: the listeners that it now has links to."""

    listeners: tuple[PeerId, ...]


class Unlistened(Struct, frozen=True):
    """Other peers can no longer dial this machine."""


class Ticked(Struct, frozen=True):
    """The trainer's clock has ticked."""


Event = (
    Linked
    | Heard
    | PlanHeard
    | CommitHeard
    | OpenHeard
    | Computed
    | NotFinite
    | Frozen
    | Overflowed
    | Applied
    | BytesMissing
    | Loaded
    | LoadFailed
    | Hashed
    | GaveBack
    | Gathered
    | Reached
    | Unlistened
    | Left
    | Ticked
)


# --- actions -----------------------------------------------------------------------------------------------------


class Say(Struct, frozen=True):
    """Send a message to the site. If there is no link, drop the message, because the next hello repeats everything."""

    message: Message


class Tell(Struct, frozen=True):
    """Show a sentence to the machine's user. It is in English with placeholders; the display translates it."""

    message: str
    details: dict[str, str | int] = {}

    @property
    def text(self) -> str:
        return self.message.format(**self.details)


class Warn(Struct, frozen=True):
    """Show a numbered error that does not stop the work."""

    fault: Fault


class Began(Struct, frozen=True):
    """Start showing an ongoing numbered error. Reporting the same one again changes nothing."""

    fault: Fault


class Ended(Struct, frozen=True):
    """Stop showing these ongoing errors, if they are being shown."""

    codes: tuple[str, ...]


class Quit(Struct, frozen=True):
    """Stop the trainer. If there is a fault, continuing is pointless; if not, the run is finished."""

    fault: Fault | None = None


class Show(Struct, frozen=True):
    """Show the run's state and, if it is waiting, the reason."""

    state: str
    reason: str


class Dial(Struct, frozen=True):
    """Keep links to these listeners, and to no others."""

    listeners: tuple[m.Listener, ...]


class Load(Struct, frozen=True):
    """Load this snapshot, after building the replica if there is none yet."""

    job: int
    greeting: m.Greeting
    snapshot: Snapshot


class Compute(Struct, frozen=True):
    """Compute the gradients of units in one pass, unless another job replaces this one first."""

    job: int
    units: tuple[Unit, ...]


class Keep(Struct, frozen=True):
    """Add the last computed gradient to the fresh sum, which holds gradients that have never been offered."""

    job: int


class Discard(Struct, frozen=True):
    """Discard the fresh sum, which holds gradients that have never been offered."""


class DiscardHeld(Struct, frozen=True):
    """Discard the held sum: offered gradients, and those that updates left out. The fresh sum is kept."""


class Renew(Struct, frozen=True):
    """Discard both gradient sums, including gradients of earlier steps and the encoding errors of earlier offers."""


class Freeze(Struct, frozen=True):
    """Add the fresh sum to the held sum, and encode the held sum with these weights."""

    job: int
    cut: m.Cut
    weights: Ranges


class Hold(Struct, frozen=True):
    """Add the fresh sum to the held sum, because the round continues without this trainer."""

    cut: m.SitOut


class Send(Struct, frozen=True):
    """Receive this attempt's averages. If the plan has a slot for this machine, be ready to stream its gradient."""

    plan: OpenedPlan


class Serve(Struct, frozen=True):
    """Stream this trainer's chunks to a reducer that has asked for them, skipping those that it already has."""

    peer: PeerId
    message: m.Open


class StopSending(Struct, frozen=True):
    """Stop sending the gradient, because the attempt continues without it. Sending it would only clog the uplink."""


class Release(Struct, frozen=True):
    """End the round without an update: stop sending, and unfreeze the held sum."""


class Apply(Struct, frozen=True):
    """Fetch this record's missing averages and update the replica.

    `patient`: retry if they cannot be fetched, because no newer snapshot exists.
    """

    job: int
    record: OpenedRecord
    patient: bool


class Settle(Struct, frozen=True):
    """End the round with an update: remove the included chunks from the held sum, and keep the rest (rule 9)."""

    included: tuple[Span, ...]


class Made(Struct, frozen=True):
    """Tell the shell that the replica has applied this record."""

    record: OpenedRecord


class HandIn(Struct, frozen=True):
    """Upload a copy of the replica in its current state."""

    index: int
    step: int


class HashState(Struct, frozen=True):
    """Hash the canonical snapshot of the replica in its current state."""

    index: int
    step: int


Action = (
    Say
    | Tell
    | Warn
    | Began
    | Ended
    | Quit
    | Show
    | Dial
    | Load
    | Compute
    | Keep
    | Discard
    | DiscardHeld
    | Renew
    | Freeze
    | Hold
    | Send
    | Serve
    | StopSending
    | Release
    | Apply
    | Settle
    | Made
    | HandIn
    | HashState
)

"""Events of a trainer, and actions for its shell. Both are data.

Jobs (computing, freezing, applying, loading) have numbers, so that results of abandoned ones are recognized.
"""

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import Message, Snapshot
from peer_agent.protocol.trainer.opened import OpenedPlan, OpenedRecord
from peer_agent.protocol.trainer.tokens import Ranges, Span

# --- events ------------------------------------------------------------------------------------------------------


class Linked(Struct, frozen=True):
    """A new control link is open: messages on the last one will not be answered."""


class Heard(Struct, frozen=True):
    """A message of the site came, other than a plan or a commit."""

    message: m.TO_PEER


class PlanHeard(Struct, frozen=True):
    """The coordinator's plan for this trainer came, opened and verified."""

    plan: OpenedPlan


class CommitHeard(Struct, frozen=True):
    """A commit came, opened and verified."""

    record: OpenedRecord


class OpenHeard(Struct, frozen=True):
    """A reducer has the plan and accepts our chunks."""

    peer: PeerId
    message: m.Open


class Computed(Struct, frozen=True):
    """The gradient of a job's units is done."""

    job: int
    loss_sum: float  # nats over all loss tokens
    loss_tokens: tuple[int, ...]  # of each unit
    base: int  # step of the parameters when it began; it may be behind by now
    in_one_pass: int = 1  # units that the device can compute next at once


class NotFinite(Struct, frozen=True):
    """The gradient of this job's units was not finite and was discarded. `in_one_pass`: as in `Computed`."""

    job: int
    in_one_pass: int = 1


class Frozen(Struct, frozen=True):
    """The held gradient is encoded: the root over its chunks, and the norm of the decoded values."""

    job: int
    root: bytes
    norm: float


class Overflowed(Struct, frozen=True):
    """The sum of finite gradients is not finite and cannot be offered."""

    job: int


class Applied(Struct, frozen=True):
    """The replica holds the update. `digest`: the cheap digest of its state."""

    job: int
    digest: str


class BytesMissing(Struct, frozen=True):
    """No relay delivered all averaged bytes of this update; the replica is unchanged."""

    job: int


class Loaded(Struct, frozen=True):
    """The replica holds the snapshot."""

    job: int
    digest: str


class LoadFailed(Struct, frozen=True):
    """The site no longer has that snapshot."""

    job: int


class Hashed(Struct, frozen=True):
    """The sha256 (hexadecimal) and size (bytes) of the canonical snapshot at an entry."""

    index: int
    step: int
    sha256: str
    size: int


class GaveBack(Struct, frozen=True):
    """The person wants no more leased units to be started here."""


class Left(Struct, frozen=True):
    """The process is about to end."""


class Gathered(Struct, frozen=True):
    """All averages of this attempt are here, still tentative. `holds`: the root over its spans' roots."""

    attempt: int
    holds: bytes
    arrivals: tuple[m.Arrival, ...]
    departures: tuple[m.Departure, ...] = ()


class Reached(Struct, frozen=True):
    """The listeners to which there are data links now."""

    listeners: tuple[PeerId, ...]


class Unlistened(Struct, frozen=True):
    """This machine can no longer be dialled."""


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
    """Send a message to the site. Without a link it is dropped: the next hello states everything."""

    message: Message


class Tell(Struct, frozen=True):
    """A sentence for the machine's user, in English with placeholders; the display translates it."""

    message: str
    details: dict[str, str | int] = {}

    @property
    def text(self) -> str:
        return self.message.format(**self.details)


class Warn(Struct, frozen=True):
    """A numbered error that does not stop the work."""

    fault: Fault


class Began(Struct, frozen=True):
    """A numbered error that lasts from now on. A repetition while it lasts is the same error."""

    fault: Fault


class Ended(Struct, frozen=True):
    """These errors are over, if they had begun."""

    codes: tuple[str, ...]


class Quit(Struct, frozen=True):
    """Stop: continuing cannot help, or, without a fault, the run is finished."""

    fault: Fault | None = None


class Show(Struct, frozen=True):
    """The run's state to display, and why it waits."""

    state: str
    reason: str


class Dial(Struct, frozen=True):
    """Keep links to these listeners, and to no others."""

    listeners: tuple[m.Listener, ...]


class Load(Struct, frozen=True):
    """Make the replica if there is none, and load this state."""

    job: int
    greeting: m.Greeting
    snapshot: Snapshot


class Compute(Struct, frozen=True):
    """Compute units in one pass, unless another job is in hand by then. An update waits for a pass that has begun."""

    job: int
    units: tuple[Unit, ...]


class Keep(Struct, frozen=True):
    """Add the last computed gradient to the fresh sum (what was never offered)."""

    job: int


class Discard(Struct, frozen=True):
    """Discard the fresh sum."""


class DiscardHeld(Struct, frozen=True):
    """Discard the held sum: what was offered, and what updates left out of it. The fresh sum stays."""


class Renew(Struct, frozen=True):
    """Discard all gradients, with those of earlier steps and residuals."""


class Freeze(Struct, frozen=True):
    """Move the fresh sum to the held one, and encode all of that with these weights."""

    job: int
    cut: m.Cut
    weights: Ranges


class Hold(Struct, frozen=True):
    """Move the fresh sum to the held one: the round is made without us."""

    cut: m.SitOut


class Send(Struct, frozen=True):
    """Receive this attempt's averages, even if no round asked this machine. Be ready to stream its slot, if any."""

    plan: OpenedPlan


class Serve(Struct, frozen=True):
    """Stream our chunks to a reducer that has opened, without those it has."""

    peer: PeerId
    message: m.Open


class StopSending(Struct, frozen=True):
    """Stop sending: the attempt goes on without our gradient, which would only fill the uplink."""


class Release(Struct, frozen=True):
    """End the round without an update: stop sending; the held sum may grow again."""


class Apply(Struct, frozen=True):
    """Fetch this record's missing averages and update. `patient`: no snapshot replaces them."""

    job: int
    record: OpenedRecord
    patient: bool


class Settle(Struct, frozen=True):
    """End the round with an update: included chunks leave the held sum, the rest stays (rule 9)."""

    included: tuple[Span, ...]


class Made(Struct, frozen=True):
    """The replica has made a step."""

    record: OpenedRecord


class HandIn(Struct, frozen=True):
    """Upload a copy of the replica as it is."""

    index: int
    step: int


class HashState(Struct, frozen=True):
    """Hash the canonical snapshot of the replica as it is."""

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

"""What can happen to a trainer, and what its core asks of the shell around it. Both are data.

A job (computing, freezing, applying, loading) has a number, so that the result of one that was abandoned meanwhile is
recognized. The shell carries actions out in order; of what it does in threads, only the result comes back.
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
    """A new control link: nothing that was said on the one before will be answered."""


class Heard(Struct, frozen=True):
    """The site said something other than a plan or a commit."""

    message: m.TO_PEER


class PlanHeard(Struct, frozen=True):
    """The coordinator's plan for this trainer, opened and checked."""

    plan: OpenedPlan


class CommitHeard(Struct, frozen=True):
    """A commit as this trainer is told of it, opened and checked."""

    record: OpenedRecord


class OpenHeard(Struct, frozen=True):
    """A reducer holds the plan and takes our chunks."""

    peer: PeerId
    message: m.Open


class Computed(Struct, frozen=True):
    """The units of this job have their gradient; `loss_sum` in nats over the loss tokens of all, told of each.

    `base`: the step of the parameters when it began, which may be behind the core's by the time it is heard.
    `in_one_pass`: as many units the device would compute next.
    """

    job: int
    loss_sum: float
    loss_tokens: tuple[int, ...]
    base: int
    in_one_pass: int = 1


class NotFinite(Struct, frozen=True):
    """The gradient of this job's units was not finite and was thrown away. `in_one_pass` as of `Computed`."""

    job: int
    in_one_pass: int = 1


class Frozen(Struct, frozen=True):
    """What is held is encoded: the root over its chunks, and the norm of what they decode to."""

    job: int
    root: bytes
    norm: float


class Overflowed(Struct, frozen=True):
    """Finite gradients have added up to one that is not: it cannot be offered."""

    job: int


class Applied(Struct, frozen=True):
    """The replica holds the update. `digest` is the cheap one of its state."""

    job: int
    digest: str


class BytesMissing(Struct, frozen=True):
    """No relay gave all averaged bytes of this update; the replica is unchanged."""

    job: int


class Loaded(Struct, frozen=True):
    """The replica holds the snapshot."""

    job: int
    digest: str


class LoadFailed(Struct, frozen=True):
    """The site has that snapshot no more."""

    job: int


class Hashed(Struct, frozen=True):
    """The canonical snapshot at an entry, by its sha256 in hexadecimal and its size in bytes."""

    index: int
    step: int
    sha256: str
    size: int


class GaveBack(Struct, frozen=True):
    """The person wants this machine to begin nothing more of what is leased to it."""


class Left(Struct, frozen=True):
    """The process is about to end."""


class Gathered(Struct, frozen=True):
    """All averages of this attempt are here, tentative as they are; `holds`: the root over the roots of its spans."""

    attempt: int
    holds: bytes
    arrivals: tuple[m.Arrival, ...]
    departures: tuple[m.Departure, ...] = ()


class Reached(Struct, frozen=True):
    """To these listeners there is a data link now, and to no other."""

    listeners: tuple[PeerId, ...]


class Unlistened(Struct, frozen=True):
    """Nobody can dial this machine any more."""


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
    """Say this to the site; while there is no link it is not said, and the next hello says it all."""

    message: Message


class Tell(Struct, frozen=True):
    """A sentence for the person in front of the machine: English with places, which whoever shows it translates."""

    message: str
    details: dict[str, str | int] = {}

    @property
    def text(self) -> str:
        """In English."""
        return self.message.format(**self.details)


class Warn(Struct, frozen=True):
    """A numbered trouble that is gone on after."""

    fault: Fault


class Began(Struct, frozen=True):
    """A numbered trouble that lasts from now on; said again while it lasts, it is the same one."""

    fault: Fault


class Ended(Struct, frozen=True):
    """These troubles are over, where they had begun."""

    codes: tuple[str, ...]


class Quit(Struct, frozen=True):
    """Going on cannot help; without a fault the run is finished."""

    fault: Fault | None = None


class Show(Struct, frozen=True):
    """What the run does, and why it waits."""

    state: str
    reason: str


class Dial(Struct, frozen=True):
    """Keep links to these, and to no others."""

    listeners: tuple[m.Listener, ...]


class Load(Struct, frozen=True):
    """Make the replica if there is none, and take over this state."""

    job: int
    greeting: m.Greeting
    snapshot: Snapshot


class Compute(Struct, frozen=True):
    """Forward and backward of units, in one pass, on the replica as it is. Not begun once another job is in hand.

    The parameters do not change under it: an update waits for the pass that was begun.
    """

    job: int
    units: tuple[Unit, ...]


class Keep(Struct, frozen=True):
    """The gradient computed last is added to the sum of what was never offered."""

    job: int


class Discard(Struct, frozen=True):
    """The sum of what was never offered is thrown away."""


class DiscardHeld(Struct, frozen=True):
    """What was offered before, and what updates left out of it, is thrown away; the other sum stays."""


class Renew(Struct, frozen=True):
    """All gradients are thrown away, those of earlier steps and residuals too."""


class Freeze(Struct, frozen=True):
    """Move the sum of what was never offered to what is held, and encode all of that with these weights."""

    job: int
    cut: m.Cut
    weights: Ranges


class Hold(Struct, frozen=True):
    """The round is made without us: move the sum of this step's gradients to what is held from earlier ones."""

    cut: m.SitOut


class Send(Struct, frozen=True):
    """Take this attempt's averages; where it has a slot of ours, be ready to stream it to whoever is served.

    There may be no round of ours: then this machine was not asked, and takes what all are given.
    """

    plan: OpenedPlan


class Serve(Struct, frozen=True):
    """Stream our chunks to a reducer that has opened, without those it has."""

    peer: PeerId
    message: m.Open


class StopSending(Struct, frozen=True):
    """The attempt goes on without our gradient: what is still to be sent of it would only fill our uplink."""


class Release(Struct, frozen=True):
    """The round is over without an update: stop sending; what was frozen may be added to again."""


class Apply(Struct, frozen=True):
    """Fetch what has not come of this record's averages, and update. `patient`: they can be had nowhere else."""

    job: int
    record: OpenedRecord
    patient: bool


class Settle(Struct, frozen=True):
    """The round is over with an update: what was sent in these chunks leaves what is held; the rest stays (rule 9)."""

    included: tuple[Span, ...]


class Made(Struct, frozen=True):
    """A step is in the replica."""

    record: OpenedRecord


class HandIn(Struct, frozen=True):
    """Give the site a copy of the replica as it is."""

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

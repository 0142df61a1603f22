"""What can happen to a run, and what its coordinator may ask for. Both are data; the host carries them."""

from typing import Literal

from msgspec import Struct

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Entry, Record, Unit
from peer_agent.protocol.messages import TO_SITE, Hello, Message, Plan, Snapshot

Goal = Literal["running", "paused", "finishing"]  # finishing: no further round; the present step is the last

# --- events ------------------------------------------------------------------------------------------------------


class Joined(Struct, frozen=True):
    """An authenticated peer said hello (again)."""

    peer: PeerId
    person: str
    machine: str
    role: Role
    hello: Hello


class Received(Struct, frozen=True):
    """A message of a peer that has joined."""

    peer: PeerId
    message: TO_SITE


class Lost(Struct, frozen=True):
    """The peer's session ended, whether it left, died or was banned."""

    peer: PeerId
    banned: bool = False


class Ticked(Struct, frozen=True):
    """The host's clock has ticked."""


class Reserved(Struct, frozen=True):
    """The lease marks of a Reserve are in the database."""

    marks: tuple["Mark", ...]


class Persisted(Struct, frozen=True):
    """What the database said of a Persist.

    `stale`: another host has the run. `failed`: nothing was written. `refused`: this record cannot be written.
    """

    outcome: Literal["committed", "stale", "failed", "refused"]
    sealed: Entry | None = None


class Target(Struct, frozen=True):
    """A snapshot that the run is to go back to: its place in the log, and the sha256 of its file."""

    index: int
    step: int
    file: str


class Directed(Struct, frozen=True):
    """What the organizer wants. `target_steps` 0: as many as before; `mix`: weights of the sources, likewise."""

    goal: Goal
    target_steps: int = 0
    mix: tuple[float, ...] = ()
    back_to: Target | None = None


class Verified(Struct, frozen=True):
    """The site has replayed the log up to the snapshot of this index, and it is what was stored."""

    index: int


class Replayed(Struct, frozen=True):
    """The site has replayed the log up to an entry because replicas differ there: this is the state's digest."""

    index: int
    step: int
    state_digest: str


class Paged(Struct, frozen=True):
    """A page of the log has been said: fewer records than a Resend asked for, where their bytes are too many."""

    peer: PeerId
    last: int  # index of the last record in it


class SnapshotStored(Struct, frozen=True):
    """A state was uploaded and is the one that the majority reports: newcomers may load it."""

    snapshot: Snapshot


Event = (
    Joined | Received | Lost | Ticked | Reserved | Persisted | Directed | Paged | SnapshotStored | Verified | Replayed
)


# --- commands ----------------------------------------------------------------------------------------------------


class Mark(Struct, frozen=True, array_like=True):
    """Positions below `mark` of a shard in an epoch may have been leased (rule 11)."""

    epoch: int
    shard: int
    mark: int


class Send(Struct, frozen=True):
    """Say this to these peers."""

    peers: tuple[PeerId, ...]
    message: Message


class Announce(Struct, frozen=True):
    """Sign the plan and say it: to `keepers` (who reduce or keep the log) whole, to `peers` each its own part."""

    keepers: tuple[PeerId, ...]
    peers: tuple[PeerId, ...]
    plan: Plan


class Persist(Struct, frozen=True):
    """Write the record, its ledger rows and the head in one transaction (rule 3)."""

    record: Record
    duration_s: float
    attempts: int


class Reserve(Struct, frozen=True):
    """Raise lease marks in the database; leases are granted only below them."""

    marks: tuple[Mark, ...]


class LeftOut(Struct, frozen=True):
    """Write down that these units will be in no update: whoever computed them got gradients that are not finite."""

    units: tuple[Unit, ...]


class Resend(Struct, frozen=True):
    """Say one page of commits, as the database has them, to a peer that is behind: `count` of them from `first` on.

    `whole`: to a keeper of the log, with all contributions; else each with the peer's own.
    """

    peer: PeerId
    first: int
    count: int
    whole: bool = False


class Agreed(Struct, frozen=True):
    """The state digest that most replicas report at a step."""

    step: int
    digest: str


class Note(Struct, frozen=True):
    """Something people want to see in the timeline."""

    kind: str
    text: str


class Waiting(Struct, frozen=True):
    """Why nothing moves; empty when it does."""

    reason: str


class Finish(Struct, frozen=True):
    """The last step is committed and its snapshot is stored."""


class Replay(Struct, frozen=True):
    """The site makes the state of an entry from the log: replicas differ there, or nobody is left to hand it in."""

    index: int
    step: int


class Elected(Struct, frozen=True):
    """This machine, and no other, may upload the state of this entry."""

    peer: PeerId
    index: int
    step: int


class Admitted(Struct, frozen=True):
    """A majority of people report this sha256 and size (bytes) of the canonical snapshot of an entry."""

    index: int
    step: int
    sha256: str
    size: int


class Abdicate(Struct, frozen=True):
    """Another host drives this run, or is to."""


Command = (
    Send
    | Announce
    | Persist
    | Reserve
    | LeftOut
    | Resend
    | Agreed
    | Elected
    | Admitted
    | Note
    | Waiting
    | Finish
    | Replay
    | Abdicate
)

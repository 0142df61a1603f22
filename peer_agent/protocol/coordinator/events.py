"""Events of a run, and commands that its coordinator gives the host. Both are data."""

from typing import Literal

from msgspec import Struct

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Entry, Record, Unit
from peer_agent.protocol.messages import TO_SITE, Hello, Message, Plan, Snapshot

Goal = Literal["running", "paused", "finishing"]  # finishing: no further round; the present step is the last

# --- events ------------------------------------------------------------------------------------------------------


class Joined(Struct, frozen=True):
    """An authenticated peer said hello, the first time or again."""

    peer: PeerId
    person: str
    machine: str
    role: Role
    hello: Hello


class Received(Struct, frozen=True):
    """A message from a peer that has joined."""

    peer: PeerId
    message: TO_SITE


class Lost(Struct, frozen=True):
    """The peer's session ended: it left, died or was banned."""

    peer: PeerId
    banned: bool = False


class Ticked(Struct, frozen=True):
    """The host's clock has ticked."""


class Reserved(Struct, frozen=True):
    """The lease marks of a Reserve are in the database."""

    marks: tuple["Mark", ...]


class Persisted(Struct, frozen=True):
    """The database's answer to a Persist.

    `stale`: another host has the run. `failed`: nothing was written. `refused`: this record cannot be written.
    """

    outcome: Literal["committed", "stale", "failed", "refused"]
    sealed: Entry | None = None


class Target(Struct, frozen=True):
    """A snapshot to roll back to: its place in the log, and the sha256 of its file."""

    index: int
    step: int
    file: str


class Directed(Struct, frozen=True):
    """The organizer's wishes. `target_steps` 0, or an empty `mix` (the sources' weights): unchanged."""

    goal: Goal
    target_steps: int = 0
    mix: tuple[float, ...] = ()
    back_to: Target | None = None


class Verified(Struct, frozen=True):
    """The site has replayed the log up to this snapshot's index and found the stored state."""

    index: int


class Replayed(Struct, frozen=True):
    """The state's digest at an entry where replicas differ, from the site's replay of the log."""

    index: int
    step: int
    state_digest: str


class Paged(Struct, frozen=True):
    """A page of the log was sent, with fewer records than the Resend asked for if they were too large."""

    peer: PeerId
    last: int  # index of the last record in it


class SnapshotStored(Struct, frozen=True):
    """An uploaded state has the majority's hash: new peers may load it."""

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
    """Send a message to these peers."""

    peers: tuple[PeerId, ...]
    message: Message


class Announce(Struct, frozen=True):
    """Sign the plan and send it: whole to `keepers` (reducers and keepers of the log), to `peers` each its own part."""

    keepers: tuple[PeerId, ...]
    peers: tuple[PeerId, ...]
    plan: Plan


class Persist(Struct, frozen=True):
    """Write the record, its ledger rows and the head in one transaction (rule 3)."""

    record: Record
    duration_s: float
    attempts: int


class Reserve(Struct, frozen=True):
    """Raise lease marks in the database. Leases are granted only below them."""

    marks: tuple[Mark, ...]


class LeftOut(Struct, frozen=True):
    """Record that these units will be in no update: their gradients were not finite, repeatedly."""

    units: tuple[Unit, ...]


class Resend(Struct, frozen=True):
    """Send one page of committed records to a peer that is behind: `count` of them from `first` on."""

    peer: PeerId
    first: int
    count: int
    whole: bool = False  # with all contributions, for keepers of the log; otherwise with the peer's own


class Agreed(Struct, frozen=True):
    """The state digest that the majority reports at a step."""

    step: int
    digest: str


class Note(Struct, frozen=True):
    """A line of the timeline that people see."""

    kind: str
    text: str


class Waiting(Struct, frozen=True):
    """Why nothing moves; empty when it does."""

    reason: str


class Finish(Struct, frozen=True):
    """The last step is committed and its snapshot is stored."""


class Replay(Struct, frozen=True):
    """Rebuild an entry's state from the log: replicas differ there, or no trainer is left to upload it."""

    index: int
    step: int


class Elected(Struct, frozen=True):
    """Only this machine may upload the state of this entry."""

    peer: PeerId
    index: int
    step: int


class Admitted(Struct, frozen=True):
    """A majority of persons reports this sha256 and size (bytes) of an entry's canonical snapshot."""

    index: int
    step: int
    sha256: str
    size: int


class Abdicate(Struct, frozen=True):
    """Stop driving the run: another host has it, or takes it over."""


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

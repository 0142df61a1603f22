"""What can happen to a run, and what its coordinator may ask for. Both are data; the host carries them."""

from typing import Literal

from msgspec import Struct

from peer_agent.protocol.credentials import Role, Signed
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import TO_SITE, Hello, Message, Plan, Snapshot
from peer_agent.protocol.records import Record

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
    """Time passed."""


class Reserved(Struct, frozen=True):
    """The lease marks of a Reserve are in the database."""

    marks: tuple["Mark", ...]


class Persisted(Struct, frozen=True):
    """What the database said of a Persist. `stale`: another host has the run. `failed`: nothing was written."""

    outcome: Literal["committed", "stale", "failed"]
    sealed: Signed | None = None


class Directed(Struct, frozen=True):
    """What the organizer wants. `target_steps` 0: as many as before."""

    goal: Goal
    target_steps: int = 0


class SnapshotStored(Struct, frozen=True):
    """A state was uploaded and its digest is the one the run knows."""

    snapshot: Snapshot


Event = Joined | Received | Lost | Ticked | Reserved | Persisted | Directed | SnapshotStored


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
    """Sign the plan and say it to these peers."""

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


class Resend(Struct, frozen=True):
    """Say the commits from index `first` on, as the database has them, to a peer that is behind."""

    peer: PeerId
    first: int


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
    """The last step is committed and nobody is left to hand in its state: the site makes it from the log."""


class Abdicate(Struct, frozen=True):
    """Another host drives this run."""


Command = Send | Announce | Persist | Reserve | Resend | Agreed | Note | Waiting | Finish | Replay | Abdicate

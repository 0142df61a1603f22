"""The events that a run's coordinator processes, and the commands that it gives the host. Both are plain data."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import ChunkRange, Entry, Record, Unit
from peer_agent.protocol.messages import TO_SITE, Hello, Message, Plan, Snapshot

Goal = Literal["running", "paused", "finishing"]  # finishing: the current step is the last; no further round begins

# --- events ------------------------------------------------------------------------------------------------------


class Joined(Struct, frozen=True):
    """An authenticated peer has sent a hello: its first one or a repeated one."""

    peer: PeerId
    person: str
    machine: str
    role: Role
    hello: Hello


class Received(Struct, frozen=True):
    """A message from a peer that has joined the run."""

    peer: PeerId
    message: TO_SITE


class Lost(Struct, frozen=True):
    """The peer's session has ended: the peer has left, died or been banned."""

    peer: PeerId
    banned: bool = False


class Ticked(Struct, frozen=True):
    """The host's clock has ticked."""


class Reserved(Struct, frozen=True):
    """The database has stored a Reserve command's lease marks."""

    marks: tuple["Mark", ...]


class Persisted(Struct, frozen=True):
    """The database's answer to a Persist command.

    `stale`: another host has taken over the run. `refused`: the record is invalid.
    """

    outcome: Literal["committed", "stale", "failed", "refused"]
    sealed: Entry | None = None


class Target(Struct, frozen=True):
    """A snapshot to roll back to: its index and step in the log, and the snapshot file's SHA-256."""

    index: int
    step: int
    file: str


class Verdict(StrEnum):
    """The result of comparing a contribution with its recomputation. UNCLEAR: also if it could not be computed."""

    PASSED = "passed"
    UNCLEAR = "unclear"
    FAILED = "failed"


class Finding(Struct, frozen=True, order=True):
    """The site's verdict on a machine's contribution to the log entry `index`."""

    peer: PeerId
    index: int
    verdict: Verdict


class Findings(Struct, frozen=True, order=True):
    """The site's answer to a `Recheck`. `number` tells it from others, until the coordinator has heeded it."""

    number: int
    found: tuple[Finding, ...]


class Directed(Struct, frozen=True):
    """The organizer's settings. A `target_steps` of 0 or an empty `mix` (source weights) changes nothing.

    `pause_reason`: the reason shown while a run is paused, if the organizer did not pause it. `trusted`: the people who
    get looser limits in a run that strangers may join (rule 12). None means everyone. `findings`: what the
    site found by computing contributions again (`Recheck`), until `Heeded`.
    """

    goal: Goal
    target_steps: int = 0
    mix: tuple[float, ...] = ()
    back_to: Target | None = None
    pause_reason: str = ""
    trusted: frozenset[str] | None = None
    findings: frozenset[Findings] = frozenset()


class Verified(Struct, frozen=True):
    """The site has replayed the log up to this snapshot's index, and the result matches the stored state."""

    index: int


class Archived(Struct, frozen=True):
    """The site's archive has the averages of all entries up to `index`.

    `gap`: True if no relay has the next entry's averages.
    """

    index: int
    gap: bool


class Replayed(Struct, frozen=True):
    """The state digest that the site obtained by replaying the log, at an entry where replicas differ."""

    index: int
    step: int
    state_digest: str


class Paged(Struct, frozen=True):
    """The host has sent a peer a page of the log. The page is shorter than requested if the records were too large."""

    peer: PeerId
    last: int  # index of the page's last record


class SnapshotStored(Struct, frozen=True):
    """The site has stored an uploaded state whose hash was reported by a majority. New peers may load this snapshot."""

    snapshot: Snapshot


class Adopted(Struct, frozen=True):
    """The database's answer to an Adopt command: how many of the peer's records were appended."""

    peer: PeerId
    count: int


Event = (
    Joined
    | Received
    | Lost
    | Ticked
    | Reserved
    | Persisted
    | Adopted
    | Directed
    | Paged
    | SnapshotStored
    | Verified
    | Archived
    | Replayed
)


# --- commands ----------------------------------------------------------------------------------------------------


class Mark(Struct, frozen=True, array_like=True):
    """A lease mark: only positions below `mark` in this shard and epoch may have been leased (rule 11)."""

    epoch: int
    shard: int
    mark: int


class Send(Struct, frozen=True):
    """Send a message to the peers listed."""

    peers: tuple[PeerId, ...]
    message: Message


class Announce(Struct, frozen=True):
    """Sign the plan and send it.

    The `keepers` (reducers and peers that keep the log) receive all slots. Each of `peers` receives only its own slot.
    """

    keepers: tuple[PeerId, ...]
    peers: tuple[PeerId, ...]
    plan: Plan


class Persist(Struct, frozen=True):
    """Write the record, its ledger rows and the run's head in one transaction (rule 3)."""

    record: Record
    duration_s: float
    attempts: int


class Adopt(Struct, frozen=True):
    """Append signed records that the database has lost and a relay has kept, with their ledger rows (rule 16)."""

    peer: PeerId
    records: tuple[Entry, ...]


class Branch(Struct, frozen=True):
    """Give credit for those of these signed records that are on a lost branch, and report them (rule 16).

    A relay moved them out of its log, because the run's log had continued without them.
    """

    records: tuple[Entry, ...]


class Reserve(Struct, frozen=True):
    """Raise the lease marks in the database. The coordinator leases only units below the marks."""

    marks: tuple[Mark, ...]


class LeftOut(Struct, frozen=True):
    """Store the fact that no update will include these units, because their gradients were repeatedly non-finite."""

    units: tuple[Unit, ...]


class Resend(Struct, frozen=True):
    """Send one page of committed records to a peer that is behind: `count` records, starting at index `first`."""

    peer: PeerId
    first: int
    count: int
    whole: bool = False  # True to send all contributions, to a log keeper; otherwise only the peer's own


class Agreed(Struct, frozen=True):
    """Store the state digest that the majority reports for a step."""

    step: int
    digest: str


class Checked(Struct, frozen=True):
    """Store that a machine's work up to a log entry counts as checked. `passed`: audits that it has passed."""

    peer: PeerId
    index: int
    passed: int


class Gradient(Struct, frozen=True, array_like=True):
    """A gradient's sketch, and the summed loss and the number of loss tokens stated with it."""

    sketch: bytes
    loss_sum: float
    loss_tokens: int


class Sketched(Struct, frozen=True, array_like=True):
    """The sketches of an entry's contributions that can be computed again, of the chunks in `parts`."""

    index: int
    seed: int
    parts: tuple[ChunkRange, ...]
    gradients: dict[PeerId, Gradient]


class Halt(Struct, frozen=True):
    """Pause the run, and tell its managers why."""

    reason: str


class Recheck(Struct, frozen=True):
    """Let the site itself compute these contributions again. `Directed.findings` has its answer.

    `about`: the machine whose work is disputed, or "" if the loss rose and all machines' last work is to be checked.
    """

    sketched: tuple[Sketched, ...]
    about: str = ""


class Heeded(Struct, frozen=True):
    """The coordinator has acted on the findings with this number, and no later host has to."""

    number: int


class Reverse(Struct, frozen=True):
    """Take back a machine's credit for log entries after `index`, because audits have proven its work false."""

    peer: PeerId
    index: int
    reason: str


class Note(Struct, frozen=True):
    """Add a line to the run's public timeline. `names`: the people named in the text.

    `cause`: why a round is void, as one of a few fixed words that programs can evaluate.
    """

    kind: str
    text: str
    names: tuple[str, ...] = ()
    cause: str = ""


class Waiting(Struct, frozen=True):
    """Show why the run is making no progress. An empty reason clears the message."""

    reason: str


class Finish(Struct, frozen=True):
    """Finish the run, because the last step is committed and its snapshot is stored."""


class Replay(Struct, frozen=True):
    """Rebuild the state after a log entry, because replicas disagree on it or no trainer is left to upload it."""

    index: int
    step: int


class Elected(Struct, frozen=True):
    """Allow only this machine to upload the state after this log entry."""

    peer: PeerId
    index: int
    step: int


class Admitted(Struct, frozen=True):
    """Accept an upload as a log entry's snapshot only if it has this SHA-256 and size (bytes).

    A majority has reported both.
    """

    index: int
    step: int
    sha256: str
    size: int


class Abdicate(Struct, frozen=True):
    """Stop driving the run, because another host has taken it over or is about to."""


Command = (
    Send
    | Announce
    | Persist
    | Adopt
    | Branch
    | Reserve
    | LeftOut
    | Resend
    | Agreed
    | Elected
    | Admitted
    | Checked
    | Reverse
    | Halt
    | Recheck
    | Heeded
    | Note
    | Waiting
    | Finish
    | Replay
    | Abdicate
)

"""What sockets, hosts and watches of a site say to each other: every letter that the channel layer carries, and groups.

Between processes a letter is checked as it is decoded. Its tag and its fields stay as they are where another version
of this site runs beside this one; one that a process does not know is lost there, as any letter may be.
"""

from msgspec import Struct

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId

RELAYS = "relays"


class PeerSaid(Struct, frozen=True, tag_field="type", tag="peer.said"):
    """What a socket forwards to the host of the run: `data` as its peer sent it."""

    peer: PeerId
    channel: str
    data: bytes
    person: str = ""
    machine: str = ""
    role: Role = Role.TRAINER


class PeerLost(Struct, frozen=True, tag_field="type", tag="peer.lost"):
    """A peer's socket has ended."""

    peer: PeerId
    channel: str


class HostAnnounced(Struct, frozen=True, tag_field="type", tag="host.announced"):
    """Who hosts a run, and where it reads; `again`: what was said to it may be lost."""

    run: RunId
    fence: int
    channel: str
    again: bool = False


class HostSaid(Struct, frozen=True, tag_field="type", tag="host.said"):
    """What the coordinator says to peers, encoded once. Without a run where no host says it."""

    data: bytes
    run: str = ""


class HostsFound(Struct, frozen=True, tag_field="type", tag="hosts.found"):
    """A socket's own: in these runs there is a host that waits for a hello."""

    runs: list[str]


class MachineRevoked(Struct, frozen=True, tag_field="type", tag="machine.revoked"):
    """This peer is cut off, by the error `code`. `retry_after_s` in seconds, below zero where it does not come back."""

    code: str
    retry_after_s: float = -1.0


class SessionReplaced(Struct, frozen=True, tag_field="type", tag="session.replaced"):
    """The machine has a newer socket in this run: the one of the channel `by`."""

    by: str


class SessionContested(Struct, frozen=True, tag_field="type", tag="session.contested"):
    """Two agents take one machine's session from each other."""


class LayerRestored(Struct, frozen=True, tag_field="type", tag="layer.restored"):
    """Letters between processes may have been lost before this one."""


class ChannelOverflowed(Struct, frozen=True, tag_field="type", tag="channel.overflowed"):
    """The last letter of a socket's channel that was full."""


class RunMoved(Struct, frozen=True, tag_field="type", tag="run.moved"):
    """A step of the run was committed."""


ToHost = PeerSaid | PeerLost | LayerRestored
ToSocket = (
    HostAnnounced
    | HostSaid
    | HostsFound
    | MachineRevoked
    | SessionReplaced
    | SessionContested
    | LayerRestored
    | ChannelOverflowed
)
Letter = ToHost | ToSocket | RunMoved


def peer_of(letter: Letter) -> str:
    """Whose it is; empty where it is no peer's."""
    return letter.peer if isinstance(letter, PeerSaid | PeerLost) else ""


def size_of(letter: Letter) -> int:
    """Bytes of what it carries; the rest is a few names."""
    return len(letter.data) if isinstance(letter, PeerSaid | HostSaid) else 0


def group_of(run: str) -> str:
    return f"run.{run}"


def watchers_of(run: str) -> str:
    """The group of all who look when a step of the run is committed."""
    return f"watchers.{run}"


def sessions_of(peer: str, run: str) -> str:
    """The group of the sockets of one machine in one run: of which there is to be one."""
    return f"sessions.{peer}.{run}"

"""Messages of the channel layer between sockets, hosts and watchers, and the names of their groups.

Tags and fields stay as they are while two versions of the site run side by side. A process drops a message that it does
not know, as any message may be lost.
"""

from msgspec import Struct

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId

RELAYS = "relays"


class PeerSaid(Struct, frozen=True, tag_field="type", tag="peer.said"):
    """A peer's message, forwarded by its socket to the run's host; `data` is as the peer sent it."""

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
    """The host of a run, and the channel it reads. `again`: messages to it may have been lost."""

    run: RunId
    fence: int
    channel: str
    again: bool = False


class HostSaid(Struct, frozen=True, tag_field="type", tag="host.said"):
    """A message for peers, encoded once. `run` is empty if no host sent it."""

    data: bytes
    run: str = ""


class HostsFound(Struct, frozen=True, tag_field="type", tag="hosts.found"):
    """From a socket to itself: hosts of these runs wait for a hello."""

    runs: list[str]


class MachineRevoked(Struct, frozen=True, tag_field="type", tag="machine.revoked"):
    """Disconnect a peer with the error `code`. `retry_after_s` is in seconds; negative: it must not return."""

    code: str
    retry_after_s: float = -1.0


class SessionReplaced(Struct, frozen=True, tag_field="type", tag="session.replaced"):
    """The machine has a newer socket in this run, on the channel `by`."""

    by: str


class SessionContested(Struct, frozen=True, tag_field="type", tag="session.contested"):
    """Two agents take over one machine's session from each other."""


class LayerRestored(Struct, frozen=True, tag_field="type", tag="layer.restored"):
    """Earlier messages between processes may have been lost."""


class ChannelOverflowed(Struct, frozen=True, tag_field="type", tag="channel.overflowed"):
    """The last message of a socket's channel, sent when the channel was full."""


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
LayerMessage = ToHost | ToSocket | RunMoved


def peer_of(message: LayerMessage) -> str:
    return message.peer if isinstance(message, PeerSaid | PeerLost) else ""


def size_of(message: LayerMessage) -> int:
    """Return the bytes of the message's data; the rest is a few names."""
    return len(message.data) if isinstance(message, PeerSaid | HostSaid) else 0


def group_of(run: str) -> str:
    return f"run.{run}"


def watchers_of(run: str) -> str:
    """Return the group that is told when a step of the run is committed."""
    return f"watchers.{run}"


def sessions_of(peer: str, run: str) -> str:
    """Return the group of one machine's sockets in one run; there should be only one."""
    return f"sessions.{peer}.{run}"

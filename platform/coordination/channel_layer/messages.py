"""Messages that the channel layer carries between sockets, hosts and watchers, and the names of their groups.

Do not rename tags or fields while two versions of the site are running side by side. Processes drop messages that they
do not recognize. This is safe, because any message may be lost anyway.
"""

from msgspec import Struct

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId

RELAYS = "relays"


class PeerSaid(Struct, frozen=True, tag_field="type", tag="peer.said"):
    """A peer's message, forwarded by its socket to the run's host. `data` is exactly what the peer sent."""

    peer: PeerId
    channel: str
    data: bytes
    person: str = ""
    machine: str = ""
    role: Role = Role.TRAINER


class PeerLost(Struct, frozen=True, tag_field="type", tag="peer.lost"):
    """A message telling a host that a peer's socket has closed."""

    peer: PeerId
    channel: str


class HostAnnounced(Struct, frozen=True, tag_field="type", tag="host.announced"):
    """A message with which a run's host announces itself and its channel to sockets.

    `fence` identifies the host's claim on the run. `again`: messages to this host may have been lost.
    """

    run: RunId
    fence: int
    channel: str
    again: bool = False


class HostSaid(Struct, frozen=True, tag_field="type", tag="host.said"):
    """A message that sockets pass on to their peers. `data` is its encoding, made once for all peers.

    `run` is empty if no host sent the message.
    """

    data: bytes
    run: str = ""


class HostsFound(Struct, frozen=True, tag_field="type", tag="hosts.found"):
    """A message that a socket sends to its own channel, so that it asks its peer for a hello to these runs' hosts."""

    runs: list[str]


class MachineRevoked(Struct, frozen=True, tag_field="type", tag="machine.revoked"):
    """A message telling a socket to disconnect its peer with the error `code`.

    `retry_after_s` is how many seconds the peer must wait before reconnecting. If negative, it must not reconnect.
    """

    code: str
    retry_after_s: float = -1.0


class SessionReplaced(Struct, frozen=True, tag_field="type", tag="session.replaced"):
    """A message telling a socket that its machine has opened a newer socket in the run, on channel `by`."""

    by: str


class SessionContested(Struct, frozen=True, tag_field="type", tag="session.contested"):
    """A message telling a socket that two agents keep taking over the same machine's session from each other."""


class LayerRestored(Struct, frozen=True, tag_field="type", tag="layer.restored"):
    """A message announcing that messages between processes may have been lost while Redis was down."""


class ChannelOverflowed(Struct, frozen=True, tag_field="type", tag="channel.overflowed"):
    """A message telling a socket to close its link, because its channel filled up and lost messages."""


class RunMoved(Struct, frozen=True, tag_field="type", tag="run.moved"):
    """A message telling watchers that a step of the run was committed."""


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
    """Return the size of the message's data in bytes. The other fields are small enough to ignore."""
    return len(message.data) if isinstance(message, PeerSaid | HostSaid) else 0


def group_of(run: str) -> str:
    return f"run.{run}"


def watchers_of(run: str) -> str:
    """Return the group that is notified whenever a step of the run is committed."""
    return f"watchers.{run}"


def sessions_of(peer: str, run: str) -> str:
    """Return the group of one machine's sockets in one run, normally just one."""
    return f"sessions.{peer}.{run}"

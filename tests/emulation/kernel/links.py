"""Lines for `ip` that create bridges, links, addresses and routes."""

from collections.abc import Iterator

from tests.emulation.kernel import addresses
from tests.emulation.setups import Peer, Setup

# Home computers use cubic. Without this, the machine's own setting would affect the figures.
CONGESTION = "congctl cubic"
BRIDGE = "type bridge stp_state 0 mcast_snooping 0"


def quiet(device: str) -> Iterator[str]:
    """Bring a device up without an IPv6 address, which it would announce. This takes two lines, because in a single
    line a bridge would get the address first.
    """
    yield f"link set {device} addrgenmode none"
    yield f"link set {device} up"


def bridges() -> Iterator[str]:
    for name in ("data", "control"):
        yield f"link add {name} {BRIDGE}"
        yield from quiet(name)


def port(device: str, bridge: str) -> Iterator[str]:
    yield f"link set {device} master {bridge}"
    yield from quiet(device)


def control_port(index: int, namespace: str) -> Iterator[str]:
    yield f"link add c{index} type veth peer name control netns {namespace}"
    yield from port(f"c{index}", "control")


def data_port(index: int, namespace: str) -> Iterator[str]:
    yield f"link add d{index} type veth peer name data netns {namespace}"
    yield from port(f"d{index}", "data")


def delayed_port(index: int, namespace: str) -> Iterator[str]:
    yield f"link set p{index} netns {namespace} name data"
    yield from port(f"d{index}", "data")


def peer_side(setup: Setup, index: int, slot: int) -> Iterator[str]:
    yield "link set lo up"
    yield from quiet("data")
    yield f"addr add {addresses.data_address(index)}/32 dev data"
    for destination in destinations(setup, setup.peers[index]):
        yield f"route add {destination} dev data {CONGESTION}"
    yield from quiet("control")
    yield f"addr add {addresses.control_address(slot, index)}/32 dev control"
    yield f"route add {addresses.host_address(slot)}/32 dev control"


def destinations(setup: Setup, peer: Peer) -> Iterator[str]:
    """Yield the destinations that a peer can dial: the reachable peers other than trainers if it is behind NAT,
    otherwise the whole data network.
    """
    if peer.reachable:
        yield str(addresses.DATA)
        return
    for index, other in enumerate(setup.peers):
        if other.reachable and other.role != "trainer":
            yield f"{addresses.data_address(index)}/32"


def host_side(device: str, slot: int) -> Iterator[str]:
    yield from quiet(device)
    yield f"addr add {addresses.host_address(slot)}/24 dev {device}"


def sink_port(namespace: str) -> Iterator[str]:
    yield f"link add sink type veth peer name data netns {namespace}"
    yield from port("sink", "data")


def sink_side() -> Iterator[str]:
    yield from quiet("data")
    yield f"addr add {addresses.SINK}/32 dev data"
    yield f"route add {addresses.DATA} dev data {CONGESTION}"

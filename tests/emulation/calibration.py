"""What the links really carry: plain TCP, both ways at once, measured by who receives."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.emulation.kernel import addresses, links, remains
from tests.emulation.kernel.commands import batch
from tests.emulation.network import Network, Node, end, hear, tell
from tests.emulation.setups import MBIT, Peer, Rates

PROGRAM = "tests.emulation.programs.traffic"
# Up and down, of all who are measured at once: more would measure the processors.
MOST_TOGETHER = 3200 * MBIT
MOST_DELAYED_TOGETHER = 400 * MBIT
WARM_UP_ROUND_TRIPS = 25
CONNECT_S = 0.5
SINK = "sink"
Received = dict[str, dict[str, int]]  # bytes, by who received and who sent


def calibrated(network: Network, *, warm_up_s: float = 1.0, measured_s: float = 3.0) -> Rates:
    """Payload bytes per second of every link, of as many at once as this machine carries, and of all limited pairs.

    Takes both times for each group, and longer where there is a round-trip time. Raises RuntimeError where a peer
    does not get through, ValueError on loopback.
    """
    times = warm_up_s + WARM_UP_ROUND_TRIPS * network.setup.round_trip_s, measured_s
    up: dict[str, float] = {}
    down: dict[str, float] = {}
    with sink_of(network) as sink:
        for group in groups(network):
            nodes = {node.name: node for node in (sink, *(network[peer.name] for peer in group))}
            dials = {peer.name: [sink.address] for peer in group}
            received = exchange(nodes, dials, *times)
            up |= {name: rate(received, name, SINK, measured_s) for name in dials}
            down |= {name: rate(received, SINK, name, measured_s) for name in dials}
    return Rates(up, down, calibrated_pairs(network, *times))


def calibrated_pairs(network: Network, warm_up_s: float, measured_s: float) -> dict[tuple[str, str], float]:
    """The same of every limited ordered pair, all at once."""
    pairs = [(one.name, other.name) for one, other in network.setup.limited_pairs()]
    if not pairs:
        return {}
    nodes = {name: network[name] for pair in pairs for name in pair}
    # One connection carries both ways.
    dials = {name: [network[other].address for one, other in pairs if one == name < other] for name in nodes}
    received = exchange(nodes, dials, warm_up_s, measured_s)
    return {(one, other): rate(received, one, other, measured_s) for one, other in pairs}


def rate(received: Received, one: str, other: str, measured_s: float) -> float:
    """Bytes per second from one to the other. Raises RuntimeError where nothing came."""
    if not (came := received[other].get(one, 0)):
        raise RuntimeError(f"nothing came from {one} to {other} in {measured_s:g} s")
    return came / measured_s


def groups(network: Network) -> Iterator[list[Peer]]:
    """Peers that are measured together."""
    most = MOST_DELAYED_TOGETHER if network.delay else MOST_TOGETHER
    group: list[Peer] = []
    for peer in network.setup.peers:
        if group and sum(map(load, (*group, peer))) > most:
            yield group
            group = []
        group.append(peer)
    yield group


def load(peer: Peer) -> float:
    """Bytes per second of a link that is full both ways."""
    return (peer.up_mbit + peer.down_mbit) * MBIT


def exchange(nodes: dict[str, Node], dials: dict[str, list[str]], warm_up_s: float, measured_s: float) -> Received:
    """Let everybody send to and receive from whom they dial."""
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, node in nodes.items():
            running[name] = node.converse(PROGRAM, name, node.address)
        start = time.monotonic() + CONNECT_S + warm_up_s
        for name, process in running.items():
            tell(process, json.dumps({"dial": dials.get(name, []), "start": start, "stop": start + measured_s}))
        return {name: json.loads(hear(process)) for name, process in running.items()}
    finally:
        end(running.values())


@contextmanager
def sink_of(network: Network) -> Iterator[Node]:
    """A peer of no rate on the bridge, that everybody can dial as long as the block lasts."""
    if network.internet is None:
        raise ValueError("there is nothing to calibrate on loopback")
    namespace = network.internet.namespace.replace("internet", SINK)
    hidden = [network[peer.name].namespace for peer in network.setup.peers if not peer.reachable]
    try:
        batch("ip", [f"netns add {namespace}"])
        batch("ip", links.sink_port(namespace), network.internet.namespace)
        batch("ip", links.sink_side(), namespace)
        for peer in hidden:
            batch("ip", [f"route add {addresses.SINK}/32 dev data {links.CONGESTION}"], peer)
        yield Node(SINK, addresses.SINK, "", namespace)
    finally:
        for peer in hidden:
            batch("ip", [f"route flush {addresses.SINK}/32"], peer)
        remains.remove(remains.named(namespace))

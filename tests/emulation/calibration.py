"""The real capacity of links: plain TCP in both directions at once, measured by the receiver."""

import json
import math
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tests.emulation.kernel import addresses, links, remains
from tests.emulation.kernel.commands import batch
from tests.emulation.network import Network, Node, end, hear, tell
from tests.emulation.setups import MBIT, Peer, Rates

PROGRAM = "tests.emulation.programs.traffic"
# The total rate, up and down, of the peers measured at once. Above this the CPU would limit the result.
MOST_TOGETHER = 3200 * MBIT
MOST_DELAYED_TOGETHER = 400 * MBIT
WARM_UP_ROUND_TRIPS = 25
CONNECT_S = 0.5
SINK = "sink"
Received = dict[str, dict[str, int]]  # bytes, by receiver and then by sender
Most = Mapping[str, float]  # highest rate in bytes per second, by receiving peer


class Times(NamedTuple):
    warm_up_s: float
    measured_s: float


def calibrated(network: Network, *, warm_up_s: float = 1.0, measured_s: float = 3.0) -> Rates:
    """Return the payload bytes per second of every link and of every limited pair.

    Links are measured in groups as large as this machine can handle. Each group takes the warm-up plus the measuring
    time. If the set-up has a round-trip time, the warm-up is longer. Raise RuntimeError if no data from a peer
    arrives, and ValueError on loopback.
    """
    times = Times(warm_up_s + WARM_UP_ROUND_TRIPS * network.setup.round_trip_s, measured_s)
    peers = network.setup.peers
    with sink_of(network) as sink:
        full = with_sink(network, sink, peers, {}, times)
        # A contributor receives about as much as it sends. If its wider downlink were full, acknowledgements would take
        # a tenth of the uplink. The floor time would then be too easy to reach.
        uneven = [peer for peer in peers if peer.up_mbit < peer.down_mbit]
        even = with_sink(network, sink, uneven, {peer.name: peer.up_mbit * MBIT for peer in uneven}, times)
    up = {peer.name: max(each.up.get(peer.name, 0.0) for each in (full, even)) for peer in peers}
    return Rates(up, full.down, calibrated_pairs(network, times))


def with_sink(network: Network, sink: Node, peers: Iterable[Peer], most: Most, times: Times) -> Rates:
    """Measure, group by group, how fast peers send to the sink and receive from it. `most` limits the sink's rate
    toward each peer.
    """
    up: dict[str, float] = {}
    down: dict[str, float] = {}
    for group in groups(peers, most, MOST_DELAYED_TOGETHER if network.delay else MOST_TOGETHER):
        nodes = {node.name: node for node in (sink, *(network[peer.name] for peer in group))}
        dials = {peer.name: [sink.address] for peer in group}
        received = exchange(nodes, dials, most, times)
        up |= {name: rate(received, name, SINK, times) for name in dials}
        down |= {name: rate(received, SINK, name, times) for name in dials}
    return Rates(up, down)


def calibrated_pairs(network: Network, times: Times) -> dict[tuple[str, str], float]:
    pairs = [(one.name, other.name) for one, other in network.setup.limited_pairs()]
    if not pairs:
        return {}
    nodes = {name: network[name] for pair in pairs for name in pair}
    # one connection carries both directions
    dials = {name: [network[other].address for one, other in pairs if one == name < other] for name in nodes}
    received = exchange(nodes, dials, {}, times)
    return {(one, other): rate(received, one, other, times) for one, other in pairs}


def rate(received: Received, one: str, other: str, times: Times) -> float:
    """Return how many bytes per second from one peer arrived at the other. Raise RuntimeError if nothing arrived."""
    if not (came := received[other].get(one, 0)):
        raise RuntimeError(f"nothing came from {one} to {other} in {times.measured_s:g} s")
    return came / times.measured_s


def groups(peers: Iterable[Peer], most: Most, together: float) -> Iterator[list[Peer]]:
    """Yield groups of peers to measure together. A group's total rate in both directions is at most `together` bytes
    per second."""
    group: list[Peer] = []
    loads = 0.0
    for peer in peers:
        load = peer.up_mbit * MBIT + min(peer.down_mbit * MBIT, most.get(peer.name, math.inf))
        if group and loads + load > together:
            yield group
            group, loads = [], 0.0
        group.append(peer)
        loads += load
    if group:
        yield group


def exchange(nodes: Mapping[str, Node], dials: Mapping[str, list[str]], most: Most, times: Times) -> Received:
    """Let all nodes exchange data with the nodes that they dial. `most` limits the rate toward each node that it
    names."""
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, node in nodes.items():
            running[name] = node.converse(PROGRAM, name, node.address)
        start = time.monotonic() + CONNECT_S + times.warm_up_s
        work = {"most": most, "start": start, "stop": start + times.measured_s}
        for name, process in running.items():
            tell(process, json.dumps({"dial": dials.get(name, []), **work}))
        return {name: json.loads(hear(process)) for name, process in running.items()}
    finally:
        end(running.values())


@contextmanager
def sink_of(network: Network) -> Iterator[Node]:
    """Run a peer without rate limits on the bridge until the block ends. All peers can dial it."""
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

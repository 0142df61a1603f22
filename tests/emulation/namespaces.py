"""A set-up as network namespaces: `with emulated(setup("homes")) as network`. Needs root and iproute2.

The control bridge connects the host to every peer by a veth pair without rate limits; a peer can reach only the host
there. The data bridge connects every peer by a veth pair, rate-limited at both ends, or by two tap devices with a delay
between them.

Both bridges are in one namespace, "the internet". An unreachable peer has routes to relays only, and dialling it gets
no answer. Names begin with `mh`, the id of this process, and a serial number. On a machine without namespaces,
`anywhere` puts the same peers on loopback."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from tests.emulation import delay
from tests.emulation.kernel import addresses, links, queues, remains
from tests.emulation.kernel.commands import batch, reason_against, require, run
from tests.emulation.kernel.interruptions import ended_by_signals, undisturbed
from tests.emulation.network import Network, Node, end
from tests.emulation.setups import Setup

LOOPBACK = "127.0.0.1"
HOST_LINK = "mhcontrol{slot}"
serials = itertools.count(1)


@contextmanager
def emulated(setup: Setup, *, shaped: bool = True) -> Iterator[Network]:
    """Run the set-up until the block ends, then end every process in it and remove everything.

    Raise Unavailable if this machine cannot emulate, RuntimeError if the kernel refuses. SIGTERM or a closed terminal
    ends the block as an exception would."""
    require()
    building = Building(setup, remains.prefix(next(serials)))
    with ended_by_signals():
        try:
            yield building.up(shaped=shaped)
        finally:
            with undisturbed():
                building.down()


@contextmanager
def on_loopback(setup: Setup) -> Iterator[Network]:
    """Run the set-up's peers without namespaces. Any peer can dial any other, without rate limits or delays. End all
    processes afterwards.
    """
    nodes = {peer.name: Node(peer.name, LOOPBACK, LOOPBACK, "") for peer in setup.peers}
    try:
        yield Network(setup, nodes, LOOPBACK)
    finally:
        end(process for node in nodes.values() for process in node.started)


@contextmanager
def anywhere(setup: Setup, *, shaped: bool = True) -> Iterator[Network]:
    """Run the set-up in namespaces if this machine supports them, else on loopback. Tests of speed must not use
    this."""
    with on_loopback(setup) if reason_against() else emulated(setup, shaped=shaped) as network:
        yield network


class Building:
    """A network that is built step by step and can be taken down after any step."""

    def __init__(self, setup: Setup, prefix: str) -> None:
        self._setup = setup
        self._prefix = prefix
        self._internet = Node("internet", "", "", f"{prefix}internet")
        self._slot: int | None = None
        self._nodes: list[Node] = []

    def up(self, *, shaped: bool) -> Network:
        names = [self._prefix + peer.name for peer in self._setup.peers]
        batch("ip", (f"netns add {name}" for name in (self._internet.namespace, *names)))
        slot = self._slot = free_slot(self._internet.namespace)
        delayed = [index for index, peer in enumerate(self._setup.peers) if self._setup.delays(peer)]
        carrier = delay.start(self._internet, delayed, self._setup.round_trip_s) if delayed else None
        batch("ip", self._inner_links(names, slot), self._internet.namespace)
        batch("ip", links.host_side(HOST_LINK.format(slot=slot), slot))
        for index, (peer, name) in enumerate(zip(self._setup.peers, names, strict=True)):
            batch("ip", links.peer_side(self._setup, index, slot), name)
            address, control = addresses.data_address(index), addresses.control_address(slot, index)
            self._nodes.append(Node(peer.name, address, control, name))
        self._hold_rates(shaped=shaped)
        nodes = {node.name: node for node in self._nodes}
        return Network(self._setup, nodes, addresses.host_address(slot), self._internet, carrier)

    def _inner_links(self, names: list[str], slot: int) -> Iterator[str]:
        yield from links.bridges()
        yield from links.port(HOST_LINK.format(slot=slot), "control")
        for index, (peer, name) in enumerate(zip(self._setup.peers, names, strict=True)):
            data_port = links.delayed_port if self._setup.delays(peer) else links.data_port
            yield from data_port(index, name)
            yield from links.control_port(index, name)

    def _hold_rates(self, *, shaped: bool) -> None:
        rates = self._setup.nominal()
        down: list[str] = []
        for index, (peer, node) in enumerate(zip(self._setup.peers, self._nodes, strict=True)):
            hidden = not peer.reachable
            if shaped:
                pairs = {self._address(other): rate for (one, other), rate in rates.pairs.items() if one == peer.name}
                batch("tc", queues.shaped("data", rates.up[peer.name], pairs), node.namespace)
                down.extend(queues.shaped(f"d{index}", rates.down[peer.name], refuses_connections=hidden))
            elif hidden:
                down.extend(queues.shaped(f"d{index}", queues.UNLIMITED, refuses_connections=True))
        batch("tc", down, self._internet.namespace)

    def _address(self, name: str) -> str:
        return next(node.address for node in self._nodes if node.name == name)

    def down(self) -> None:
        end(process for node in (*self._nodes, self._internet) for process in node.started)
        try:
            if self._slot is not None:
                run(["ip", "link", "delete", HOST_LINK.format(slot=self._slot)])
        finally:
            remains.remove(remains.named(self._prefix))


def free_slot(internet: str) -> int:
    """Claim a control network, by creating the host's link with the network's number. Raise RuntimeError if all are
    taken."""
    for slot in range(len(addresses.CONTROLS)):
        device = HOST_LINK.format(slot=slot)
        try:
            run(["ip", "link", "add", device, "type", "veth", "peer", "name", device, "netns", internet])
        except RuntimeError as trouble:
            if "File exists" not in str(trouble):
                raise
        else:
            return slot
    raise RuntimeError("every control network is taken: python -m tests.emulation --clean")

"""Namespaces that several engines use one after another, and the kernel's counters in them."""

from pathlib import Path

from msgspec import Struct

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.recipe import Codec
from tests.benchmarks.rivals.costs import Cost, costs
from tests.emulation.counters import ProcessorTime, Traffic, processor_time, traffic
from tests.emulation.floor import floor_s
from tests.emulation.kernel import addresses, links, remains
from tests.emulation.kernel.commands import batch
from tests.emulation.network import Network, end
from tests.emulation.setups import Rates

WARM_UP = 3  # uncounted rounds
GRACE_S, FLOORS, SLOWNESS = 60.0, 12, 6


class Place(Struct, frozen=True, eq=False):
    """The namespaces for rounds, with the measured rates of their links and the number of rounds."""

    network: Network
    folder: Path
    rates: Rates
    codec: Codec
    rounds: int

    @property
    def floor_s(self) -> float:
        setup = self.network.setup
        wire = encoded_size(self.codec, setup.elements)
        return floor_s(setup, self.rates, wire, wire)

    @property
    def round_patience_s(self) -> float:
        return GRACE_S + FLOORS * self.floor_s

    @property
    def patience_s(self) -> float:
        return 2 * GRACE_S + SLOWNESS * (WARM_UP + self.rounds) * self.floor_s


class Counted(Struct, frozen=True):
    traffic: dict[str, Traffic]
    costs: dict[str, Cost]
    busy: ProcessorTime

    @classmethod
    def now(cls, network: Network) -> "Counted":
        return cls(traffic(network), costs(network), processor_time())


def end_all(network: Network) -> None:
    """End every process of every peer by its id, so that the next engine runs alone."""
    end(process for node in network.nodes.values() for process in node.started)
    remains.end_inside(node.namespace for node in network.nodes.values())


def open_homes(network: Network) -> None:
    """Let all peers dial each other from now on, regardless of the set-up, as if forwarding were free."""
    assert network.internet is not None
    for index, peer in enumerate(network.setup.peers):
        if not peer.reachable:
            batch("ip", [f"route add {addresses.DATA} dev data {links.CONGESTION}"], network[peer.name].namespace)
            batch("tc", [f"filter del dev d{index} parent 1: protocol ip prio 1"], network.internet.namespace)

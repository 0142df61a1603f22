"""The same peers on loopback, for machines without root, and the choice between the two.

Everybody can dial everybody, no rate is held, no time passes; bytes are counted for all peers together.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.emulation import namespaces
from tests.emulation.kernel.commands import reason_against
from tests.emulation.network import Network, Node, end
from tests.emulation.setups import Setup

HERE = "127.0.0.1"


@contextmanager
def on_loopback(setup: Setup) -> Iterator[Network]:
    """A set-up without namespaces. Whatever was started in it ends with it."""
    nodes = {peer.name: Node(peer.name, HERE, HERE, "") for peer in setup.peers}
    try:
        yield Network(setup, nodes, HERE)
    finally:
        end(process for node in nodes.values() for process in node.started)


@contextmanager
def anywhere(setup: Setup, *, shaped: bool = True) -> Iterator[Network]:
    """Namespaces where this machine has them, else loopback: for tests of what is exchanged, not of how fast."""
    with on_loopback(setup) if reason_against() else namespaces.emulated(setup, shaped=shaped) as network:
        yield network

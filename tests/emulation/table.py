"""A description of a set-up for the person who started it: its links, its floor times, and how to enter its
namespaces.
"""

from collections.abc import Iterator

from rich.table import Table

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.recipe import Codec
from tests.emulation.floor import floor_s
from tests.emulation.network import Network
from tests.emulation.setups import MBIT, Peer, Rates

CODECS: tuple[Codec, ...] = ("fp16", "fp32")


def links_of(network: Network, measured: Rates | None) -> Table:
    """Return a table with one line per peer, in Mb/s. Measured rates are shown beside the configured ones."""
    title = (
        f"{network.setup.name}, rates x {network.setup.scale:g}, in Mb/s; the coordinator is at {network.host_address}"
    )
    table = Table(title=title)
    for heading in ("name", "role", "up", "down", "address", "can be dialled", "namespace"):
        table.add_column(heading, justify="right" if heading in {"up", "down"} else "left", no_wrap=True)
    for peer in network.setup.peers:
        node = network[peer.name]
        up, down = rates_of(peer, measured)
        dialled = "yes" if peer.reachable else "no"
        table.add_row(peer.name, peer.role, up, down, node.address, dialled, node.namespace)
    return table


def rates_of(peer: Peer, measured: Rates | None) -> tuple[str, str]:
    if measured is None:
        return f"{peer.up_mbit:g}", f"{peer.down_mbit:g}"
    up, down = measured.up[peer.name] / MBIT, measured.down[peer.name] / MBIT
    return f"{peer.up_mbit:g} ({up:.1f})", f"{peer.down_mbit:g} ({down:.1f})"


def words_about(network: Network, measured: Rates | None) -> Iterator[str]:
    setup = network.setup
    if setup.pair_mbit:
        yield f"Between regions: {setup.pair_mbit:g} Mb/s from each peer to each other."
    if measured is not None and measured.pairs:
        carried = sorted(measured.pairs.values())
        yield f"Measured between regions: {carried[0] / MBIT:.2f} to {carried[-1] / MBIT:.2f} Mb/s."
    if setup.round_trip_s:
        yield f"Round trip to a relay: {1000 * setup.round_trip_s:g} ms."
    for codec in CODECS:
        yield floors(network, codec, measured)
    yield "To be one of them:"
    yield f"    ip netns exec {next(iter(network.nodes.values())).namespace} bash"


def floors(network: Network, codec: Codec, measured: Rates | None) -> str:
    setup = network.setup
    size = encoded_size(codec, setup.elements)
    raw = floor_s(setup, setup.nominal(), size, size)
    said = f"Floor of a round of {setup.elements / 1e6:g} million values, {codec}: {raw:.2f} s"
    if measured is None:
        return f"{said} on rates as set."
    real = floor_s(setup, measured, size, size)
    return f"{said} on rates as set, {real:.2f} s on what the links carry ({real / raw:.3f} of it)."

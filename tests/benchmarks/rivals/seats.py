"""Namespaces in which a rival's peers run, and the rivals that a set-up supports."""

import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.rivals.rounds import Seat
from tests.emulation.network import Network
from tests.emulation.setups import MBIT, Peer, Rates, Setup

PROGRAMS = "tests.benchmarks.rivals"


def reason_against_gloo(setup: Setup, codec: str) -> str:
    """Return why gloo cannot run in this set-up, or an empty string if it can."""
    if not all(peer.reachable for peer in setup.peers):
        return "all have to reach each other"
    if codec not in {"fp16", "fp32"}:
        return f"it has no {codec}"
    return ""


def gloo(network: Network, codec: str, folder: Path) -> list[Seat]:
    """Seat only the trainers. Other peers have no values, and gloo's ring would wait for them."""
    trainers = [peer for peer in network.setup.peers if peer.role == "trainer"]
    command = (sys.executable, "-m", f"{PROGRAMS}.gloo_peer")
    common = common_of(network.setup, codec) | {"folder": str(folder)}
    return [Seat(peer.name, command, common | {"index": index}) for index, peer in enumerate(trainers)]


def hivemind(network: Network, codec: str, python: Path, rates: Rates, *, best: bool) -> list[Seat]:
    """Seat all peers. The keeper of the log comes first, since all other peers can dial it."""
    setup = network.setup
    trainers = [peer.name for peer in setup.peers if peer.role == "trainer"]
    seats = []
    for peer in sorted(setup.peers, key=lambda peer: peer.name != setup.keeper):
        asked = common_of(setup, codec) | {
            "index": trainers.index(peer.name) if peer.name in trainers else 0,
            "group": len(setup.peers),
            "address": network[peer.name].address,
            "role": role_of(peer),
            "initial": [],
            "is_dialled": peer.name == setup.keeper,
            "best": best,
            "bandwidth": rates.up[peer.name] / MBIT,  # hivemind's solver is inexact for bytes per second
        }
        command = (str(python), "-m", f"{PROGRAMS}.hivemind_peer")
        seats.append(Seat(peer.name, command, asked, contributes=peer.role == "trainer"))
    return seats


def common_of(setup: Setup, codec: str) -> dict[str, Any]:
    trainers = sum(peer.role == "trainer" for peer in setup.peers)
    return {"contributors": trainers, "elements": setup.elements, "codec": codec}


def role_of(peer: Peer) -> str:
    """Return the peer's hivemind role: auxiliary if it has no values, client if behind NAT, otherwise node."""
    if peer.role != "trainer":
        return "auxiliary"
    return "node" if peer.reachable else "client"

"""What everything that runs at a peer costs: processor seconds, and the most memory it ever had."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from tests.benchmarks.rig.processes import cpu_s, peak_mb
from tests.emulation.kernel import remains
from tests.emulation.network import Network


@dataclass(frozen=True)
class Cost:
    """Of all processes of a peer. Pages that they share count once for each of them."""

    cpu_s: float = 0.0
    peak_mb: float = 0.0


def costs(network: Network) -> dict[str, Cost]:
    """By peer, of the processes that are there now."""
    namespaces = {name: remains.identity_of(remains.HELD / node.namespace) for name, node in network.nodes.items()}
    return {
        name: cost_of(remains.inside({identity})) if identity is not None else Cost()
        for name, identity in namespaces.items()
    }


def cost_of(pids: Iterable[int]) -> Cost:
    """Of these processes together; who ends meanwhile counts for nothing."""
    seconds, peak = 0.0, 0.0
    for pid in pids:
        try:
            spent, most = cpu_s(pid), peak_mb(pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, FileNotFoundError, ProcessLookupError, StopIteration):
            continue
        seconds, peak = seconds + spent, peak + most
    return Cost(seconds, peak)


def spent_s(before: Mapping[str, Cost], after: Mapping[str, Cost]) -> float:
    """Processor seconds of all peers in between."""
    return sum(cost.cpu_s - before.get(name, Cost()).cpu_s for name, cost in after.items())

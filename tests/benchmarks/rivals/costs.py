"""The cost of a peer's processes: CPU seconds and peak memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from tests.benchmarks.rig.processes import cpu_s, peak_mb
from tests.emulation.kernel import remains
from tests.emulation.network import Network


@dataclass(frozen=True)
class Cost:
    cpu_s: float = 0.0
    peak_mb: float = 0.0


def costs(network: Network) -> dict[str, Cost]:
    namespaces = {name: remains.identity_of(remains.HELD / node.namespace) for name, node in network.nodes.items()}
    return {
        name: cost_of(remains.inside({identity})) if identity is not None else Cost()
        for name, identity in namespaces.items()
    }


def cost_of(pids: Iterable[int]) -> Cost:
    """Return the total cost of some processes. A process that ends during the measurement does not count."""
    seconds, peak = 0.0, 0.0
    for pid in pids:
        try:
            spent, most = cpu_s(pid), peak_mb(pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, FileNotFoundError, ProcessLookupError, StopIteration):
            continue
        seconds, peak = seconds + spent, peak + most
    return Cost(seconds, peak)


def spent_s(before: Mapping[str, Cost], after: Mapping[str, Cost]) -> float:
    return sum(cost.cpu_s - before.get(name, Cost()).cpu_s for name, cost in after.items())

"""The kernel's counters: bytes and packets of each peer, and how busy the CPUs were.

A burst of segments that TCP sends at once counts as one packet with one header."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from tests.emulation.kernel.commands import run
from tests.emulation.network import Network

MOST_BUSY = 0.8  # above this a round is invalid: the machine's speed was measured, not the network's


@dataclass(frozen=True)
class Count:
    bytes: int
    packets: int

    def __sub__(self, earlier: "Count") -> "Count":
        return Count(self.bytes - earlier.bytes, self.packets - earlier.packets)


NONE = Count(0, 0)


@dataclass(frozen=True)
class Traffic:
    up: Count
    down: Count
    control_up: Count
    control_down: Count

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        return Traffic(
            self.up - earlier.up,
            self.down - earlier.down,
            self.control_up - earlier.control_up,
            self.control_down - earlier.control_down,
        )


def traffic(network: Network) -> dict[str, Traffic]:
    """Return each peer's traffic so far. On loopback every peer gets the loopback device's traffic, and no control
    traffic.
    """
    if network.internet is None:
        return dict.fromkeys(network.nodes, on_loopback())
    shown = run(["ip", "-n", network.internet.namespace, "-json", "-stats", "link"])
    links = {link["ifname"]: link["stats64"] for link in json.loads(shown)}
    return {name: of_peer(links, index) for index, name in enumerate(network.nodes)}


def of_peer(links: dict[str, Any], index: int) -> Traffic:
    """Return a peer's traffic, counted at the bridges: the bytes that a bridge receives are those that the peer
    sent."""
    data, control = links[f"d{index}"], links[f"c{index}"]
    return Traffic(*(count(side) for link in (data, control) for side in (link["rx"], link["tx"])))


def count(side: dict[str, int]) -> Count:
    return Count(side["bytes"], side["packets"])


def on_loopback() -> Traffic:
    """Return the traffic of the loopback device, which receives everything that it sends."""
    counters = psutil.net_io_counters(pernic=True)
    here = next(found for name, found in counters.items() if name.startswith("lo"))
    return Traffic(Count(here.bytes_sent, here.packets_sent), Count(here.bytes_recv, here.packets_recv), NONE, NONE)


@dataclass(frozen=True)
class ProcessorTime:
    """CPU seconds since boot, over all CPUs. Time stolen by the hypervisor counts as busy; waiting for a disk does
    not.
    """

    busy_s: float
    all_s: float


def processor_time() -> ProcessorTime:
    return summed(psutil.cpu_times()._asdict())


def summed(times: Mapping[str, float]) -> ProcessorTime:
    """Sum the seconds of all kinds. Guest seconds are left out, since `user` already includes them."""
    everything = sum(value for name, value in times.items() if not name.startswith("guest"))
    return ProcessorTime(everything - times["idle"] - times.get("iowait", 0.0), everything)


def cpu_busy(before: ProcessorTime, after: ProcessorTime) -> float:
    """Return the share of CPU time that this machine spent busy between the two readings, from 0 to 1."""
    part = (after.busy_s - before.busy_s) / max(after.all_s - before.all_s, 0.01)
    return min(max(part, 0.0), 1.0)

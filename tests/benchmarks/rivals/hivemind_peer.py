"""hivemind's DecentralizedAverager, in its own environment: `python -m tests.benchmarks.rivals.hivemind_peer JSON`.

JSON has: index, contributors, group (the number of peers), elements, address (where the peer listens), role, initial
(the first peers to dial), best (tuned settings instead of defaults), codec, bandwidth (Mb/s)."""

import time
from collections.abc import Sequence
from typing import Any

import hivemind
import torch
from hivemind.compression import Float16Compression, NoCompression

from tests.benchmarks.rivals.program import converse
from tests.benchmarks.rivals.values import Vector

TENSORS = 10
MATCHMAKING_S = 15.0  # for `best`, as in hivemind's optimizer; the averager's default is 5
PATIENCE_S = 90.0  # seconds until a group is found
BEST_PART = 1 << 21  # bytes; the default is 1 << 19


class Hivemind:
    """The averager, with a clock that times its all-reduce but not the search for a group."""

    def __init__(self, asked: dict[str, Any]) -> None:
        size = asked["elements"] // TENSORS
        sizes = [size] * (TENSORS - 1) + [asked["elements"] - size * (TENSORS - 1)]
        self.tensors = [torch.zeros(size) for size in sizes]
        self.times = torch.zeros(2, dtype=torch.float64)
        self.times.share_memory_()  # type: ignore[no-untyped-call]
        watch(hivemind.DecentralizedAverager, self.times)
        self.group = asked["group"]
        self.dht = hivemind.DHT(
            initial_peers=asked["initial"] or None,
            host_maddrs=[f"/ip4/{asked['address']}/tcp/0"],
            client_mode=asked["role"] == "client",
            nat_port_map=False,
            start=True,
        )
        self.averager = hivemind.DecentralizedAverager(
            self.tensors,
            self.dht,
            prefix="benchmark",
            target_group_size=self.group,
            auxiliary=asked["role"] == "auxiliary",
            allow_state_sharing=False,
            start=True,
            **(best(asked) if asked["best"] else {}),
        )

    def vectors(self) -> Sequence[Vector]:
        return [tensor.numpy() for tensor in self.tensors]

    def average(self) -> dict[str, Any]:
        self.times.zero_()
        try:
            met = self.averager.step(timeout=PATIENCE_S)
        except Exception as trouble:  # noqa: BLE001 (whatever it is, the round is lost and the next one may not be)
            return {"failed": repr(trouble)}
        began, ended = self.times.tolist()
        return {"began": began, "ended": ended, "group": len(met or ())}

    def close(self) -> None:
        self.averager.shutdown()
        self.dht.shutdown()


def best(asked: dict[str, Any]) -> dict[str, Any]:
    """Return tuned settings, as a user would choose them after some measurements."""
    compression = {"fp16": Float16Compression, "fp32": NoCompression}[asked["codec"]]()
    return {
        "compression": compression,
        "bandwidth": asked["bandwidth"],
        "part_size_bytes": BEST_PART,
        "min_matchmaking_time": MATCHMAKING_S,
    }


def watch(averager: Any, times: torch.Tensor) -> None:
    """Record when an all-reduce begins and ends. hivemind runs it in a process forked from this one."""
    inner = averager._aggregate_with_group

    async def aggregate(self: Any, *arguments: Any, **named: Any) -> Any:
        if not times[0]:  # a second attempt belongs to the same all-reduce
            times[0] = time.monotonic()
        met = await inner(self, *arguments, **named)
        times[1] = time.monotonic()
        return met

    averager._aggregate_with_group = aggregate


def build(asked: dict[str, Any]) -> tuple[Hivemind, dict[str, Any]]:
    """Create the averager. Report this peer's addresses, so that others can dial the first peer."""
    made = Hivemind(asked)
    return made, {"addresses": [str(address) for address in made.dht.get_visible_maddrs()]}


if __name__ == "__main__":
    converse(build)

"""Averages a vector with torch.distributed's all_reduce over gloo: `python -m tests.benchmarks.rivals.gloo_peer JSON`.

JSON has: index, contributors, elements, codec, folder (readable by all)."""

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.benchmarks.rivals.program import converse
from tests.benchmarks.rivals.values import Vector

PATIENCE = timedelta(minutes=10)
TYPES = {"fp16": torch.float16, "fp32": torch.float32}


class Gloo:
    """A float32 vector that gloo averages. Gloo transfers it in the codec's type."""

    def __init__(self, elements: int, peers: int, codec: str) -> None:
        self.peers = peers
        self.vector = torch.zeros(elements)
        self.kind = TYPES[codec]

    def vectors(self) -> Sequence[Vector]:
        return [self.vector.numpy()]

    def average(self) -> dict[str, Any]:
        """Average once. As in our own rounds, the time includes casts. It does not include the initial wait for the
        other peers.
        """
        dist.barrier()
        began = time.monotonic()
        sent = self.vector.to(self.kind)
        dist.all_reduce(sent)
        self.vector.copy_(sent).div_(self.peers)
        return {"began": began, "ended": time.monotonic(), "group": self.peers}

    def close(self) -> None:
        dist.destroy_process_group()


def build(asked: dict[str, Any]) -> tuple[Gloo, dict[str, Any]]:
    """Meet the other peers through a shared file. GLOO_SOCKET_IFNAME names the network interface for the values."""
    peers = asked["contributors"]
    meeting = f"file://{Path(asked['folder']) / 'gloo'}"
    dist.init_process_group("gloo", meeting, rank=asked["index"], world_size=peers, timeout=PATIENCE)
    return Gloo(asked["elements"], peers, asked["codec"]), {}


if __name__ == "__main__":
    converse(build)

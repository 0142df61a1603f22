"""Read leased units of data shards as an agent does, with a timer in place of computing. `experiments.streaming` runs
this program.

The coordinator's lease book grants the units to one machine. The agent's own cache fetches, stores and opens the
shards.
"""

import argparse
import asyncio
import time
from collections import deque
from pathlib import Path

import psutil
from msgspec.structs import replace

from peer_agent.machine.home import Home
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.leases import LeaseBook, Source
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.log.records import Unit
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.trainer.shards import Shards
from tests.agent.scripted_site import TRAINER, OwnAccess
from tests.benchmarks.agents.shard_server import TOKENS
from tests.benchmarks.rig.figures import Figures, publish, say

CONTEXT, UNIT, BATCH = 2048, 32, 256  # tokens per sample; samples per unit; samples per step of one machine
ME = AccumulatorId("a" * 32)
LATE_S = 0.05  # a wait longer than this was a wait for data
WEIGHTS = (0.23, 0.77)


class Disk:
    """The peak size of the shard cache and of this process's memory, in each quarter of the run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, psutil.Process()
        self.seen: list[tuple[float, float]] = []

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            sizes = await asyncio.to_thread(lambda: [path.stat().st_size for path in self.folder.glob("**/*.*")])
            self.seen.append((sum(sizes) / 1e6, self.process.memory_info().rss / 1e6))

    def quarters(self) -> list[tuple[float, float]]:
        """Return each quarter's peaks: (megabytes on disk, megabytes in memory)."""
        each = max(len(self.seen) // 4, 1)
        parts = [self.seen[start : start + each] for start in range(0, 4 * each, each)]
        return [(max(disk for disk, _ in part), max(memory for _, memory in part)) for part in parts if part]


class Leases:
    """Leases for units of both data sources, up to two steps ahead."""

    def __init__(self, shards: int) -> None:
        of_first = round(WEIGHTS[0] * shards)
        sources = [Source(tuple(range(of_first)), WEIGHTS[0]), Source(tuple(range(of_first, shards)), WEIGHTS[1])]
        self.book = LeaseBook((TOKENS // CONTEXT,) * shards, UNIT, sources)
        self.queue: deque[Unit] = deque()

    def next(self) -> Unit:
        if len(self.queue) * UNIT < BATCH:
            self.book.raise_marks(self.book.wanted_marks({ME: 4 * BATCH}))
            self.queue += self.book.grant(ME, 2 * BATCH)
        unit = self.queue.popleft()
        self.book.mark_used(ME, [unit])
        return unit


async def read(given: argparse.Namespace) -> Figures:
    digests = given.manifest.read_text().split()
    access = OwnAccess(given.folder, TRAINER, Role.TRAINER, "")
    access.site = replace(access.site, url=given.url)
    known = tuple(m.Shard(digest=digest, tokens=TOKENS) for digest in digests)
    recipe, loop = CausalLM(model=Model(context=CONTEXT), micro_batch=UNIT), asyncio.get_running_loop()
    home = Home(given.folder)
    shards = Shards(home, access, recipe, known, loop, disk_bytes=int(given.disk_mb * 1e6))
    leases, disk = Leases(len(digests)), Disk(home.cache)
    watching = asyncio.create_task(disk.watch())
    began, seen, waits = time.monotonic(), set[int](), list[float]()
    while time.monotonic() - began < given.seconds and len(seen) <= given.shards:
        unit = leases.next()
        shards.prefetch([*(each.shard for each in (unit, *leases.queue)), *leases.book.coming(ME, 1)])
        asked = time.monotonic()
        tokens = await asyncio.to_thread(shards.__getitem__, unit.shard)
        assert len(tokens) == TOKENS
        if unit.shard not in seen:
            waits.append(time.monotonic() - asked)
            say(f"{asked - began:.0f} s: shard {unit.shard} after {waits[-1]:.2f} s")
        seen.add(unit.shard)
        await asyncio.sleep(given.sample_s * unit.samples)
    watching.cancel()
    seconds = time.monotonic() - began
    later = waits[len(WEIGHTS) :]  # the first unit of each source always waits for its shard
    return {
        "seconds": seconds,
        "shards": len(seen),
        "read_mb": len(seen) * TOKENS * 2 / 1e6,
        "mbit_s": len(seen) * TOKENS * 16 / 1e6 / seconds,
        "first_waits_s": waits[: len(WEIGHTS)],
        "waited_for": sum(wait > LATE_S for wait in later),
        "longest_wait_s": max(later, default=0.0),
        "disk_mb": [on_disk for on_disk, _ in disk.quarters()],
        "memory_mb": [memory for _, memory in disk.quarters()],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("url")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--shards", type=int, default=1 << 30)
    parser.add_argument("--sample-s", type=float, default=0.0)
    parser.add_argument("--disk-mb", type=float, default=500.0)
    given = parser.parse_args()
    return publish("reader", lambda: asyncio.run(read(given)))


if __name__ == "__main__":
    raise SystemExit(main())

"""Data larger than the disk: prefetched, bounded on disk and in memory, with no sample used twice. See README.md."""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from peer_agent.simulation.world import Setting, World
from tests.benchmarks.agents.shard_server import TOKENS
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.benchmarks.rig.processes import running
from tests.emulation.namespaces import emulated
from tests.emulation.network import Network
from tests.emulation.setups import Peer, Setup
from tests.simulation.checked_world import state

SHARDS = 3200  # 54 GB in shards of 16 MiB
MBIT = 20.0
SECONDS, SLOWER = 600.0, 1.2  # seconds of the pass at 20 Mb/s; how many times longer computing takes than fetching
UNSHAPED = 120  # shards of the pass without a speed limit: 2 GB
SAMPLES = TOKENS // 2048  # samples in a shard
SIMULATED = 8  # trainers in the simulation
HOME = Setup(
    "data",
    (Peer("site", "relay", 1000.0, 1000.0), Peer("home", "trainer", MBIT, MBIT, reachable=False)),
    elements=1,
    keeper="site",
    default_scale=1.0,
)
READER, SERVER = "tests.benchmarks.agents.reader", "tests.benchmarks.agents.shard_server"


@contextmanager
def served(network: Network, folder: Path, shards: int) -> Iterator[str]:
    site = network["site"]
    process = site.python("-m", SERVER, site.address, str(shards), str(folder / "manifest"), stdout=-1, text=True)
    say(f"{shards} shards are named")
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    try:
        yield f"http://{site.address}:{port}"
    finally:
        process.kill()
        process.wait()


def shaped(shards: int, seconds: float) -> Figures:
    fetch_s = 16 * TOKENS / (MBIT * 1e6)
    with tempfile.TemporaryDirectory() as name, emulated(HOME) as network:
        folder = Path(name)
        with served(network, folder, shards) as url:
            options = ("--seconds", f"{seconds:g}", "--sample-s", str(SLOWER * fetch_s / SAMPLES))
            process = network["home"].python(
                "-m", READER, str(folder / "home"), url, str(folder / "manifest"), *options, stdout=-1, text=True
            )
            said, _ = process.communicate(timeout=seconds + 600)
    return dict(json.loads(said.splitlines()[-1]))


def unshaped(shards: int, read: int) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running("-m", SERVER, "127.0.0.1", str(shards), str(folder / "manifest")) as server:
            url = f"http://127.0.0.1:{server.hear()}"
            options = ("--shards", str(read), "--disk-mb", "200")
            with running("-m", READER, str(folder / "home"), url, str(folder / "manifest"), *options) as reader:
                while not (line := reader.hear()).startswith("{"):
                    pass
    return dict(json.loads(line))


def leased(shards: int) -> Figures:
    """Simulate a whole epoch over two sources, with host restarts and machines that come and go."""
    of_first = round(0.23 * shards)
    each = SIMULATED * SAMPLES  # samples of a step: one shard's worth for each trainer
    steps = 2 * shards * SAMPLES // each + 20
    world = World(
        Setting(
            trainers=SIMULATED,
            samples_each=SAMPLES // 4,
            micro_batch=64,
            steps=4 * steps,
            shards=(SAMPLES,) * shards,
            sources=(0,) * of_first + (1,) * (shards - of_first),
            mix=(0.23, 0.77),
            snapshot_every=10_000,
            samples_per_s=400.0,
        )
    )
    fetched: set[tuple[str, int]] = set()
    done, restarts = 0, 0
    while min(source.epoch for source in state(world).leases.sources) < 1:
        assert world.run_steps(50, 36_000.0)
        done += 50
        if done % 500 == 0:
            world.restart_host(3.0)
            assert world.run_steps(1, 36_000.0)  # continue until the restarted host is back
            restarts += 1
            say(f"{done} steps")
    assert world.run_steps(20, 36_000.0)
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for record in world.database.records:
        for entry in record.contributions:
            for unit in entry.units:
                if not unit.epoch:
                    ranges[unit.shard].append((unit.start, unit.stop))
                    fetched.add((entry.peer, unit.shard))
    twice = sum(second[0] < first[1] for found in ranges.values() for first, second in pairwise(sorted(found)))
    used = sum(stop - start for found in ranges.values() for start, stop in found)
    return {
        "trainers": SIMULATED,
        "shards": shards,
        "samples": shards * SAMPLES,
        "used": used,
        "twice": twice,
        "fetches_per_shard": len(fetched) / shards,
        "steps": len(world.database.records),
        "restarts": restarts,
    }


def measured(shards: int, seconds: float, read: int, simulated: int) -> Figures:
    found: dict[str, Any] = {"manifest_gb": shards * TOKENS * 2 / 1e9}
    found["leases"] = leased(simulated)
    found["shaped"] = shaped(shards, seconds)
    found["unshaped"] = unshaped(min(shards, 2 * read), read)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experiments.streaming", description=__doc__)
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--read", type=int, default=UNSHAPED, help="shards of the unshaped pass")
    parser.add_argument("--simulated", type=int, default=SHARDS, help="shards of the simulated epoch")
    given = parser.parse_args()
    return publish("streaming", lambda: measured(given.shards, given.seconds, given.read, given.simulated))


if __name__ == "__main__":
    sys.exit(main())

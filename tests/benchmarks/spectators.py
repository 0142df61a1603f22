"""The delay from a step to the pages of a crowd: one site process, one process with all WebSockets. See README.md."""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.long_run import begin
from tests.benchmarks.rig.figures import Figures, median, publish, say

PEOPLE = 12
OPENING = 100  # sockets that open at the same time
PATIENCE_S = 120.0


def measure(spectators: int, steps: int, every_s: float) -> Figures:
    os.environ["MANYHANDS_PEOPLE_PER_ADDRESS"] = str(10 * spectators)
    with tempfile.TemporaryDirectory() as folder:
        begin(Path(folder))
        return asyncio.run(_measure(spectators, steps, every_s))


async def _measure(spectators: int, steps: int, every_s: float) -> Figures:
    from channels.layers import get_channel_layer

    from coordination.channel_layer.messages import RunMoved, watchers_of
    from coordination.threads import in_thread
    from tests.coordination.joining import served
    from tests.runs.factories import committed

    run, machines = await in_thread(_filled)()
    layer: Any = get_channel_layer()
    made: list[float] = []
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    async with served() as url:
        address = url.replace("/ws/agents/", f"/ws/runs/{run.slug}/")
        crowd = multiprocessing.get_context("spawn").Process(target=watch, args=(address, spectators, steps, theirs))
        crowd.start()
        try:
            say(f"{await in_thread(ours.recv)()} spectators are there")
            spent = time.process_time()
            for step in range(1, steps + 1):
                await in_thread(committed)(run, *((machine, 8) for machine in machines), loss=6 - step / steps)
                made.append(time.time())
                await layer.group_send(watchers_of(run.run_id), RunMoved())
                await asyncio.sleep(every_s)
            async with asyncio.timeout(PATIENCE_S):
                seen, received = await in_thread(ours.recv)()
            spent = time.process_time() - spent
        finally:
            crowd.terminate()
            crowd.join()
    late = sorted(at - made[step - 1] for step, at in seen)
    return {
        "spectators": spectators,
        "steps": steps,
        "seen": len(seen),
        "median_s": median(late),
        "p95_s": late[int(0.95 * len(late))],
        "worst_s": late[-1],
        "kb_per_step": received / 1000 / spectators / steps,
        "site_cpu_s_per_step": spent / steps,
    }


def _filled() -> tuple[Any, list[Any]]:
    from django.core.management import call_command

    from accounts.models import Person
    from tests.runs.factories import opened, owned

    call_command("migrate", verbosity=0)
    run = opened(Person.objects.create_user("Amina", None))
    machines = [owned(Person.objects.create_user(f"person {at}", None)).machine for at in range(PEOPLE)]
    return run, machines


def watch(address: str, spectators: int, steps: int, told: Any) -> None:
    """Open the sockets, and record when each of them hears of each step."""
    asyncio.run(_watch(address, spectators, steps, told))


async def _watch(address: str, spectators: int, steps: int, told: Any) -> None:
    from websockets.asyncio.client import connect

    seen: list[tuple[int, float]] = []
    here, received, opening = asyncio.Semaphore(0), 0, asyncio.Semaphore(OPENING)

    async def one() -> None:
        nonlocal received
        async with opening:
            socket = await connect(address, compression=None, open_timeout=PATIENCE_S, max_size=None)
            await socket.recv()
            here.release()
        known = 0
        async with socket:
            while known < steps:
                text = await socket.recv()
                at = time.time()
                received += len(text)
                chart = json.loads(text)["chart"] if text != "." else None
                now = chart["add"][-1][0] if chart and chart["add"] else known
                seen.extend((step, at) for step in range(known + 1, now + 1))
                known = now

    async with asyncio.TaskGroup() as crowd:
        for _ in range(spectators):
            crowd.create_task(one())
        for _ in range(spectators):
            await here.acquire()
        told.send(spectators)
    told.send((seen, received))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spectators", description=__doc__)
    parser.add_argument("--spectators", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS")
    asked = parser.parse_args(arguments)
    return publish("spectators", lambda: measure(asked.spectators, asked.steps, asked.every))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A host's broadcast to N sockets in its own process: its duration, and the delay for other tasks. See README.md."""

import argparse
import asyncio
import os
import sys
import time
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

from coordination.channel_layer.messages import HostSaid  # noqa: E402
from coordination.sockets.consumer import AgentConsumer  # noqa: E402
from tests.benchmarks.rig.figures import Figures, publish  # noqa: E402

ROUNDS = 10
LETTER = HostSaid(bytes(2_000))
BACKENDS = {
    "channels": {"BACKEND": "channels.layers.InMemoryChannelLayer", "CONFIG": {"capacity": 10_000}},
    "own": {"BACKEND": "coordination.channel_layer.process.ProcessLayer", "CONFIG": {}},
}


class Bare(AgentConsumer):
    """A socket that skips the handshake."""

    async def connect(self) -> None:
        NAMES.append(self.channel_name)

    async def _leave(self) -> None:
        pass


NAMES: list[str] = []


async def longest_wait(stop: asyncio.Event) -> float:
    """Return the longest time that a task waits between two turns. Ticks and lease renewals would be delayed by as
    much.
    """
    longest, before = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    return longest


async def measure(count: int) -> Figures:
    """Return the figures in milliseconds. All but the longest wait are means over ROUNDS broadcasts."""
    from channels.layers import get_channel_layer

    layer: Any = get_channel_layer()
    heard, arrived = 0, asyncio.Event()

    async def send(_: Any) -> None:
        nonlocal heard
        heard += 1
        if heard % count == 0:
            arrived.set()

    async def socket() -> None:
        first = {"type": "websocket.connect"}
        never = asyncio.Event()

        async def receive() -> Any:
            nonlocal first
            if first:
                message, first = first, {}
                return message
            return await never.wait()

        await Bare()({"type": "websocket"}, receive, send)

    NAMES.clear()
    tasks = [asyncio.create_task(socket()) for _ in range(count)]
    while len(NAMES) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    stop = asyncio.Event()
    waiting = asyncio.create_task(longest_wait(stop))
    sending = taken = 0.0
    for _ in range(ROUNDS):
        arrived.clear()
        began, cpu = time.perf_counter(), time.process_time()
        if hasattr(layer, "send_many"):
            await layer.send_many(NAMES, LETTER)
        else:
            for name in NAMES:
                await layer.send(name, LETTER)
        sending += time.perf_counter() - began
        await arrived.wait()
        taken += time.process_time() - cpu
    stop.set()
    longest = await waiting
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return {"send_ms": sending / ROUNDS * 1e3, "all_cpu_ms": taken / ROUNDS * 1e3, "longest_wait_ms": longest * 1e3}


def main(arguments: list[str]) -> int:
    from django.conf import settings

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.broadcast", description=__doc__)
    parser.add_argument("--sockets", type=int, default=1000)
    parser.add_argument("--layer", choices=BACKENDS, default="own")
    options = parser.parse_args(arguments)
    settings.CHANNEL_LAYERS = {"default": BACKENDS[options.layer]}
    about = {"layer": options.layer, "sockets": options.sockets}
    return publish("broadcast", lambda: about | asyncio.run(measure(options.sockets)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

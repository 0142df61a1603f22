"""A run on PostgreSQL whose Redis is restarted or hangs, with the run's host in another process."""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import redis as client
from channels.layers import get_channel_layer

from coordination.channel_layer.messages import watchers_of
from coordination.threads import in_thread
from runs.models import Run
from tests.coordination.engines import PATIENCE_S
from tests.coordination.running import at_work, head, other_process, until
from tests.servers import free_port, redis_at


class Redis:
    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._life = contextlib.ExitStack()

    def start(self) -> None:
        """Start an empty server, and return once it answers."""
        self._life.enter_context(redis_at(self.port))

    def end(self) -> None:
        self._life.close()

    def kill(self) -> None:
        os.kill(self._pid(), signal.SIGKILL)
        self.end()

    def _pid(self) -> int:
        with client.Redis.from_url(self.url) as asking:
            return int(asking.info("server")["process_id"])

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Suspend the server during a `with` block. It then accepts connections, but answers nothing."""
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def settings_of(redis: Redis) -> dict[str, Any]:
    config = {"hosts": [redis.url], "prefix": f"t{uuid.uuid4().hex[:8]}"}
    return {"default": {"BACKEND": "coordination.channel_layer.redis.RedisLayer", "CONFIG": config}}


@asynccontextmanager
async def a_run_elsewhere(example: Any, url: str, settings: Any) -> AsyncIterator[None]:
    """Run a host in another process, and the peers' sockets in this one."""
    with other_process(url, settings):
        await until(lambda: head().owner, "the other process has the run")
        async with at_work(example):
            await until(lambda: head().step >= 3, "it goes")
            yield


async def goes_on_after(redis: Redis, run: Run) -> float:
    """Restart Redis. Return the seconds from its first answer until the run completes a step and a watcher is
    notified.
    """
    layer: Any = get_channel_layer()
    await in_thread(redis.end)()
    await until(lambda: not layer.is_up, "this process has noticed")  # other processes notice it at about the same time
    await in_thread(redis.start)()
    began = time.monotonic()
    ear = await layer.new_channel()
    await layer.group_add(watchers_of(run.run_id), ear)
    step = (await in_thread(head)()).step
    async with asyncio.timeout(PATIENCE_S):
        await layer.receive(ear)
    await until(lambda: head().step > step, "it goes on")
    layer.forget(ear)
    return time.monotonic() - began

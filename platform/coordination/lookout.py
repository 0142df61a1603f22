"""Who hosts which run, as the database has it: asked every two seconds for all sockets of a process together.

Announcements are quicker, and may be lost: with a Redis that is restarted, a channel that is full, a host that died.
"""

import asyncio
import contextlib
import logging
import time
from typing import Protocol

from django.db import DatabaseError

from coordination import claims
from coordination.following import Hosts
from coordination.threads import in_thread

log = logging.getLogger(__name__)

LOOK_S = 2.0
HURRY_S = 0.25  # between looks, however many ask for one


class Follower(Protocol):
    """A socket."""

    async def find(self, hosts: Hosts, asked_at: float) -> None:
        """What a look has found that was begun at `asked_at`."""


class Lookout:
    """Looks for as long as there are sockets."""

    def __init__(self) -> None:
        self._followers: set[Follower] = set()
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, follower: Follower) -> None:
        """From now on."""
        self._followers.add(follower)
        if self._task is None or self._task.done():
            self._hurried = asyncio.Event()  # of this loop
            self._task = asyncio.create_task(self._work())

    def discard(self, follower: Follower) -> None:
        """No more."""
        self._followers.discard(follower)

    def hurry(self) -> None:
        """Somebody has no host, or it does not answer."""
        self._hurried.set()

    async def _work(self) -> None:
        while self._followers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._hurried.wait()
            self._hurried.clear()
            asked_at = time.monotonic()
            try:
                hosts = await in_thread(claims.hosts_of)()
            except DatabaseError:
                log.warning("the database is away", exc_info=True)
            else:
                for follower in tuple(self._followers):
                    await follower.find(hosts, asked_at)
            await asyncio.sleep(HURRY_S)

"""What the database has to say to sockets: asked every two seconds for all of a process together.

Who hosts which run: announcements are quicker, and may be lost with a Redis that is restarted, a channel that is full,
a host that died. Now and then, which runs were finished: they have no host any more that could tell their relays.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from django.db import DatabaseError
from django.utils import timezone

from coordination.hosts import claims
from coordination.sockets.following import Hosts
from coordination.sockets.settled import settled
from coordination.threads import in_thread
from peer_agent.protocol.messages import Snapshotted

log = logging.getLogger(__name__)

LOOK_S = 2.0
HURRY_S = 0.25  # between looks, however many ask for one
SETTLED_S = 30.0  # between looks for runs that were finished
OVERLAP = timedelta(seconds=90)  # of two of these: they are told twice rather than not at all


class Follower(Protocol):
    """A socket, as this room knows it."""

    async def find(self, hosts: Hosts, asked_at: float) -> None:
        """What a look has found that was begun at `asked_at`."""

    async def announce_finished(self, notes: Sequence[Snapshotted]) -> None:
        """Runs that were finished lately, and up to where their relays may let go."""


class Lookout:
    """Looks for as long as there are sockets."""

    def __init__(self) -> None:
        self._followers: set[Follower] = set()
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._settled_at = 0.0

    def add(self, follower: Follower) -> None:
        """Tell this socket of hosts from now on."""
        self._followers.add(follower)
        if self._task is None or self._task.done():
            self._hurried = asyncio.Event()  # of this loop
            self._task = asyncio.create_task(self._work())

    def discard(self, follower: Follower) -> None:
        """Tell this socket of nothing more."""
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
            try:
                await self._look(time.monotonic())
            except DatabaseError:
                log.warning("the database is away", exc_info=True)
            await asyncio.sleep(HURRY_S)

    async def _look(self, now: float) -> None:
        hosts = await in_thread(claims.hosts_of)()
        for follower in tuple(self._followers):
            await follower.find(hosts, now)
        if now - self._settled_at >= SETTLED_S:
            notes = await in_thread(settled)(timezone.now() - timedelta(seconds=SETTLED_S) - OVERLAP)
            self._settled_at = now
            for follower in tuple(self._followers) if notes else ():
                await follower.announce_finished(notes)

"""What owners want of their machines, on its way to the sockets of a process: asked twice a second for all together."""

import asyncio
import contextlib
import logging
from datetime import timedelta
from typing import Protocol

from django.db import DatabaseError
from django.utils import timezone

from accounts.machine_control import changed_since
from coordination.threads import in_thread
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Instructions

log = logging.getLogger(__name__)

LOOK_S = 0.4
OVERLAP = timedelta(seconds=10)  # of two looks: a transaction may be seen later than it says


class Instructed(Protocol):
    """A socket whose machine has said that it hears instructions."""

    async def instruct(self, wanted: Instructions) -> None:
        """What is wanted of its machine now."""


class Instructing:
    """Looks for as long as there are such sockets."""

    def __init__(self) -> None:
        self._sockets: dict[PeerId, set[Instructed]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, peer: PeerId, socket: Instructed) -> None:
        """Tell this socket what is wanted of its machine from now on."""
        self._sockets.setdefault(peer, set()).add(socket)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    def discard(self, peer: PeerId, socket: Instructed) -> None:
        """Tell it nothing more."""
        sockets = self._sockets.get(peer, set())
        sockets.discard(socket)
        if not sockets:
            self._sockets.pop(peer, None)

    async def _work(self) -> None:
        since = timezone.now() - OVERLAP
        while self._sockets:
            await asyncio.sleep(LOOK_S)
            begun = timezone.now()
            try:
                changed = await in_thread(changed_since)(since)
            except DatabaseError:
                log.warning("the database is away", exc_info=True)
                continue
            since = begun - OVERLAP
            for peer, wanted in changed.items():
                for socket in tuple(self._sockets.get(PeerId(peer), ())):
                    with contextlib.suppress(OSError):
                        await socket.instruct(wanted)

"""How often a process asks the database who hosts what."""

import asyncio
from collections.abc import Sequence

import pytest

from coordination.hosts import claims
from coordination.sockets import polling
from coordination.sockets.following import Hosts
from coordination.sockets.polling import Lookout
from coordination.threads import in_thread
from peer_agent.protocol.messages import Snapshotted
from tests.coordination.engines import PATIENCE_S

TURNS = 50  # of a thread, each as long as a look


class Hurried:
    """A socket that is never content."""

    def __init__(self, here: Lookout) -> None:
        self.here, self.found = here, asyncio.Event()

    async def find(self, hosts: Hosts, asked_at: float) -> None:
        """Asks for another look at once."""
        del hosts, asked_at
        self.found.set()
        self.here.hurry()

    async def announce_finished(self, notes: Sequence[Snapshotted]) -> None:
        """It has no log."""


async def test_however_many_are_in_a_hurry_there_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []

    def hosts_of() -> Hosts:
        looks.append(None)
        return {}

    monkeypatch.setattr(claims, "hosts_of", hosts_of)
    monkeypatch.setattr(polling, "settled", lambda _: ())
    monkeypatch.setattr(polling, "HURRY_S", 1e6)
    here = Lookout()
    socket = Hurried(here)
    here.add(socket)
    here.hurry()
    async with asyncio.timeout(PATIENCE_S):
        await socket.found.wait()
        for _ in range(TURNS):
            await in_thread(int)()
    assert len(looks) == 1
    assert here._task is not None
    assert not here._task.done(), "it goes on after the pause"
    here._task.cancel()
    await asyncio.wait([here._task])

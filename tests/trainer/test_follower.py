"""What a follower says of itself while a thread changes the replica."""

import asyncio
import threading
from pathlib import Path

import numpy as np

from peer_agent.protocol.credentials import Role
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.follower import Follower
from peer_agent.training.replica import Replica
from tests.agent.scripted_site import PATIENCE_S, TRAINER, OwnAccess
from tests.training.commits import record_after, small_recipe


class HeldBack(Replica):
    """Its update is made at once; how it looks then takes as long as a test wants."""

    def __init__(self) -> None:
        super().__init__(small_recipe())
        self.asked, self.go_on = threading.Event(), threading.Event()

    def digest(self) -> str:
        self.asked.set()
        assert self.go_on.wait(PATIENCE_S)
        return super().digest()


async def ignore(*_: object) -> None:
    """What relays say does not matter here."""


async def test_a_state_that_is_just_changing_is_not_spoken_of(tmp_path: Path) -> None:
    """A report in that moment would name the old step's work under the new step, and be taken for a lie."""
    replica = HeldBack()
    average = np.full(replica.layout.elements, 1e-3, np.float32)
    access = OwnAccess(tmp_path, TRAINER, Role.TRAINER, "")
    follower = Follower(access.home, access, DataLinks(access, ignore), replica)

    record = record_after(replica, average)
    applying = asyncio.create_task(follower.apply(record, "d" * 64, average))
    assert await asyncio.to_thread(replica.asked.wait, PATIENCE_S)
    assert (replica.step, applying.done()) == (1, False)
    replica.go_on.set()
    assert await applying == replica.digest()

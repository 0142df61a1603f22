"""Whole rounds with trainers that cannot dial the reducers. Their chunks go through the relay, and all the replicas
agree.
"""

import asyncio
from pathlib import Path

import pytest

from peer_agent.network.link import DIAL_S, Connection
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Listener
from peer_agent.site import relay_links
from tests.benchmarks.rig.machines import OwnAccess
from tests.trainer.test_listening import PATIENCE_S, RELAY, TRAINERS, everybody_reaches, running

BARRED = TRAINERS[2]


class Barred(OwnAccess):
    """Access to a run that keeps the third trainer from dialling the peers in `shut`. The trainer's other links are
    recorded.
    """

    shut: set[PeerId] = set()  # noqa: RUF012 - each test sets its own
    direct: dict[PeerId, Connection] = {}  # noqa: RUF012
    through: list[PeerId] = []  # noqa: RUF012

    async def dial_listener(self, listener: Listener, timeout_s: float = DIAL_S) -> Connection:
        if self.peer == BARRED and listener.peer in self.shut:
            raise Problem.of("E104", url=listener.url, reason="its port is closed")
        link = await super().dial_listener(listener, timeout_s)
        if self.peer == BARRED:
            self.direct[listener.peer] = link
        return link

    async def dial_through(self, relay: Listener, listener: Listener) -> Connection:
        link = await super().dial_through(relay, listener)
        self.through.append(listener.peer)
        return link


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, empty in (("shut", set()), ("direct", {}), ("through", [])):
        monkeypatch.setattr(Barred, name, empty)


async def test_rounds_go_through_the_relay_if_it_alone_is_reached(tmp_path: Path) -> None:
    """The trainer cannot reach more than a quarter of the listeners, so its report excludes no reducer."""
    Barred.shut = set(TRAINERS[:2])
    async with running(tmp_path, listening=2, access=Barred) as coordinator, asyncio.timeout(PATIENCE_S):
        await everybody_reaches(coordinator, TRAINERS[:2])
        await coordinator.reach(coordinator.state.step + 3)
        record = coordinator.entries[-1][1]
        assert coordinator.state.members[BARRED].reaches == {RELAY}
        assert coordinator.state.void_rounds == 0
    assert {span.reducer for span in record.spans} == {*TRAINERS[:2], RELAY}
    assert len(record.contributions) == 3
    assert record.exact
    assert set(Barred.through) == set(TRAINERS[:2])


@pytest.mark.check
async def test_link_broken_in_a_round_is_forwarded_and_then_left_out(tmp_path: Path) -> None:
    async with running(tmp_path, listening=2, access=Barred) as coordinator, asyncio.timeout(PATIENCE_S):
        await everybody_reaches(coordinator, TRAINERS[:2])
        while coordinator.state.phase is not Phase.REDUCE:  # noqa: ASYNC110 - the coordinator's state tells nobody
            await asyncio.sleep(0.01)
        Barred.shut = {TRAINERS[0]}
        Barred.direct[TRAINERS[0]].abort()
        await everybody_reaches(coordinator, TRAINERS[1:2])
        await coordinator.reach(coordinator.state.step + 2)
        record = coordinator.entries[-1][1]
        assert coordinator.state.void_rounds == 0
    assert set(Barred.through) == {TRAINERS[0]}
    assert {span.reducer for span in record.spans} == {TRAINERS[1], RELAY}
    assert len(record.contributions) == 3


@pytest.mark.check
async def test_it_is_dialled_directly_again_when_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_links, "AGAIN_S", 0.5)
    Barred.shut = {TRAINERS[0]}
    async with running(tmp_path, listening=2, access=Barred) as coordinator, asyncio.timeout(PATIENCE_S):
        while TRAINERS[0] not in Barred.through:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        Barred.shut = set()
        await everybody_reaches(coordinator, TRAINERS[:2])
        await coordinator.reach(coordinator.state.step + 2)
        assert coordinator.state.void_rounds == 0

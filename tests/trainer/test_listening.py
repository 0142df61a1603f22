"""Trainers that listen, over real links. Each trainer reduces its part, including its own chunks, and all the replicas
agree.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from peer_agent.averaging.update_log import UpdateLog
from peer_agent.protocol.bandwidth.flows import WAYS, Capacity
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.relay.place import Place, own_certificate
from peer_agent.relay.process import Relay
from tests.benchmarks.rig.contributor import Contributor
from tests.benchmarks.rig.coordinator import Coordinator
from tests.benchmarks.rig.machines import OwnAccess
from tests.protocol.identities import RUN, SITE_PUBLIC

ELEMENTS = 20 * 64 * 1024
TRAINERS = [PeerId(f"{number:032x}") for number in (1, 2, 3)]
RELAY = PeerId(f"{9:032x}")
PATIENCE_S = 120.0


@asynccontextmanager
async def running(
    folder: Path,
    listening: int,
    *,
    known: bool = True,
    keeper: Role | None = Role.RELAY,
    staleness: Literal[0, 1] = 0,
    access: type[OwnAccess] = OwnAccess,
) -> AsyncIterator[Coordinator]:
    """Run three trainers, the first `listening` of which listen, and a log keeper, if any: a relay or an auxiliary.

    `known`: the link capacities, all equal, are known from the start. `access`: the trainers' access to the run.
    """
    recipe = CausalLM(
        model=Model(context=257),
        target_batch=12,
        micro_batch=4,
        minimum_trainers=3,
        snapshot_every=1000,
        staleness=staleness,
    )
    coordinator = Coordinator(recipe, ELEMENTS)
    control = await coordinator.listen("127.0.0.1")
    for peer in (*TRAINERS, RELAY) if known else ():
        for way in WAYS:
            coordinator.state.links.capacities[peer, way] = Capacity(1.5e6, is_floor=False, measured_at=0)
    relays = OwnAccess(folder / "relay", RELAY, keeper or Role.RELAY, control)
    certificate = own_certificate(relays.home) if keeper is Role.AUXILIARY else None
    relay = Relay(relays.home, relays, host="127.0.0.1", port=0, advertise="", certificate=certificate)
    tasks = [asyncio.create_task(relay.run())] if keeper is not None else []
    failures: list[BaseException] = []
    for number, peer in enumerate(TRAINERS):
        own = access(folder / peer, peer, Role.TRAINER, control)
        place = Place("127.0.0.1") if number < listening else None
        contributor = Contributor(own, grid_of(ELEMENTS), 0.01, place, failures.append)
        contributor.further_s = 0.3
        tasks.append(asyncio.create_task(contributor.run()))
    try:
        yield coordinator
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await coordinator.close()
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
        assert not failures, failures


async def everybody_reaches(coordinator: Coordinator, peers: list[PeerId]) -> None:
    while coordinator.state.reached != set(peers):  # noqa: ASYNC110 - the coordinator's state tells nobody
        await asyncio.sleep(0.05)


async def test_all_of_them_reduce_and_hold_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, listening=3) as coordinator, asyncio.timeout(PATIENCE_S):
        await everybody_reaches(coordinator, TRAINERS)
        await coordinator.reach(coordinator.state.step + 3)
        record = coordinator.entries[-1][1]
    assert {span.reducer for span in record.spans} == {*TRAINERS, RELAY}
    assert record.exact
    assert len(record.contributions) == 3
    assert coordinator.state.void_rounds == 0


async def test_they_compute_on_during_rounds_and_hold_the_same(tmp_path: Path) -> None:
    async with running(tmp_path, listening=3, staleness=1) as coordinator, asyncio.timeout(PATIENCE_S):
        await everybody_reaches(coordinator, TRAINERS)
        await coordinator.reach(coordinator.state.step + 4)
        records = [record for _, record in coordinator.entries]
        assert coordinator.state.void_rounds == 0
    stale = [entry.stale for record in records[1:] for entry in record.contributions]
    assert all(stale), "all of it was computed during the round before"
    assert all(len(record.contributions) == 3 and not record.exact for record in records[1:])


@pytest.mark.check
async def test_who_does_not_listen_is_served_by_those_who_do(tmp_path: Path) -> None:
    async with running(tmp_path, listening=1) as coordinator, asyncio.timeout(PATIENCE_S):
        await everybody_reaches(coordinator, TRAINERS[:1])
        await coordinator.reach(coordinator.state.step + 3)
        record = coordinator.entries[-1][1]
    assert {span.reducer for span in record.spans} == {TRAINERS[0], RELAY}
    assert record.exact


async def test_idle_links_are_measured_before_the_first_round(tmp_path: Path) -> None:
    async with running(tmp_path, listening=1, known=False) as coordinator, asyncio.timeout(PATIENCE_S):
        coordinator.state.goal = "paused"
        wanted = {(peer, way) for peer in (*TRAINERS, RELAY) for way in WAYS}
        while not wanted <= coordinator.state.links.capacities.keys():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.05)
        assert coordinator.state.step == 0
        assert all(capacity.bps > 1e5 for capacity in coordinator.state.links.capacities.values())


@pytest.mark.check
async def test_without_a_relay_two_of_them_keep_the_log(tmp_path: Path) -> None:
    async with running(tmp_path, listening=3, keeper=None) as coordinator, asyncio.timeout(PATIENCE_S):
        await coordinator.reach(3)
        keepers = [listener.peer for listener in coordinator.state.listeners() if listener.keeps_log]
        assert len(keepers) == 2
        records = [record for _, record in coordinator.entries]
        for keeper in keepers:
            spans = tmp_path / keeper / "log" / RUN / "spans"  # only the process that writes the log may open it
            while len([*spans.glob(f"{len(records):08d}-*.span")]) < len(records[-1].spans):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    for keeper in keepers:
        log = UpdateLog(tmp_path / keeper / "log", SITE_PUBLIC)
        for record in records:
            assert log.missing(RUN, record.index) == [], "what others averaged came with the round"
    (other,) = set(TRAINERS).difference(keepers)
    assert not UpdateLog(tmp_path / other / "log", SITE_PUBLIC).last_index(RUN), "nobody asked it to keep anything"


@pytest.mark.check
async def test_an_auxiliary_keeps_what_trainers_average(tmp_path: Path) -> None:
    async with running(tmp_path, listening=2, keeper=Role.AUXILIARY) as coordinator, asyncio.timeout(PATIENCE_S):
        await everybody_reaches(coordinator, [RELAY, *TRAINERS[:2]])
        await coordinator.reach(coordinator.state.step + 3)
        assert [listener.peer for listener in coordinator.state.listeners() if listener.keeps_log] == [RELAY]
        record = coordinator.entries[-1][1]
    assert {span.reducer for span in record.spans} == {RELAY, *TRAINERS[:2]}

"""The agent without a model, over real links: a trainer left out of a round applies that round's averages and joins
the next one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from msgspec import Struct

from peer_agent.protocol.bandwidth.flows import WAYS, Capacity
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.trainer import events as e
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.relay.process import Relay
from tests.benchmarks.agents.held import error_rms, load_average, load_held
from tests.benchmarks.agents.trainer import EARLY_STEPS, Noise, NoModel, Pace, Watched, train
from tests.benchmarks.rig.coordinator import Coordinator
from tests.benchmarks.rig.machines import OwnAccess
from tests.protocol.trainer.stage import commit

ELEMENTS = 4 * 64 * 1024
TRAINERS = [PeerId(f"{number:032x}") for number in (1, 2, 3)]
SLOW = TRAINERS[2]
RELAY = PeerId(f"{9:032x}")
PATIENCE_S = 120.0
MBIT = 1e6 / 8


class Rig(Struct, frozen=True, eq=False):
    coordinator: Coordinator
    folder: Path

    def error(self, step: int) -> float:
        record = self.coordinator.entries[step][1]
        held = {part.peer: load_held(self.folder / part.peer, step) for part in record.contributions}
        average = load_average(self.folder / record.contributions[0].peer, step)
        assert average is not None
        return error_rms(record, held, average)


@asynccontextmanager
async def running(folder: Path, contributors: Literal["all", "fast"], staleness: Literal[0, 1]) -> AsyncIterator[Rig]:
    """Run a relay and three trainers. The coordinator always believes that the third trainer's links are slow."""
    recipe = CausalLM(
        model=Model(context=257),
        target_batch=12,
        micro_batch=1,
        minimum_trainers=3,
        snapshot_every=1000,
        staleness=staleness,
        contributors=contributors,
        codecs="plan",
    )
    coordinator = Coordinator(recipe, ELEMENTS)
    control = await coordinator.listen("127.0.0.1")
    for peer in (*TRAINERS, RELAY):
        for way in WAYS:
            bps = 0.1 * MBIT if peer == SLOW else 1000 * MBIT
            coordinator.state.links.capacities[peer, way] = Capacity(bps, is_floor=False, measured_at=0)
    access = OwnAccess(folder / "relay", RELAY, Role.RELAY, control)
    relay = Relay(access.home, access, host="127.0.0.1", port=0, advertise="")
    tasks = [asyncio.create_task(relay.run())]
    for peer in TRAINERS:
        own = OwnAccess(folder / peer, peer, Role.TRAINER, control)
        tasks.append(asyncio.create_task(train(own, Pace(0.01), None, 0)))
    try:
        yield Rig(coordinator, folder)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await coordinator.close()
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended


async def applied(coordinator: Coordinator, step: int) -> None:
    while any(member.step <= step for member in coordinator.state.trainers()):  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0.02)


async def test_who_sits_out_has_the_averages_and_is_in_the_next_update(tmp_path: Path) -> None:
    async with running(tmp_path, "fast", 0) as rig, asyncio.timeout(PATIENCE_S):
        coordinator = rig.coordinator
        await coordinator.reach(2)
        await applied(coordinator, 1)
        assert coordinator.steps[0].left_out == {SLOW}
        assert coordinator.steps[0].asked == coordinator.steps[0].codecs.keys() == {*TRAINERS[:2]}
        assert coordinator.steps[1].asked == {*TRAINERS}, "never twice running"
        records = [record for _, record in coordinator.entries[:2]]
        assert all(record.is_whole for record in records)
        assert [len(record.contributions) for record in records] == [2, 3]
        assert SLOW in coordinator.steps[0].held_at, "it took the averages as they came"
        assert 0 < rig.error(0) < 0.3
        assert 0 < rig.error(1) < 0.3


async def test_trainers_compute_on_and_all_they_hold_is_averaged(tmp_path: Path) -> None:
    async with running(tmp_path, "all", 1) as rig, asyncio.timeout(PATIENCE_S):
        await rig.coordinator.reach(3)
        await applied(rig.coordinator, 2)
        records = [record for _, record in rig.coordinator.entries[1:3]]
        assert all(len(record.contributions) == 3 and not record.exact for record in records)
        assert all(0 < rig.error(step) < 0.3 for step in (0, 1, 2))
        assert rig.coordinator.state.void_rounds == 0


def accumulation(folder: Path, late_s: float) -> Watched:
    model = NoModel(folder, ELEMENTS)
    gradients: Any = Noise(model, CausalLM(model=Model(context=257)), np.ones(ELEMENTS, np.float32), Pace(0.0))
    found = Watched(gradients, grid_of(ELEMENTS), asyncio.Lock())
    found.folder, found.model, found.late_s = folder, model, late_s
    return found


async def test_a_further_unit_of_a_step_is_late_and_holds_up_no_update(tmp_path: Path) -> None:
    found = accumulation(tmp_path, late_s=1e9)
    unit = Unit(epoch=0, shard=0, start=0, stop=4)
    asked = list[bool]()

    def until_the_cut(_: int) -> bool:
        asked.append(found.busy.locked())
        return len(asked) < 3

    async with asyncio.timeout(PATIENCE_S):
        assert isinstance(await found.compute(e.Compute(1, (unit,)), lambda _: True), e.Computed)
        assert await found.compute(e.Compute(2, (unit,)), until_the_cut) is None
        assert asked[:3] == [False] * 3, "nothing is computed, so an update may be made"
        found.model.step += 1
        assert isinstance(await found.compute(e.Compute(3, (unit,)), lambda _: True), e.Computed), (
            "the first of its step"
        )
        found.late_s = 0.0
        assert isinstance(await found.compute(e.Compute(4, (unit,)), lambda _: True), e.Computed)
    found.close()


def test_a_digest_names_the_averages_of_all_updates(tmp_path: Path) -> None:
    digests = []
    for steps in ((1, 2), (2,), (2,)):
        model = NoModel(tmp_path, ELEMENTS)
        for step in steps:
            model.apply(commit(step).record, "", np.zeros(ELEMENTS, np.float32))
        digests.append(model.digest())
    assert digests[1] == digests[2] != digests[0]
    model.begin()
    assert model.digest() == NoModel(tmp_path, ELEMENTS).digest() != digests[2]


def test_the_first_steps_leave_time_to_measure_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, unit, slept_s = NoModel(tmp_path, ELEMENTS), Unit(epoch=0, shard=0, start=0, stop=2), list[float]()
    monkeypatch.setattr("tests.benchmarks.agents.trainer.time.sleep", slept_s.append)
    noise = Noise(model, CausalLM(model=Model(context=257)), np.ones(ELEMENTS, np.float32), Pace(1.0, early_s=5.0))
    for model.step in range(EARLY_STEPS + 1):
        noise.compute(unit)
    assert slept_s == [12.0] * EARLY_STEPS + [2.0]

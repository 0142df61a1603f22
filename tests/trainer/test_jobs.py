"""Updates are fetched beside other jobs and made in their order, unless they are not wanted any more."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from peer_agent.machine.home import Home
from peer_agent.machine.limits import Limits
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import Snapshot
from peer_agent.protocol.trainer import events as e
from peer_agent.trainer.collaboration import Collaboration
from peer_agent.trainer.jobs import Jobs
from peer_agent.training.loop import Trainer
from tests.agent.scripted_site import greeting
from tests.protocol.trainer.stage import commit


@pytest.mark.parametrize("is_open", [True, False])
async def test_the_data_of_the_next_units_are_fetched_while_it_computes(is_open: bool) -> None:
    """And the next batch is made, but not where its shard is still to come: no other unit is to wait for that."""
    asked: list[int] = []
    started: list[Any] = []
    core = SimpleNamespace(queue=deque([Unit(0, 5, 0, 4), Unit(0, 9, 0, 4)]), coming=(9, 7), in_one_pass=1)
    jobs = Jobs(cast("Any", SimpleNamespace(core=core, start=started.append)))
    jobs.shards = cast("Any", SimpleNamespace(prefetch=asked.extend, is_open=lambda shard: is_open and shard == 5))
    trainer = SimpleNamespace(coming=(Unit(0, 1, 0, 4),))
    jobs.accumulation = cast("Any", SimpleNamespace(trainer=trainer))
    await jobs.compute(e.Compute(1, (Unit(0, 3, 0, 4),)))
    assert asked == [3, 5, 9, 9, 7]
    assert trainer.coming == ((core.queue[0],) if is_open else ())
    core.in_one_pass = 2
    await jobs.compute(e.Compute(1, (Unit(0, 3, 0, 4),)))
    assert trainer.coming == (), "of the two that come next, one is still to be fetched"
    jobs.shards = cast("Any", SimpleNamespace(prefetch=asked.extend, is_open=lambda _: is_open))
    await jobs.compute(e.Compute(1, (Unit(0, 3, 0, 4),)))
    assert trainer.coming == (tuple(core.queue) if is_open else ())
    core.queue.clear()
    await jobs.compute(e.Compute(2, (Unit(0, 5, 0, 4),)))
    assert trainer.coming == ()
    for part in started:
        part.close()


async def test_the_replica_is_not_held_while_data_are_waited_for() -> None:
    """An update waits for the unit in hand; a unit that waits for the Hub would keep the machine out of all rounds."""
    told, computed = list[Any](), list[e.Compute]()
    is_there, core = asyncio.Event(), SimpleNamespace(in_hand=SimpleNamespace(job=1))

    async def compute(action: e.Compute, is_wanted: Callable[[int], bool]) -> str:
        assert is_wanted(1)
        computed.append(action)
        return "result"

    async def ready(shards: list[int], is_wanted: Callable[[], bool]) -> bool:
        assert shards == [3, 3]
        await is_there.wait()
        return is_wanted()

    jobs = Jobs(cast("Any", SimpleNamespace(core=core, handle=told.append)))
    jobs.follower = cast("Any", object())
    jobs.accumulation = cast("Any", SimpleNamespace(compute=compute, trainer=SimpleNamespace(compiled=None)))
    jobs.shards = cast("Any", SimpleNamespace(ready=ready))
    action = e.Compute(1, (Unit(0, 3, 0, 4), Unit(0, 3, 4, 8)))
    waiting = asyncio.create_task(jobs._compute(action))
    await asyncio.sleep(0.05)
    assert not computed
    is_there.set()
    await waiting
    assert (computed, told) == ([action], ["result"])
    core.in_hand = None  # left, as where a round begins
    await jobs._compute(action)
    assert len(computed) == 1


async def test_as_many_data_are_kept_as_the_volunteer_says(tmp_path: Path) -> None:
    limits = Limits(threads=1, disk_gb=7)
    agent = SimpleNamespace(
        home=Home(tmp_path), access=None, owner=SimpleNamespace(limits=limits), links=None, publisher=None, view=None
    )
    jobs = Jobs(cast("Any", agent))
    snapshot = Snapshot(index=0, step=0, digest="", state_digest="", file="ab" * 32, size=1)
    _, accumulation = await jobs.become_replica(greeting(snapshot))
    accumulation.close()
    assert jobs.shards is not None
    assert jobs.shards.disk_bytes == 7 * 10**9


@pytest.mark.parametrize("is_own", [True, False])
async def test_layers_are_compiled_where_the_volunteer_says_so_and_the_agents_own_loop_computes(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would catch it in another loop that there is no compiler; that gets one unit after another, too."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "as it was before")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setattr(Trainer, "most_units", 7)
    said: list[str] = []
    agent = SimpleNamespace(
        home=Home(tmp_path),
        access=None,
        owner=SimpleNamespace(limits=Limits(threads=1, compiles=True)),
        links=None,
        publisher=None,
        view=SimpleNamespace(say=said.append),
    )
    jobs = Jobs(cast("Any", agent))
    jobs.collaboration = None if is_own else Collaboration()
    snapshot = Snapshot(index=0, step=0, digest="", state_digest="", file="ab" * 32, size=1)
    _, accumulation = await jobs.become_replica(greeting(snapshot))
    accumulation.close()
    assert (accumulation.trainer.compiled is not None) == is_own
    assert accumulation.device_batch.most == (7 if is_own else 1)
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == (str(tmp_path / "cache" / "compiled") if is_own else None)
    for error in ("", "no compiler", "no compiler"):
        if accumulation.trainer.compiled is not None:
            accumulation.trainer.compiled.error = error
        jobs._tell_of_compiling(accumulation.trainer.compiled)
    assert said == (["Layers cannot be compiled here; training without: no compiler"] if is_own else [])


@pytest.mark.parametrize(("wanted", "told"), [(7, [e.Applied(7, "5" * 16)]), (8, [])])
async def test_an_update_of_a_state_that_was_left_meanwhile_is_not_made(wanted: int, told: list[e.Event]) -> None:
    """A snapshot was loaded after its averages were asked for: they do not follow that."""
    heard: list[e.Event] = []
    agent: Any = SimpleNamespace(core=SimpleNamespace(job=wanted), handle=heard.append)
    jobs = Jobs(agent)

    async def apply(*_: object) -> str:
        return "5" * 16

    jobs.follower, jobs.accumulation = SimpleNamespace(apply=apply), SimpleNamespace()  # type: ignore[assignment]
    await jobs.apply(e.Apply(7, commit(1), patient=False), np.zeros(4, np.float32))
    assert heard == told

"""What the preflight found reaches whoever computes: samples at a time, and whether layers are computed again."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from peer_agent.machine.home import Home
from peer_agent.machine.limits import Limits
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.trainer import joining
from peer_agent.trainer.jobs import Jobs
from peer_agent.training.replica import Replica
from tests.training.commits import RUN, small_recipe


async def test_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_trainer = AsyncMock()
    monkeypatch.setattr(joining, "compare_versions", AsyncMock())
    monkeypatch.setattr(joining, "access_for", AsyncMock())
    monkeypatch.setattr(
        joining, "run_preflight", AsyncMock(return_value=Preflight(device="CPU", at_once=2, recomputes=True))
    )
    monkeypatch.setattr(joining, "_loaded_trainer", lambda: run_trainer)
    request: Any = SimpleNamespace(home=Home(tmp_path))
    view: Any = SimpleNamespace(preflight=lambda _: None, say=lambda _: None, tell=None)
    nobody: Any = None
    await joining.join_run("http://site/runs/a", nobody, Limits(1), request, view=view)
    assert run_trainer.await_args is not None
    assert run_trainer.await_args.args[1].limits == Limits(1, at_once=2, recomputes=True)


@pytest.mark.parametrize("recomputes", [False, True])
async def test_of_the_trainer(tmp_path: Path, *, recomputes: bool) -> None:
    recipe = small_recipe()
    limits = Limits(1, at_once=2, recomputes=recomputes)
    owner = SimpleNamespace(limits=limits)
    agent: Any = SimpleNamespace(home=Home(tmp_path), access=None, links=None, publisher=None, owner=owner, view=None)
    elements = (await asyncio.to_thread(Replica, recipe)).layout.elements
    greeting: Any = SimpleNamespace(recipe=encode_recipe(recipe), elements=elements, shards=(), run=RUN)
    _, accumulation = await Jobs(agent).become_replica(greeting)
    assert (accumulation.trainer.at_once, accumulation.trainer.recomputes) == (2, recomputes)
    accumulation.close()

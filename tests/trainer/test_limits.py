"""The preflight check's results reach the trainer: how many samples at a time, and whether to recompute layers."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from peer_agent.machine.home import Home
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.machine.limits import Limits
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.site.enrolment import Enrolment
from peer_agent.site.machine_control import MachineControl
from peer_agent.trainer import joining
from peer_agent.trainer.collaboration import Collaboration
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
    monkeypatch.setattr(joining, "run_trainer", run_trainer)
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


SITE = "https://train.example.org"


class Told:
    """A view that records faults and the start of work."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.begun = 0

    def tell(self, event: str, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def preflight(self, preflight: Preflight) -> None:
        pass

    def fault(self, fault: Fault) -> None:
        self.faults.append(fault.code)

    def begin(self) -> None:
        self.begun += 1


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the runs in which the machine worked, each with its token. The run `full` does not accept this kind of
    machine.
    """
    worked: list[tuple[str, str]] = []

    async def access_for(home: Home, url: str, enrolment: Enrolment) -> Any:
        if "full" in url:
            raise Problem.of("E306")
        assert url == f"{SITE}/runs/{enrolment.run}/"
        return SimpleNamespace(slug=enrolment.run, site=SimpleNamespace(url=SITE), token=enrolment.token, home=home)

    async def run_preflight(*_: Any, **__: Any) -> Preflight:
        return Preflight(device="CPU", at_once=2, memory_bytes=10**9)

    async def nothing(*_: Any) -> None:
        """Do nothing, as if the site offered the same agent version."""

    async def run_trainer(access: Any, owner: MachineControl, *_: Any, **__: Any) -> None:
        worked.append((access.slug, access.token))
        assert (owner.limits.at_once, owner.needed_bytes) == (2, 10**9)
        owner.move_to = WAY[len(worked) - 1]
        if access.slug == "taken-back" and len(worked) == 1:
            raise Problem.of("E128")

    monkeypatch.setattr(joining, "access_for", access_for)
    monkeypatch.setattr(joining, "run_preflight", run_preflight)
    monkeypatch.setattr(joining, "compare_versions", nothing)
    monkeypatch.setattr(joining, "run_trainer", run_trainer)
    return worked


WAY = ["second", "full", ""]


async def test_from_run_to_run(runs: list[tuple[str, str]], tmp_path: Path) -> None:
    """A one-time token is used for the first run only."""
    view: Any = Told()
    enrolment = Enrolment(show=lambda _: None, say=lambda _: None, run="first", token="mh_once")
    await joining.join_run(f"{SITE}/runs/first/", enrolment, Limits(1), LeaveRequest(Home(tmp_path)), view=view)
    assert runs == [("first", "mh_once"), ("second", ""), ("second", "")]
    assert view.faults == ["E306"]
    assert view.begun == 2


async def test_a_run_that_was_restarted_is_joined_again(
    runs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its new recipe is checked anew. A training loop of one's own is for the old recipe, so it ends."""
    monkeypatch.setattr("tests.trainer.test_limits.WAY", ["", ""])
    view: Any = Told()
    enrolment = Enrolment(show=lambda _: None, say=lambda _: None, run="taken-back", token="mh_once")
    request, own = LeaveRequest(Home(tmp_path)), Collaboration()
    await joining.join_run(f"{SITE}/runs/taken-back/", enrolment, Limits(1), request, view=view)
    assert (runs, view.faults) == ([("taken-back", "mh_once"), ("taken-back", "")], ["E128"])
    runs.clear()
    with pytest.raises(Problem, match="E128"):
        await joining.join_run(f"{SITE}/runs/taken-back/", enrolment, Limits(1), request, view=view, collaboration=own)


async def test_whoever_has_asked_to_leave_goes_nowhere(runs: list[tuple[str, str]], tmp_path: Path) -> None:
    request = LeaveRequest(Home(tmp_path))
    request.is_asked = True
    enrolment = Enrolment(show=lambda _: None, say=lambda _: None, run="first")
    await joining.join_run(f"{SITE}/runs/first/", enrolment, Limits(1), request, view=Told())  # type: ignore[arg-type]
    assert [slug for slug, _ in runs] == ["first"]

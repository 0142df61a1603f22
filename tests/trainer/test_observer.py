"""The problems that an observer finds in a real agent. A problem is shown for as long as it lasts."""

import asyncio
import errno
import io
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer_agent.display.lines import View
from peer_agent.machine import hardware
from peer_agent.machine.home import Home
from peer_agent.machine.limits import Limits
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.trainer import events as e
from peer_agent.site.machine_control import MachineControl
from peer_agent.trainer import observer
from peer_agent.trainer.agent import Agent
from peer_agent.trainer.observer import Observer, doing
from tests.agent.scripted_site import OTHER_RELAY, PATIENCE_S, RELAY, TRAINER, OwnAccess, relaying, site

LATE_S = 1e6  # every lasting problem is shown by then
REFUSED = Fault.of("E104", url="wss://a/", reason="refused")


class Scene:
    def __init__(self, folder: Path, control: str = "") -> None:
        self.view = View(io.StringIO())
        self.view.clock = lambda: self.now
        self.now = 0.0
        home = Home(folder)
        owner = MachineControl(home, Limits(threads=1))
        self.agent = Agent(home, OwnAccess(folder, TRAINER, Role.TRAINER, control), owner, self.view)
        self.observer = Observer(self.agent)

    def wrong(self) -> list[str]:
        self.observer.look_for_troubles()
        self.now += LATE_S
        self.observer.look_for_troubles()
        return [trouble.code for trouble in self.view.now.troubles]


def test_the_last_events_are_among_the_figures(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for words in ("one", "two", "three", "four"):
        scene.view.say(words)
    scene.observer.look()
    assert [line.partition("  ")[2] for line in scene.view.now.events] == ["two", "three", "four"]


def test_a_site_that_is_not_reached(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.wrong() == []
    scene.agent.away = REFUSED
    assert scene.wrong() == ["E134"]
    assert "wss://a/ cannot be reached (refused)" in scene.view.now.troubles[0].text
    assert doing(scene.agent) == "away"
    scene.agent.away = Fault.of("E110", url="wss://a/", reason="HTTP 502")
    assert scene.wrong() == ["E134"], "it is being restarted"
    scene.agent.away = Fault.of("E374")
    assert scene.wrong() == ["E374"], "it answers, and says what is wrong"
    scene.agent.away = None
    assert scene.wrong() == []
    assert doing(scene.agent) == "joining"


@pytest.mark.parametrize(("offset_s", "codes"), [(0.0, []), (59.0, []), (-61.0, ["E139"]), (200.0, ["E139"])])
def test_a_clock_that_is_off(tmp_path: Path, offset_s: float, codes: list[str]) -> None:
    scene = Scene(tmp_path)
    control: Any = SimpleNamespace(offset_s=offset_s)
    scene.agent.control = control
    assert scene.wrong() == codes
    control.offset_s = 0.0
    assert scene.wrong() == []


def test_a_clock_that_is_off_too_far_to_connect_again(tmp_path: Path) -> None:
    """Once the next link is refused, the clock warning from the last link (E139) is redundant."""
    scene = Scene(tmp_path)
    control: Any = SimpleNamespace(offset_s=200.0)
    scene.agent.control = control
    assert scene.wrong() == ["E139"]
    scene.agent.control, scene.agent.away = None, Fault.of("E204", minutes=9)
    assert scene.wrong() == ["E204"]


async def reached(agent: Agent, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(agent.links.reached) != count:  # noqa: ASYNC110 (a socket of another task)
            await asyncio.sleep(0.01)


async def test_relays_that_are_not_reached(tmp_path: Path) -> None:
    gone = m.Listener(OTHER_RELAY, "ws://127.0.0.1:9/")
    async with site() as script:
        scene = Scene(tmp_path / "agent", script.url)
        await scene.agent.access.renew()
        async with relaying(script, tmp_path / "relay", RELAY) as relay:
            there = m.Listener(RELAY, relay.url)
            scene.agent.links.follow((there, gone))
            await reached(scene.agent, 1)
            assert scene.wrong() == ["E136"]
            assert "ws://127.0.0.1:9/" in scene.view.now.troubles[0].text
            assert relay.url not in scene.view.now.troubles[0].text
            scene.agent.away = REFUSED
            assert scene.wrong() == ["E134"], "E136 is of the same network"
            scene.agent.away = None
            scene.agent.links.follow((there,))
            assert scene.wrong() == []
        await reached(scene.agent, 0)
        scene.agent.links.follow((there, gone))
        assert scene.wrong() == ["E135"]
        scene.agent._carry(e.Began(Fault.of("E114", step=3)))
        assert scene.wrong() == ["E135"], "bytes that lie on them are out of reach, too"
        scene.agent.away = REFUSED
        assert scene.wrong() == ["E134"], "one network, one trouble"
        await scene.agent.links.close()


async def test_a_disk_that_cannot_be_asked_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, asked = Scene(tmp_path), asyncio.Event()
    loop = asyncio.get_running_loop()

    def fail(_: Path) -> None:
        loop.call_soon_threadsafe(asked.set)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(observer, "DISK_S", 0.0)
    monkeypatch.setattr(shutil, "disk_usage", fail)
    watching = asyncio.create_task(scene.observer._watch_disk())
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            await asked.wait()
            asked.clear()
    watching.cancel()


async def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path)
    monkeypatch.setattr(hardware, "LEAST_DISK", 10**18)
    looking = asyncio.create_task(scene.observer._watch_disk())
    async with asyncio.timeout(PATIENCE_S):
        while not scene.view.now.troubles:  # noqa: ASYNC110 (the disk is looked at in a thread)
            await asyncio.sleep(0.01)
    looking.cancel()
    assert scene.wrong() == ["E121"]
    monkeypatch.setattr(hardware, "LEAST_DISK", 0)
    looking = asyncio.create_task(scene.observer._watch_disk())
    async with asyncio.timeout(PATIENCE_S):
        while scene.view.now.troubles:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    looking.cancel()


async def test_how_the_run_learns_is_asked_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's text is untrusted. It may be missing, and it must not move the terminal's cursor."""
    scene = Scene(tmp_path)
    answers: list[Any] = [
        {"heldout": {"loss": 4.29, "step": 1000}, "warning": "The model is \x1b[2Joverfitting."},
        {"heldout": {"loss": "much"}},
        {"heldout": None, "warning": "x" * 100_000},
        {"slug": "a-run"},
    ]
    told: list[tuple[float | None, str]] = []

    async def get_json(url: str, **_: Any) -> Any:
        told.append((scene.view.now.heldout_loss, scene.view.now.warning))
        if not answers:
            raise asyncio.CancelledError
        assert url.endswith(f"/api/v1/runs/{scene.agent.access.slug}")
        return answers.pop(0)

    monkeypatch.setattr(observer, "get_json", get_json)
    monkeypatch.setattr(observer, "LEARNING_S", 0.0)
    with pytest.raises(asyncio.CancelledError):
        await scene.observer._ask_how_it_learns()
    assert [loss for loss, _ in told] == [None, 4.29, 4.29, 4.29, None]
    assert "\x1b" not in told[1][1]
    assert told[1][1].endswith("overfitting.")
    assert told[2] == told[3] == told[1], "what is not understood changes nothing"
    assert told[4] == (None, "")

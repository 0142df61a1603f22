"""Leaving: gracefully on the first request and at once on the second, by a key, a signal or another command."""

import asyncio
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from peer_agent.machine import leave_request as leaving
from peer_agent.machine.home import Home
from peer_agent.machine.leave_request import LeaveRequest, request_leave
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.trainer import speaking
from peer_agent.trainer import agent as agent_module
from tests.agent.scripted_site import PATIENCE_S
from tests.averaging.rounds import RUN
from tests.trainer.test_agent import Stage, stage

RUNNING = m.State(run=RUN, state="running", reason="")


def test_the_first_wish_is_gentle_and_the_second_is_not(tmp_path: Path) -> None:
    leave_request, heard = LeaveRequest(Home(tmp_path)), list[str]()
    leave_request.gently = lambda: heard.append("gently")
    leave_request.ask(lambda: heard.append("at once"))
    leave_request.ask(lambda: heard.append("at once"))
    assert heard == ["gently", "at once"]


@pytest.mark.parametrize("is_urgent", [True, False])
def test_leave_is_immediate_when_nothing_began_or_it_is_urgent(tmp_path: Path, is_urgent: bool) -> None:
    leave_request, heard = LeaveRequest(Home(tmp_path)), list[str]()
    leave_request.gently = (lambda: heard.append("gently")) if is_urgent else None
    leave_request.ask(lambda: heard.append("at once"), now=is_urgent)
    assert heard == ["at once"]


@pytest.mark.parametrize(("now", "words"), [(False, "gently"), (True, "at once")])
async def test_another_command_asks_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool, words: str
) -> None:
    monkeypatch.setattr(leaving, "WATCH_S", 0.01)
    home, heard, left = Home(tmp_path), list[str](), asyncio.Event()
    home.write("leave", b"now")
    leave_request = LeaveRequest(home)

    def hear(word: str) -> None:
        heard.append(word)
        left.set()

    leave_request.gently = partial(hear, "gently")
    with home.locked():
        watching = asyncio.create_task(leave_request.watch(partial(hear, "at once")))
        while leave_request.path.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        asking = asyncio.create_task(asyncio.to_thread(request_leave, home, now=now, patience_s=PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            await left.wait()
    assert await asking == os.getpid()
    watching.cancel()
    assert heard == [words]
    assert not leave_request.path.exists()


def test_nobody_to_ask_and_one_that_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(Problem, match="E116"):
        request_leave(home, now=False, patience_s=1)
    with home.locked(), pytest.raises(Problem, match=f"E117: The agent .process {os.getpid()}."):
        request_leave(home, now=False, patience_s=0)


def test_lock_works_while_a_thread_keeps_asking_for_its_holder(tmp_path: Path) -> None:
    home, stop = Home(tmp_path), threading.Event()

    def ask() -> None:
        while not stop.is_set():
            home.holder()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(50):
            with home.locked():
                assert home.holder() == os.getpid()
    finally:
        stop.set()
        asking.join()
    assert home.holder() is None


# --- an agent ----------------------------------------------------------------------------------------------------


async def says_goodbye(scene: Stage) -> None:
    await scene.site.hears(m.Leave)
    async with asyncio.timeout(PATIENCE_S):
        await scene.running


async def test_an_agent_that_has_nothing_in_hand_leaves_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        await scene.site.says(RUNNING)
        scene.agent.finish()
        await says_goodbye(scene)
        assert "Finishing" not in scene.words.getvalue()


async def test_an_agent_finishes_the_round_it_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "HEARTBEAT_S", 10 * agent_module.LOOK_S)
    async with stage(tmp_path) as scene:
        await scene.join()
        await open_round(scene)
        scene.agent.finish()
        core = scene.agent.core
        async with asyncio.timeout(PATIENCE_S):
            while "Finishing step 1, then leaving." not in scene.words.getvalue():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            reported_at = core.reported_at
            while core.reported_at == reported_at and not scene.running.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not scene.running.done()
        await scene.site.says(m.Void(run=RUN, step=0, fence=1, attempt=1, round=1, reason="a test"))
        await says_goodbye(scene)


async def test_an_agent_whose_run_stands_still_does_not_wait_for_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        await open_round(scene)
        scene.agent.finish()
        await scene.site.says(m.State(run=RUN, state="paused", reason=""))
        await says_goodbye(scene)


async def test_an_agent_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "FINISH_S", 0.2)
    async with stage(tmp_path) as scene:
        await scene.join()
        await open_round(scene)
        scene.agent.finish()
        await says_goodbye(scene)


async def open_round(scene: Stage) -> None:
    """Start a round that stays open: send a lease that this agent cannot compute, then a cut."""
    cut = m.Cut(run=RUN, step=0, fence=1, attempt=1, round=1, codec="fp32", chunk_elements=1024)
    await scene.site.says(RUNNING, m.Lease(run=RUN, fence=1, units=(Unit(0, 0, 0, 4),), quota=0), cut)
    async with asyncio.timeout(PATIENCE_S):
        while scene.agent.round is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


PROGRAM = """
import threading
from peer_agent.machine.leave_request import on_end_of_input
ended = threading.Event()
on_end_of_input(ended.set)
print("ready", flush=True)
print(ended.wait(60), flush=True)
"""


def test_it_leaves_where_there_is_nothing_to_read() -> None:
    """Windows reports a broken pipe as an error instead of an end of file."""
    command = [sys.executable, "-c", f"import os; os.close(0)\n{PROGRAM}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "ready\nTrue\n"


def test_it_leaves_when_the_pipe_ends_and_not_before() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        # more than a pipe's buffer holds, so that an early end would be noticed
        program.stdin.write("words are passed over\n" * 50_000)
        program.stdin.close()
        assert program.stdout.readline() == "True\n"

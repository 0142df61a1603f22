"""The averaging benchmark stops waiting for rounds when a process ends."""

import asyncio
import subprocess
import sys
from typing import NoReturn

import pytest

from peer_agent.protocol.bandwidth.flows import Capacity, Direction
from peer_agent.protocol.identifiers import PeerId
from tests.benchmarks.averaging import link_errors
from tests.benchmarks.rig.swarm import end_of_any, unless
from tests.benchmarks.rivals.environment import Unavailable
from tests.emulation.namespaces import on_loopback
from tests.emulation.setups import Rates, Setup, peers

TWO = Setup("two", peers("trainer", (2, 50, 50)), 1000, "trainer-1", 1.0)


async def nobody_ends() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


async def test_work_that_is_done_is_not_held_up_by_who_watches() -> None:
    watching = asyncio.create_task(nobody_ends())
    await unless(watching, asyncio.sleep(0))
    assert not watching.done()
    watching.cancel()


async def test_who_has_ended_ends_the_wait_and_is_named() -> None:
    with on_loopback(TWO) as network:
        lasting = network["trainer-1"].start(sys.executable, "-S", "-c", "input()", stdin=subprocess.PIPE)
        network["trainer-2"].start(sys.executable, "-S", "-c", "").wait()
        watching = asyncio.create_task(end_of_any(network, TWO))
        with pytest.raises(Unavailable, match=r"early: trainer-2$"):
            await unless(watching, asyncio.sleep(30))
        assert lasting.poll() is None


def test_errors_cover_members_tested_by_an_equally_fast_peer() -> None:
    ann, bob, cat = PeerId("a"), PeerId("b"), PeerId("c")
    true = {"ann": 100.0, "bob": 50.0, "cat": 20.0, "gone": 10.0}
    known: dict[Direction, Capacity] = {
        (ann, "up"): Capacity(90.0, is_floor=False, measured_at=0),
        (ann, "down"): Capacity(50.0, is_floor=True, measured_at=0),
        (bob, "down"): Capacity(55.0, is_floor=True, measured_at=0),
    }
    seen_with: dict[Direction, set[PeerId]] = {(ann, "down"): {bob, cat}, (bob, "down"): {ann, cat}}
    found = link_errors(known, seen_with, {"ann": ann, "bob": bob, "cat": cat}, Rates(true, true))
    assert found == pytest.approx({"ann up": -0.1, "bob down": 0.1})

"""What an owner wants reaches the socket of the machine, and of no other, while it is there."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from accounts import machine_control, services
from accounts.models import MachineControl
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.messages.machine import Why
from tests.coordination.engines import fresh_database
from tests.coordination.example_run import Example, example_run
from tests.coordination.peer_link import PeerLink, credential_of, identity_of, linked

SOON_S = 1.0  # in which a machine is to answer


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


def link_of(example: Example, role: Role = Role.TRAINER) -> Any:
    return linked(identity_of(credential_of(example.teo, example.run, role), example.teo.key))


async def instructions(link: PeerLink) -> m.Instructions:
    async with asyncio.timeout(10):
        while not isinstance(body := await link.hear(), m.Instructions):
            pass
        return body


async def says(link: PeerLink, example: Example, revision: int, why: Why = Why.WORKS) -> None:
    await link.say(m.MachineReport(run=example.run.run_id, revision=revision, why=why))


async def pause(example: Example) -> None:
    await in_thread(machine_control.change)(machine=example.teo.machine, to=lambda wanted: replace(wanted, pause=True))


async def shown(example: Example) -> machine_control.Control:
    return await in_thread(machine_control.control_of)(example.teo.machine)


@pytest.mark.parametrize("role", [Role.TRAINER, Role.AUXILIARY])
async def test_it_is_told_what_is_wanted_once_it_has_spoken_and_then_at_once(
    example: Example, layer: Any, role: Role
) -> None:
    async with link_of(example, role) as link:
        await says(link, example, -1)
        assert await instructions(link) == m.Instructions(revision=0)
        began = time.monotonic()
        await pause(example)
        assert await instructions(link) == m.Instructions(revision=1, pause=True)
        await says(link, example, 1, Why.PAUSED)
        while not (await shown(example)).is_heard:  # noqa: ASYNC110 (another task writes a row)
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < SOON_S + 1, "a second, and some for a busy machine"
        assert (await shown(example)).rest.why is Why.PAUSED
    while (await shown(example)).report is not None:  # noqa: ASYNC110 (the same)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("why", [Why.PAUSED, Why.WORKS])
async def test_who_rests_finds_out_that_it_is_wanted_no_more(example: Example, layer: Any, why: Why) -> None:
    """It is in no host's state, which cuts off who works."""
    async with link_of(example) as link:
        await says(link, example, -1, why)
        await instructions(link)
        await in_thread(services.revoke_machine)(machine=example.teo.machine)
        await says(link, example, 0, why)
        if why is Why.PAUSED:
            assert (await link.how_it_ends())[0] == "E214"
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await link.hear()


async def test_an_agent_of_before_is_told_nothing(example: Example, layer: Any) -> None:
    await pause(example)
    async with link_of(example) as link:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await instructions(link)


async def test_nobody_speaks_for_a_machine_in_another_run(example: Example, layer: Any) -> None:
    async with link_of(example) as link:
        await link.say(m.MachineReport(run="0b" * 16))  # type: ignore[arg-type]
        assert (await link.how_it_ends())[0] == "E213"
    assert not await in_thread(MachineControl.objects.exists)()


async def test_another_machine_hears_nothing(example: Example, layer: Any) -> None:
    noor = identity_of(credential_of(example.noor, example.run), example.noor.key)
    async with link_of(example) as link, linked(noor) as other:
        for one in (link, other):
            await says(one, example, -1)
            await instructions(one)
        await pause(example)
        assert (await instructions(link)).pause
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await instructions(other)


async def test_what_was_said_is_not_said_twice(example: Example, layer: Any) -> None:
    """Looks overlap, so each finds the same change again."""
    async with link_of(example) as link:
        await says(link, example, -1)
        await instructions(link)
        await pause(example)
        await instructions(link)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await instructions(link)


async def test_a_machine_that_says_more_than_it_may_writes_no_more_rows(example: Example, layer: Any) -> None:
    """Whatever it says beyond is passed over; its link stays."""
    async with link_of(example) as link:
        for number in range(200):
            await link.say(m.MachineReport(run=example.run.run_id, revision=-1, month_bytes=number))
        assert await instructions(link) == m.Instructions(revision=0)
        await asyncio.sleep(1.0)
        report = (await shown(example)).report
        assert report is not None
        assert report.month_bytes < 40


async def test_what_a_newer_link_said_outlives_the_older_one(example: Example, layer: Any) -> None:
    """The same words soon after one another: whoever goes on after a rest has a new link before the old one ends."""
    async with link_of(example) as older:
        await says(older, example, 0)
        while (await shown(example)).report is None:  # noqa: ASYNC110 (another task writes a row)
            await asyncio.sleep(0.01)
        async with link_of(example) as newer:
            await says(newer, example, 0)
            await asyncio.sleep(0.3)
            await older.leave()
            await asyncio.sleep(0.3)
            assert (await shown(example)).report is not None

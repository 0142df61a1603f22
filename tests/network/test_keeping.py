"""A link that is kept open: it reconnects after an interruption, backs off, and gives up when retrying cannot help."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.network import link as links
from peer_agent.network.link import PASSING, Connected, Connection, Waiting, heals, keep
from peer_agent.network.site import Answered
from peer_agent.protocol.errors import CATALOGUE, Fault, Problem
from peer_agent.protocol.errors.agent import AGENT
from peer_agent.protocol.errors.entry import Severity
from tests.network.loopback import (
    FETCH,
    NOTHING,
    PATIENCE_S,
    answer,
    dial_relay,
    listening,
    stay,
)


class Diary:
    """A record of the states that `keep` reports. Sleeps are counted but take no time."""

    def __init__(self) -> None:
        self.states: list[Connected | Waiting] = []
        self.slept: list[float] = []
        self.reached = asyncio.Event()  # set when connected, or after three waits

    def write(self, state: Connected | Waiting) -> None:
        self.states.append(state)
        if isinstance(state, Connected):
            self.reached.set()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 3:
            self.reached.set()
        await asyncio.sleep(0)

    async def keep(
        self,
        connect: Callable[[], Awaitable[Connection]],
        handle: Callable[[Connection], Awaitable[None]],
        **kwargs: Any,
    ) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await keep(connect, handle, on_state=self.write, random=Random(1), sleep=self.sleep, **kwargs)

    @property
    def faults(self) -> list[str]:
        return [state.fault.code if isinstance(state, Waiting) else "connected" for state in self.states]


async def fetch_once(link: Connection) -> None:
    await link.send(FETCH)
    assert await link.receive() == NOTHING


async def test_a_link_comes_back_after_the_server_was_started_again() -> None:
    diary = Diary()
    async with listening(stay) as first:
        port = first.port
        kept = asyncio.create_task(diary.keep(lambda: dial_relay(port), fetch_once))
        await diary.reached.wait()
        diary.reached.clear()
    await diary.reached.wait()
    async with listening(answer, port):
        await kept
    assert diary.faults[0] == diary.faults[-1] == "connected"
    assert set(diary.faults[1:-1]) == {"E104"}


async def test_a_refusal_that_cannot_heal_ends_it() -> None:
    diary = Diary()
    async with listening(admit=lambda _: Fault.of("E214")) as server:
        with pytest.raises(Problem, match="E214"):
            await diary.keep(lambda: dial_relay(server), stay)
    assert diary.states == []


async def test_a_refusal_with_a_hint_is_honoured() -> None:
    diary = Diary()
    calls = 0

    async def relay_side(link: Connection) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await link.close(Fault.of("E214"), retry_after_s=7.0)
        else:
            await answer(link)

    async with listening(relay_side) as server:
        await diary.keep(lambda: dial_relay(server), fetch_once)
    assert diary.faults == ["connected", "E214", "connected"]
    assert 7.0 <= diary.slept[0] <= 7.2


async def test_a_hint_beside_a_credential_is_honoured() -> None:
    """The site refuses a credential for a run in preparation, and says when to ask again."""
    diary, refusals = Diary(), [Answered(Fault.of("E308"), 20.0)]

    async def connect() -> Connection:
        if refusals:
            raise refusals.pop()
        return await dial_relay(server)

    async with listening(answer) as server:
        await diary.keep(connect, fetch_once)
    assert diary.faults == ["E308", "connected"]
    assert 20.0 <= diary.slept[0] <= 20.2


async def test_a_refusal_that_a_group_of_tasks_ran_into_is_understood() -> None:
    async def relay_side(link: Connection) -> None:
        await link.receive()
        await link.close(Fault.of("E213"))

    async def send_and_receive(link: Connection) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.send(FETCH))
            tasks.create_task(stay(link))

    async with listening(relay_side) as server:
        with pytest.raises(Problem, match="E213"):
            await Diary().keep(lambda: dial_relay(server), send_and_receive)


async def test_a_refusal_that_nobody_read_is_found() -> None:
    """The sender is first to notice the closed socket, while the reason is still unread."""

    async def relay_side(link: Connection) -> None:
        await link.close(Fault.of("E213"))

    async def only_send(link: Connection) -> None:
        while True:
            await link.send(FETCH)
            await asyncio.sleep(0)

    async with listening(relay_side) as server:
        with pytest.raises(Problem, match="E213"):
            await Diary().keep(lambda: dial_relay(server), only_send)


async def test_other_errors_go_through() -> None:
    async def stumble(_: Connection) -> None:
        raise KeyError("a bug")

    async with listening() as server:
        with pytest.raises(KeyError):
            await Diary().keep(lambda: dial_relay(server), stumble)


async def test_a_problem_of_this_machine_ends_it() -> None:
    async def connect() -> Connection:
        raise Problem.of("E105", url="ws://8.8.8.8/")

    with pytest.raises(Problem, match="E105"):
        await Diary().keep(connect, stay)


class Enough(Exception):
    """Raised to end the test."""


async def test_waits_grow_to_half_a_minute_and_reset_after_a_long_link() -> None:
    now, attempts = 0.0, 0
    ceilings: list[float] = []

    class Loudest(Random):
        def uniform(self, a: float, b: float) -> float:
            ceilings.append(b)
            return b

    async def connect() -> Connection:
        nonlocal now, attempts
        attempts += 1
        if attempts == 12:
            now += 31  # this link lasted 31 seconds
        if attempts == 14:
            raise Enough
        raise Problem.of("E104", url="", reason="")

    async def sleep(_: float) -> None:
        pass

    with pytest.raises(Enough):
        await keep(connect, stay, on_state=lambda _: None, random=Loudest(0), sleep=sleep, monotonic=lambda: now)
    assert ceilings[:9] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
    assert ceilings[10:] == [30.0, 0.2, 0.4]


@given(st.integers(0, 10**6), st.floats(-1e9, 1e9), st.integers(0, 2**32))
def test_every_wait_is_within_its_bounds(attempt: int, hint: float, seed: int) -> None:
    delay = links._delay_s(attempt, hint, Random(seed))
    least = min(max(hint, 0.0), links.LONGEST_HINT_S)
    assert least <= delay <= least + links.LONGEST_DELAY_S


@pytest.mark.parametrize("code", ["E131", "E227", "E228", "E229"])
def test_what_only_its_owner_can_mend_is_not_tried_again(code: str) -> None:
    assert not heals(Fault.of(code))


SAYS_THAT_IT_HEALS = re.compile(
    r"tried again|retries automatically|keeps trying|[Rr]eloading|waits for|(by itself|by themselves)(?!;)"
)


def test_own_errors_are_retried_if_the_catalogue_says_they_heal() -> None:
    said = {code for code, entry in AGENT.items() if SAYS_THAT_IT_HEALS.search(f"{entry.means} {entry.remedy}")}
    small = {code for code, entry in AGENT.items() if entry.severity is Severity.LOW}
    assert {code for code in AGENT if heals(Fault(code, "It is so."))} == PASSING | said | small
    assert {"E114", "E126", "E134", "E135", "E136"} <= said | small
    assert heals(Fault("E1999", "Something newer.")), "nothing is read out of its digits"


def test_no_error_that_heals_by_the_catalogue_ends_a_link() -> None:
    said = {code for code, entry in CATALOGUE.items() if SAYS_THAT_IT_HEALS.search(f"{entry.means} {entry.remedy}")}
    assert {code for code in said if not heals(Fault(code, "It is so."))} == set()

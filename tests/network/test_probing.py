"""Two machines measure the link between them. Each one sends, and each reports what arrived."""

import asyncio
import time
from collections.abc import Callable

import pytest

from peer_agent.network import probing
from peer_agent.network.link import Connection, LinkLost, own_link
from peer_agent.network.probing import Prober
from peer_agent.network.uplink import UPLINK
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import Frame
from tests.protocol.identities import RUN

ANN, BOB = PeerId("a" * 32), PeerId("b" * 32)
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit how many bytes a probe sends, because an in-process link has no bandwidth limit."""
    monkeypatch.setattr(probing, "MOST_BYTES", 8 * 1024 * 1024)
    monkeypatch.setattr(probing, "HEARD_S", 0.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


class Machine:
    def __init__(self, partner: PeerId, link: Connection, clock: Callable[[], float] | None = None) -> None:
        self.partner, self.link = partner, link
        self.said: list[m.Probed] = []
        self.came = 0
        self.prober = Prober(RUN, self.said.append, clock or Clock())  # type: ignore[arg-type]
        self.receiving = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        try:
            while True:
                body = await self.link.receive()
                if isinstance(body, Frame):
                    self.came += 1
                    self.prober.frame_came(self.partner, body)
                elif isinstance(body, m.Probing):
                    self.prober.begun(self.partner, body, self.link)
        except LinkLost:
            return

    def told(self, number: int, *, begins: bool) -> None:
        self.prober.hear(m.Probe(run=RUN, number=number, partner=self.partner, begins=begins), self.link)

    async def says(self) -> m.Probed:
        async with asyncio.timeout(PATIENCE_S):
            while not self.said:  # noqa: ASYNC110 - a list notifies no task
                await asyncio.sleep(0)
        return self.said[0]


async def test_both_ends_say_what_came_of_the_other() -> None:
    here, there = own_link()
    ann, bob = Machine(BOB, here), Machine(ANN, there)
    bob.told(3, begins=False)
    ann.told(3, begins=True)
    for machine in (ann, bob):
        probed = await machine.says()
        assert probed.number == 3
        assert probed.size > 0
        assert probed.seconds > 0
    here.abort()
    await asyncio.gather(ann.receiving, bob.receiving)


async def test_one_sends_after_the_other() -> None:
    """If both ends sent at once, acknowledgements on a slow link would wait behind its data."""
    here, there = own_link()
    ann, bob = Machine(BOB, here), Machine(ANN, there)
    bob.told(3, begins=False)
    ann.told(3, begins=True)
    await bob.says()
    assert ann.came == 0, "bob has all of ann's frames, and sent none before"
    await ann.says()
    assert ann.came > 1
    here.abort()
    await asyncio.gather(ann.receiving, bob.receiving)


async def test_a_link_that_takes_everything_at_once_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A regression: all the bytes arrived before the count began, so the measurement never ended."""
    monkeypatch.setattr(probing, "PROBE_S", 1.0)
    here, there = own_link()
    ann, bob = Machine(BOB, here, time.monotonic), Machine(ANN, there, time.monotonic)
    bob.told(3, begins=False)
    ann.told(3, begins=True)
    probed = await bob.says()
    assert probed.size / probed.seconds == pytest.approx(8 * 1024 * 1024, rel=0.3)
    for machine in (ann, bob):
        machine.prober.close()
    here.abort()
    await asyncio.gather(ann.receiving, bob.receiving)


async def test_a_measure_keeps_to_what_the_owner_allows_and_to_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe ignores the rate that the site sets, because its result may raise that rate."""
    monkeypatch.setattr(probing, "PROBE_S", 1.0)
    measured = []
    for limit in (2_000_000.0, 0.0):
        UPLINK.pace(100_000.0)
        UPLINK.limit(limit)
        here, there = own_link()
        ann, bob = Machine(BOB, here, time.monotonic), Machine(ANN, there, time.monotonic)
        try:
            bob.told(3, begins=False)
            ann.told(3, begins=True)
            probed = await bob.says()
            measured.append(probed.size / probed.seconds)
        finally:
            UPLINK.pace(0.0)
            UPLINK.limit(0.0)
            for machine in (ann, bob):
                machine.prober.close()
            here.abort()
            await asyncio.gather(ann.receiving, bob.receiving)
    limited, free = measured
    assert 500_000 < limited < 2_100_000
    assert free > 2 * limited


async def test_nobody_is_sent_anything_who_was_not_named() -> None:
    here, there = own_link()
    ann, bob = Machine(BOB, here), Machine(ANN, there)
    bob.told(4, begins=False)  # another probe
    ann.told(3, begins=True)
    for _ in range(2000):
        await asyncio.sleep(0)
    assert not ann.said
    assert not bob.said
    for machine in (ann, bob):
        machine.prober.close()
    here.abort()
    await asyncio.gather(ann.receiving, bob.receiving)


async def test_a_link_that_is_lost_ends_a_measure() -> None:
    here, there = own_link()
    ann = Machine(BOB, here)
    ann.told(3, begins=True)
    there.abort()
    await ann.receiving
    ann.prober.hear(m.Probe(run=RUN, number=4, partner=BOB, begins=True), None)
    assert not ann.said


async def test_answers_to_measures_that_never_end_are_forgotten() -> None:
    here, there = own_link()
    bob = Machine(ANN, there)
    for number in range(1, 20):
        bob.prober._probes.open.clear()  # as if the probe's time were over
        bob.told(number, begins=False)
        bob.prober.begun(ANN, m.Probing(run=RUN, number=number), there)
    assert list(bob.prober._answers) == [19]
    here.abort()
    await bob.receiving


async def test_a_link_that_a_relay_forwards_is_not_measured() -> None:
    """A probe through a relay would measure the relay's link, not a direct one."""
    here, there = own_link()
    ann = Machine(BOB, here)
    here.beneath = ann.receiving
    ann.told(3, begins=True)
    assert not ann.prober._probes.open
    assert not ann.prober._sending
    there.abort()
    await ann.receiving

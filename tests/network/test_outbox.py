"""One list, many cursors."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.network.link import Connection, LinkLost
from peer_agent.network.outbox import Outbox
from peer_agent.network.uplink import Uplink
from peer_agent.protocol.messages import SpanLeaves
from peer_agent.protocol.wire import Frame, Kind
from tests.network.loopback import PATIENCE_S, dial_relay, frame, how_it_ends, listening
from tests.protocol.identities import RUN

ROOM = 1 << 30
LEAVES = SpanLeaves(run=RUN, step=1, fence=1, attempt=1, span=0, leaves=b"")


def averages(count: int, size: int = 1000) -> list[Frame]:
    return [frame(chunk, size, Kind.AVERAGE) for chunk in range(count)]


class Gated:
    """A receiver that takes a body whenever the test opens its gate, whatever it is sent together with."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(0)
        self.taken: list[Any] = []
        self.arrived = asyncio.Event()

    async def send(self, *bodies: Any) -> None:
        for body in bodies:
            await self.gate.acquire()
            self.taken.append(body)
            self.arrived.set()

    def as_connection(self) -> Connection:
        return cast("Connection", self)


async def test_every_receiver_gets_everything_in_order() -> None:
    outbox = Outbox(ROOM)

    async def relay_side(link: Connection) -> None:
        await outbox.follow(link)

    async with listening(relay_side) as server:
        links = [await dial_relay(server) for _ in range(3)]
        bodies: list[Frame | SpanLeaves] = [*averages(50), LEAVES]
        for body in bodies:
            outbox.publish(body)
        for link in links:
            assert [await link.receive() for _ in bodies] == bodies
        outbox.close()
        assert all([isinstance(await how_it_ends(link), LinkLost) for link in links])


async def test_a_receiver_may_begin_where_it_stopped() -> None:
    outbox, receiver = Outbox(ROOM), Gated()
    for body in averages(5):
        outbox.publish(body)
    receiver.gate = asyncio.Semaphore(2)
    following = asyncio.create_task(outbox.follow(receiver.as_connection(), start=3))
    while len(receiver.taken) < 2:
        await asyncio.wait_for(receiver.arrived.wait(), PATIENCE_S)
        receiver.arrived.clear()
    outbox.close()
    assert await following == 5
    assert receiver.taken == averages(5)[3:]


async def test_one_that_stalls_holds_back_nobody_and_keeps_nothing() -> None:
    outbox, stalled, quick = Outbox(ROOM), Gated(), Gated()
    quick.gate = asyncio.Semaphore(1000)
    following = [asyncio.create_task(outbox.follow(one.as_connection())) for one in (stalled, quick)]
    for body in averages(100, 60_000):  # two go out at once
        outbox.publish(body)
    while len(quick.taken) < 100:
        await asyncio.wait_for(quick.arrived.wait(), PATIENCE_S)
        quick.arrived.clear()
    assert stalled.taken == []
    outbox.close()
    assert len(outbox) == 0
    assert await following[1] == 100
    for _ in range(100):
        stalled.gate.release()
    assert await following[0] == 2
    assert len(stalled.taken) == 2


async def test_what_another_attempt_makes_anew_is_not_sent_any_more() -> None:
    """A reducer with a slow uplink had its own useless averages before those for which all waited."""
    outbox, receiver = Outbox(ROOM), Gated()
    following = asyncio.create_task(outbox.follow(receiver.as_connection()))
    first = [
        replace(body, span=number // 2) for number, body in enumerate(averages(6, 140_000))
    ]  # one goes out at once
    for body in first:
        outbox.publish(body)
    outbox.publish(LEAVES)
    receiver.gate.release()
    await asyncio.wait_for(receiver.arrived.wait(), PATIENCE_S)
    outbox.begin_attempt({2})
    last = replace(first[0], span=3)
    outbox.publish(last)
    for _ in range(10):
        receiver.gate.release()
    for _ in range(50):
        await asyncio.sleep(0)
    assert receiver.taken == [first[0], first[1], first[4], first[5], LEAVES, last], "the second was on its way"
    outbox.close()
    assert await following == 8


async def test_what_waits_for_its_turn_is_not_sent_either() -> None:
    """Where the uplink is paced every receiver has a batch in hand: with many of them, seconds of what nobody needs."""
    uplink, receiver = Uplink(), Gated()
    uplink.pace(1.0)
    outbox = Outbox(200_000, uplink=uplink)
    following = asyncio.create_task(outbox.follow(receiver.as_connection()))
    receiver.gate = asyncio.Semaphore(100)
    first, second, third = averages(3, 100_000)
    outbox.publish(first)
    outbox.publish(second)
    await asyncio.wait_for(receiver.arrived.wait(), PATIENCE_S)
    for _ in range(20):
        await asyncio.sleep(0)
    outbox.begin_attempt(set())
    outbox.publish(third)  # there is room for it again
    uplink.pace(0.0)
    while len(receiver.taken) < 2:
        receiver.arrived.clear()
        await asyncio.wait_for(receiver.arrived.wait(), PATIENCE_S)
    assert receiver.taken == [first, third]
    outbox.close()
    await following


async def test_a_body_is_not_copied_for_each_receiver() -> None:
    outbox, receivers = Outbox(ROOM), [Gated(), Gated()]
    following = [asyncio.create_task(outbox.follow(one.as_connection())) for one in receivers]
    body = frame(0, kind=Kind.AVERAGE)
    outbox.publish(body)
    for one in receivers:
        one.gate.release()
        await asyncio.wait_for(one.arrived.wait(), PATIENCE_S)
        assert one.taken[0] is body
    outbox.close()
    await asyncio.gather(*following)


def test_more_than_the_plan_is_refused_and_late_bodies_are_forgotten() -> None:
    outbox = Outbox(2500)
    outbox.publish(frame(0))
    outbox.publish(frame(1))
    with pytest.raises(ValueError, match="more averaged bytes"):
        outbox.publish(frame(2))
    outbox.close()
    outbox.publish(frame(0))
    assert len(outbox) == 0


@given(st.lists(st.sampled_from(["publish", "new", "take 0", "take 1", "take 2"]), max_size=60))
def test_whatever_the_order_of_events_each_gets_a_beginning_of_the_list(events: Sequence[str]) -> None:
    async def play() -> None:
        outbox, receivers, following, published = Outbox(ROOM), list[Gated](), [], list[Frame]()
        for event in events:
            match event.split():
                case ["publish"]:
                    published.append(frame(len(published), 10, Kind.AVERAGE))
                    outbox.publish(published[-1])
                case ["new"]:
                    receivers.append(Gated())
                    following.append(asyncio.create_task(outbox.follow(receivers[-1].as_connection())))
                case [_, which] if int(which) < len(receivers):
                    receivers[int(which)].gate.release()
            await asyncio.sleep(0)
        for one in receivers:
            for _ in published:
                one.gate.release()
        for _ in range(3 * len(published) + 3):
            await asyncio.sleep(0)
        assert all(one.taken == published for one in receivers)
        outbox.close()
        await asyncio.gather(*following)

    asyncio.run(play())

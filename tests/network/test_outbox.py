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
from peer_agent.network.own_link import own_link
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
        self.held = 0  # bytes that the system holds
        self.arrived = asyncio.Event()

    async def send(self, *bodies: Any) -> None:
        for body in bodies:
            await self.gate.acquire()
            self.taken.append(body)
            self.arrived.set()

    def queued(self) -> int:
        return self.held

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
    assert outbox.waiting() == 7 - 1
    outbox.begin_attempt({2})
    assert outbox.waiting() == 0, "that which is of this attempt"
    last = replace(first[0], span=3)
    outbox.publish(last)
    assert outbox.waiting() == 1
    for _ in range(10):
        receiver.gate.release()
    for _ in range(50):
        await asyncio.sleep(0)
    assert receiver.taken == [first[0], first[1], first[4], first[5], LEAVES, last], "the second was on its way"
    outbox.close()
    assert await following == 8


async def test_a_machine_that_takes_its_own_averages_has_no_say_in_what_waits() -> None:
    outbox, (one, _) = Outbox(ROOM), own_link()
    following = [asyncio.create_task(outbox.follow(link)) for link in (one, *(Gated().as_connection() for _ in "ab"))]
    for body in averages(10, 60_000):
        outbox.publish(body)
    for _ in range(50):
        await asyncio.sleep(0)
    assert outbox.waiting() == 10
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)


async def test_what_waits_is_what_three_quarters_have_not_taken() -> None:
    """A receiver that is slow itself tells nothing of the way out of here; one that is fast does not hide it."""
    outbox, receivers = Outbox(ROOM), [Gated() for _ in range(4)]
    assert outbox.waiting() == 0
    following = [asyncio.create_task(outbox.follow(one.as_connection())) for one in receivers]
    for body in averages(10, 60_000):  # two go out at once
        outbox.publish(body)
    for one, taken in zip(receivers, (10, 4, 2, 0), strict=True):
        for _ in range(taken):
            one.gate.release()
    for _ in range(50):
        await asyncio.sleep(0)
    assert [len(one.taken) for one in receivers] == [10, 4, 2, 0]
    assert outbox.waiting() == 6
    for one in receivers:
        one.held = 3 * 60_000 + 1
    assert outbox.waiting() == 9, "what was taken has not come yet"
    for one in receivers:
        one.held = 0
    following[0].cancel()
    await asyncio.gather(following[0], return_exceptions=True)
    assert outbox.waiting() == 6, "of three the fastest"
    following[1].cancel()
    await asyncio.gather(following[1], return_exceptions=True)
    assert outbox.waiting() == 8
    outbox.close()
    assert outbox.waiting() == 0
    for one in receivers:
        for _ in range(10):
            one.gate.release()
    await asyncio.gather(*following, return_exceptions=True)


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

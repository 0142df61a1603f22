"""The order in which chunks share one uplink. A stalled reducer does not delay the others."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.network.sending import Outbox, interleave, send_chunks
from peer_agent.network.uplink import Uplink
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import SpanLeaves
from peer_agent.protocol.timing import BATCH_BYTES
from peer_agent.protocol.wire import Frame, Kind
from tests.network.loopback import PATIENCE_S, dial_relay, frame, how_it_ends, listening, turns
from tests.protocol.identities import RUN, trainer

SIZE = BATCH_BYTES // 2 + 1  # larger than half a batch, so that each chunk is sent alone
A, B, C = PeerId("a" * 32), PeerId("b" * 32), PeerId("c" * 32)

queues = st.dictionaries(
    st.sampled_from([A, B, C, PeerId("d" * 32)]), st.lists(st.integers(0, 1000), max_size=40), max_size=4
)


@given(queues)
def test_every_chunk_is_sent_once_in_order_for_each_reducer(sizes: dict[PeerId, list[int]]) -> None:
    order = list(interleave(sizes))
    for peer, chunks in sizes.items():
        assert [index for other, index in order if other == peer] == list(range(len(chunks)))
    assert len(order) == sum(map(len, sizes.values()))


@given(st.dictionaries(st.sampled_from([A, B, C]), st.lists(st.integers(1, 1000), min_size=1, max_size=40), min_size=2))
def test_reducers_advance_in_proportion(sizes: dict[PeerId, list[int]]) -> None:
    """At any moment, no reducer is more than a few chunks ahead of its fair share of the bytes sent."""
    totals, sent = {peer: sum(chunks) for peer, chunks in sizes.items()}, dict.fromkeys(sizes, 0)
    largest = max(max(chunks) for chunks in sizes.values())
    for peer, index in interleave(sizes):
        sent[peer] += sizes[peer][index]
        fairest = sum(sent.values()) / sum(totals.values())
        assert abs(sent[peer] - fairest * totals[peer]) <= 3 * largest


def test_equal_reducers_take_turns_and_larger_ones_go_more_often() -> None:
    assert list(interleave({A: [5, 5], B: [5, 5]})) == [(A, 0), (B, 0), (A, 1), (B, 1)]
    assert "".join("A" if peer == A else "B" for peer, _ in interleave({A: [1] * 6, B: [1] * 2})) == "AAABAAAB"
    assert list(interleave({A: [], B: [0, 0]})) == [(B, 0), (B, 1)]
    assert list(interleave({})) == []


class Reducer:
    def __init__(self, ledger: list[tuple[str, int]], name: str) -> None:
        self.ledger, self.name = ledger, name
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails_at = -1
        self.has_all = asyncio.Event()
        self.lengths: list[int] = []  # number of frames in each batch

    async def send(self, *bodies: Frame) -> None:
        self.lengths.append(len(bodies))
        for body in bodies:
            await self._take(body)

    async def _take(self, body: Frame) -> None:
        await asyncio.sleep(0)
        await self.gate.wait()
        if body.chunk == self.fails_at:
            raise LinkLost("gone")
        self.ledger.append((self.name, body.chunk))
        if body.chunk == 29:
            self.has_all.set()


def plan(**reducers: int) -> tuple[list[tuple[str, int]], dict[PeerId, Any], dict[PeerId, Sequence[Frame]]]:
    ledger: list[tuple[str, int]] = []
    peers = {name: PeerId(name * 32) for name in reducers}
    connections = {peers[name]: cast("Any", Reducer(ledger, name)) for name in reducers}
    return (
        ledger,
        connections,
        {peers[name]: [frame(n, SIZE) for n in range(count)] for name, count in reducers.items()},
    )


async def test_chunks_go_out_in_the_planned_proportion() -> None:
    ledger, connections, chunks = plan(a=30, b=10)
    assert await send_chunks(connections, chunks) == {}
    for first in range(0, 40, 8):
        among = [name for name, _ in ledger[first : first + 8]]
        assert 4 <= among.count("a") <= 8
    assert [chunk for name, chunk in ledger if name == "b"] == list(range(10))


@pytest.mark.parametrize(("reducers", "count", "written"), [(1, 200, 4), (2, 200, 4), (4, 100, 2), (12, 20, 1)])
async def test_batch_per_reducer_is_a_fiftieth_of_all_or_one_chunk(reducers: int, count: int, written: int) -> None:
    """Batches are small, because each round begins and ends with a wait for one batch per reducer."""
    _, connections, chunks = plan(**dict.fromkeys("abcdef0123456789"[:reducers], count))
    chunks = {peer: [frame(n, 32_768) for n in range(count)] for peer in chunks}
    assert await send_chunks(connections, chunks) == {}
    assert max(length for reducer in connections.values() for length in reducer.lengths) == written


async def test_one_that_stalls_does_not_stop_the_others() -> None:
    ledger, connections, chunks = plan(a=30, b=30)
    connections[A].gate.clear()
    sending = asyncio.create_task(send_chunks(connections, chunks, patience_s=0.01))
    await asyncio.wait_for(connections[B].has_all.wait(), PATIENCE_S)
    assert {name for name, _ in ledger} == {"b"}
    connections[A].gate.set()
    assert await sending == {}
    assert [chunk for name, chunk in ledger if name == "a"] == list(range(30))


@pytest.mark.parametrize(("count", "ahead"), [(10, 2), (100, 10)])
async def test_blocked_reducer_lets_the_others_get_only_a_tenth_ahead(count: int, ahead: int) -> None:
    ledger, connections, chunks = plan(a=count, b=count)
    connections[A].gate.clear()
    sending = asyncio.create_task(send_chunks(connections, chunks))
    await turns(1000)
    assert [name for name, _ in ledger] == ["b"] * len(ledger)
    assert abs(len(ledger) - ahead) <= 1
    connections[A].gate.set()
    assert await sending == {}


async def test_the_seconds_in_which_a_link_took_no_more_are_told() -> None:
    _, connections, chunks = plan(a=30, b=30)
    connections[A].gate.clear()
    full_s = {B: 7.0}
    sending = asyncio.create_task(send_chunks(connections, chunks, full_s=full_s))
    await asyncio.sleep(0.2)
    connections[A].gate.set()
    await sending
    assert full_s[A] > 0.19
    assert 7.0 <= full_s[B] < 7.1, "added to what is there; one that waits for others is not full"


async def test_lost_reducer_is_reported_and_the_others_get_everything() -> None:
    ledger, connections, chunks = plan(a=30, b=30)
    connections[A].fails_at = 5
    lost = await send_chunks(connections, chunks)
    assert list(lost) == [A]
    assert isinstance(lost[A], LinkLost)
    assert [chunk for name, chunk in ledger if name == "b"] == list(range(30))


async def test_it_can_be_cancelled() -> None:
    _, connections, chunks = plan(a=3)
    connections[A].gate.clear()
    sending = asyncio.create_task(send_chunks(connections, chunks))
    await asyncio.sleep(0)
    sending.cancel()
    assert isinstance((await asyncio.gather(sending, return_exceptions=True))[0], asyncio.CancelledError)


async def test_real_links_carry_it_and_a_refusal_is_reported() -> None:
    got: list[Any] = []
    complete = asyncio.Event()

    async def take(link: Connection) -> None:
        while len(got) < 40:
            got.append(await link.receive())
        complete.set()
        await asyncio.Event().wait()

    async def refuse(link: Connection) -> None:
        await link.receive()
        await link.close(Fault.of("E214"))

    async with listening(take) as taking, listening(refuse) as refusing:
        connections = {A: await dial_relay(taking), B: await dial_relay(refusing, trainer())}
        chunks = {A: [frame(n, 100_000) for n in range(40)], B: [frame(n, 100_000) for n in range(400)]}
        async with asyncio.timeout(PATIENCE_S):
            lost = await send_chunks(connections, chunks)
            await complete.wait()
    assert got == chunks[A]
    assert list(lost) == [B]
    assert isinstance(lost[B], LinkLost | Refused)


ROOM = 1 << 30
LEAVES = SpanLeaves(run=RUN, step=1, fence=1, attempt=1, span=0, leaves=b"")


def averages(count: int, size: int = 1000) -> list[Frame]:
    return [frame(chunk, size, Kind.AVERAGE) for chunk in range(count)]


class Gated:
    """A receiver that takes one body each time the test opens its gate, even if bodies are sent together."""

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
    for body in averages(100, 60_000):  # two bodies fit into one batch
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
    """A regression: a reducer with a slow uplink sent outdated averages first, while all the peers waited for the new
    ones.
    """
    outbox, receiver = Outbox(ROOM), Gated()
    following = asyncio.create_task(outbox.follow(receiver.as_connection()))
    # one body is sent at once
    first = [replace(body, span=number // 2) for number, body in enumerate(averages(6, 140_000))]
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
    """On a rate-limited uplink, one batch per receiver is queued. With many receivers, sending outdated batches would
    waste seconds.
    """
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
    outbox.publish(third)  # the dropped bodies left room for this one
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


def test_excess_bodies_are_refused_and_late_ones_ignored() -> None:
    outbox = Outbox(2500)
    outbox.publish(frame(0))
    outbox.publish(frame(1))
    with pytest.raises(ValueError, match="more averaged bytes"):
        outbox.publish(frame(2))
    outbox.close()
    outbox.publish(frame(0))
    assert len(outbox) == 0


@given(st.lists(st.sampled_from(["publish", "new", "take 0", "take 1", "take 2"]), max_size=60))
def test_receivers_get_a_prefix_of_the_list_in_any_event_order(events: Sequence[str]) -> None:
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

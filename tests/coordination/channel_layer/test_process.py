"""The channel layer in one process: a full, dead or stale channel does not affect other channels."""

import asyncio

import pytest

from coordination.channel_layer import process as layers
from coordination.channel_layer.messages import ChannelOverflowed, HostSaid, PeerSaid
from coordination.channel_layer.process import HOST, Inbox, ProcessLayer, Undelivered
from peer_agent.protocol.identifiers import PeerId

DAY_S = 25 * 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def small(clock: Clock) -> ProcessLayer:
    return ProcessLayer(capacity=3, host_capacity=5, clock=clock)


def said(data: bytes = b"") -> HostSaid:
    return HostSaid(data)


async def kinds(layer: ProcessLayer, channel: str) -> list[type]:
    found = []
    while True:
        try:
            async with asyncio.timeout(0):
                found.append(type(await layer.channel(channel).get()))
        except TimeoutError:
            return found


async def test_full_socket_is_told_to_start_over_and_others_go_on(small: ProcessLayer) -> None:
    slow, quick = await small.new_channel(), await small.new_channel()
    for _ in range(3):
        assert await small.send_many((slow, quick), said()) == []
    await kinds(small, quick)
    assert await small.send_many((slow, quick), said()) == [slow]
    assert await kinds(small, quick) == [HostSaid]
    with pytest.raises(Undelivered):
        await small.send(slow, said())
    assert await kinds(small, slow) == [ChannelOverflowed]
    assert await small.send_many((slow,), said()) == [slow], "it gets nothing more, since something is missing"


async def test_a_full_host_refuses_and_keeps_what_it_has(small: ProcessLayer) -> None:
    host = await small.new_channel(HOST)
    for _ in range(5):
        await small.send(host, of("teo"))
    with pytest.raises(Undelivered):
        await small.send(host, of("teo"))
    assert await kinds(small, host) == [PeerSaid] * 5
    await small.send(host, of("teo"))


def of(peer: str, data: bytes = b"") -> PeerSaid:
    return PeerSaid(PeerId(peer), "", data)


async def waiting_in(layer: ProcessLayer, host: str) -> list[str]:
    return [(await layer.receive(host)).peer for _ in range(len(layer.channel(host)))]


async def test_in_a_full_host_the_one_who_says_most_loses_words(small: ProcessLayer) -> None:
    host = await small.new_channel(HOST)
    inbox = small.channel(host)
    assert isinstance(inbox, Inbox)
    await small.send(host, of("noor"))
    for _ in range(4):
        await small.send(host, of("loud"))
    with pytest.raises(Undelivered):
        await small.send(host, of("loud"))
    await small.send(host, of("teo"))
    await small.send(host, of("teo"))
    with pytest.raises(Undelivered):
        await small.send(host, of("teo"))
    assert inbox.dropped == {"loud": 3, "teo": 1}, "at last nobody has more than he"
    assert await waiting_in(small, host) == ["noor", "loud", "loud", "teo", "teo"]
    for _ in range(5):
        await small.send(host, of("loud"))
    assert await waiting_in(small, host) == ["loud"] * 5, "what was read is nobody's any more"


async def test_in_a_full_host_long_words_count_by_their_length(
    small: ProcessLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "HOST_CAPACITY_BYTES", 100)
    host = await small.new_channel(HOST)
    for size in (40, 50):
        await small.send(host, of("loud", bytes(size)))
    await small.send(host, of("teo", bytes(30)))
    assert await waiting_in(small, host) == ["loud", "teo"]


async def test_queued_bytes_are_bounded_and_one_message_always_fits(
    small: ProcessLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "CAPACITY_BYTES", 100)
    channel = await small.new_channel()
    assert await small.send_many((channel,), said(bytes(1000))) == []
    assert await small.send_many((channel,), said(b"1")) == [channel]


async def test_a_socket_that_has_not_read_for_a_minute_is_given_up(small: ProcessLayer, clock: Clock) -> None:
    channel = await small.new_channel()
    await small.send(channel, said())
    clock.now += layers.EXPIRY_S
    await small.send(channel, said())
    clock.now += 1
    assert await small.send_many((channel,), said()) == [channel]


async def test_a_host_may_read_late(small: ProcessLayer, clock: Clock) -> None:
    host = await small.new_channel(HOST)
    await small.send(host, of("teo"))
    clock.now += DAY_S
    await small.send(host, of("teo"))
    assert len(await kinds(small, host)) == 2


async def test_nobody_leaves_a_group_by_growing_old(
    small: ProcessLayer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = await small.new_channel()
    await small.group_add("relays", channel)
    clock.now += DAY_S
    monkeypatch.setattr("time.time", clock)
    await small.group_send("relays", said())
    assert await kinds(small, channel) == [HostSaid]


async def test_left_or_forgotten_channel_hears_and_leaves_nothing(small: ProcessLayer) -> None:
    gone, left = await small.new_channel(), await small.new_channel()
    for channel in (gone, left):
        await small.group_add("relays", channel)
    small.forget(gone)
    await small.group_discard("relays", left)
    await small.group_send("relays", said())
    assert await kinds(small, left) == []
    assert (list(small.channels), small.groups) == ([left], {})
    assert await small.send_many((gone, left), said()) == [gone]


async def test_a_reader_that_is_cancelled_forgets_its_channel(small: ProcessLayer) -> None:
    channel = await small.new_channel()
    reading = asyncio.create_task(small.receive(channel))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert small.channels == {}


async def test_answers_come_before_messages_and_in_their_order(small: ProcessLayer) -> None:
    host = small.channel("host.here!1")
    host.put(of("teo"))
    host.put_first("one")
    host.put_first("two")
    assert [await host.get() for _ in range(3)] == ["one", "two", of("teo")]


async def test_a_host_takes_only_letters_to_hosts(small: ProcessLayer) -> None:
    host = await small.new_channel(HOST)
    assert await small.send_many((host,), said()) == [host]
    assert len(small.channel(host)) == 0


async def test_a_broadcast_lets_others_go_on(small: ProcessLayer) -> None:
    channels = [await small.new_channel() for _ in range(10 * layers.SLICE)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await small.send_many(channels, said())
    beside.cancel()
    assert turns >= 9


async def test_the_same_letter_reaches_all_as_it_is(small: ProcessLayer) -> None:
    channels = [await small.new_channel() for _ in range(3)]
    message = said(b"encoded once")
    await small.send_many(channels, message)
    assert [await small.receive(channel) for channel in channels] == [message] * 3

"""The order and rates of the streams on one uplink, on an event loop whose clock jumps to the next timer."""

import asyncio
import itertools
import selectors
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.network.link import own_link, way_out
from peer_agent.network.sending import Outbox, send_chunks, send_frames
from peer_agent.network.uplink import CREDIT_S, LEAST_HELD, MOST_HELD, Bucket, Downlink, Stream, Uplink, batch, batches
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import BATCH_BYTES
from peer_agent.protocol.wire import Frame, Kind
from tests.network.loopback import frame

RATE = 1_000_000.0
SIZE = 64 * 1024


class Jumping(selectors.DefaultSelector):
    """A selector that advances its virtual clock instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is not None:
            self.now += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


def play(story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on an event loop with a virtual clock that only timers advance."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story)


class Sent(list[tuple[float, str, int]]):
    """A list of (time, sender, bytes)."""

    def by(self, name: str, until: float = float("inf"), since: float = 0.0) -> int:
        return sum(size for at, who, size in self if who == name and since <= at <= until)


async def send_on(stream: Stream, name: str, sent: Sent, size: int = SIZE, after_s: float = 0.0) -> None:
    await asyncio.sleep(after_s)
    while True:
        await stream.turn(size)
        sent.append((asyncio.get_running_loop().time(), name, size))


async def during(seconds: float, *sending: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(one) for one in sending]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@given(
    st.floats(1e3, 1e9),
    st.lists(st.tuples(st.floats(0, 0.2), st.integers(1, BATCH_BYTES)), min_size=1, max_size=60),
)
def test_no_interval_exceeds_its_rate_plus_credit_and_a_batch(rate: float, asked: list[tuple[float, int]]) -> None:
    bucket, now, sent = Bucket(), 0.0, list[tuple[float, int]]()
    bucket.pace(rate, now)
    for pause_s, size in asked:
        now = max(now + pause_s, bucket.free_at())
        bucket.take(size, now)
        sent.append((now, size))
    for first, last in itertools.combinations_with_replacement(range(len(sent)), 2):
        passed_s = sent[last][0] - sent[first][0]
        assert sum(size for _, size in sent[first:last]) <= rate * (passed_s + CREDIT_S) * (1 + 1e-9) + 1


def test_a_rate_is_kept_to_the_byte_and_in_no_bursts() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)
        await during(10.0, send_on(uplink.stream(1), "a", sent))
        assert sent.by("a") == pytest.approx(10 * RATE, abs=SIZE)
        for start in (0.0, 2.5, 7.03):
            assert sent.by("a", start + 0.05, start) <= RATE * (0.05 + CREDIT_S) + SIZE

    play(story())


def test_what_was_not_used_is_gone_but_for_a_moment() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)
        await asyncio.sleep(100.0)
        await during(1.0, send_on(uplink.stream(1), "a", sent))
        assert sent.by("a") <= RATE * (1.0 + CREDIT_S) + SIZE

    play(story())


def test_they_share_in_proportion_to_what_they_plan() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)
        streams = {"a": uplink.stream(6_000_000), "b": uplink.stream(3_000_000), "c": uplink.stream(1_000_000)}
        await during(10.0, *(send_on(stream, name, sent) for name, stream in streams.items()))
        for until in (2.0, 5.0, 10.0):
            for name, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
                assert sent.by(name, until) == pytest.approx(share * RATE * until, abs=2 * SIZE)

    play(story())


def test_small_and_large_bodies_share_by_bytes() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)
        await during(
            10.0,
            send_on(uplink.stream(1000), "small", sent, SIZE // 8),
            send_on(uplink.stream(1000), "large", sent, 2 * SIZE),
        )
        assert sent.by("small") == pytest.approx(sent.by("large"), abs=3 * SIZE)

    play(story())


def test_who_comes_late_has_its_share_from_then_on_and_no_more() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)
        await during(
            10.0,
            send_on(uplink.stream(1_000_000), "a", sent),
            send_on(uplink.stream(1_000_000), "b", sent, after_s=5.0),
        )
        assert sent.by("b") == pytest.approx(2.5 * RATE, abs=2 * SIZE)
        assert sent.by("a", since=5.0) == pytest.approx(2.5 * RATE, abs=2 * SIZE)

    play(story())


def test_one_whose_socket_is_full_holds_up_nobody() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)

        async def stalls(stream: Stream) -> None:
            await stream.turn(SIZE)
            await asyncio.Event().wait()

        await during(10.0, send_on(uplink.stream(1000), "a", sent), stalls(uplink.stream(1_000_000_000)))
        assert sent.by("a") == pytest.approx(10 * RATE, abs=2 * SIZE)

    play(story())


def test_without_a_rate_nobody_waits() -> None:
    async def story() -> None:
        stream = Uplink().stream(1000)
        for _ in range(1000):
            await stream.turn(BATCH_BYTES)
        assert asyncio.get_running_loop().time() == 0.0

    play(story())


def test_another_rate_holds_at_once_for_those_who_wait_too() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(1.0)  # at this rate the next batch would follow after a day
        sending = asyncio.create_task(send_on(uplink.stream(1000), "a", sent))
        await asyncio.sleep(60.0)
        assert sent.by("a") <= SIZE + 60
        uplink.pace(RATE)
        began = sent.by("a")
        await asyncio.sleep(10.0)
        sending.cancel()
        assert sent.by("a") - began == pytest.approx(10 * RATE, abs=2 * SIZE)
        uplink.pace(1.0)
        stream = uplink.stream(1000)
        await stream.turn(SIZE)
        waiting = asyncio.create_task(stream.turn(SIZE))
        await asyncio.sleep(0)
        uplink.pace(0)
        before = asyncio.get_running_loop().time()
        await waiting
        assert asyncio.get_running_loop().time() == before

    play(story())


def test_a_rate_that_is_said_again_and_again_gives_nothing_more() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)

        async def say_again() -> None:
            while True:
                await asyncio.sleep(0.001)
                uplink.pace(RATE)

        await during(10.0, send_on(uplink.stream(1), "a", sent), say_again())
        assert sent.by("a") == pytest.approx(10 * RATE, abs=2 * SIZE)

    play(story())


def test_one_that_is_cancelled_takes_nothing_with_it() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)
        gone = [asyncio.create_task(uplink.stream(1000).turn(10 * SIZE)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await during(10.0, send_on(uplink.stream(1000), "a", sent))
        assert sent.by("a") == pytest.approx(10 * RATE, abs=11 * SIZE)

    play(story())


class Taker:
    def __init__(self, name: str, sent: Sent) -> None:
        self.name, self.sent = name, sent

    async def send(self, *bodies: Frame) -> None:
        now = asyncio.get_running_loop().time()
        self.sent.extend((now, self.name, len(body.payload)) for body in bodies)


def test_own_gradients_and_averages_share_one_uplink() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)
        outbox = Outbox(1 << 30, planned=3_000_000, uplink=uplink)
        for number in range(100):
            outbox.publish(frame(number, 30_000, Kind.AVERAGE))
        takers: Any = {name: Taker(name, sent) for name in ("up 1", "up 2", "down 1", "down 2")}
        reducers = {PeerId("a" * 32): takers["up 1"], PeerId("b" * 32): takers["up 2"]}
        chunks = {peer: [frame(number, 60_000) for number in range(100)] for peer in reducers}
        following = [asyncio.create_task(outbox.follow(takers[name])) for name in ("down 1", "down 2")]
        assert await send_chunks(reducers, chunks, uplink=uplink) == {}
        total = sum(size for _, _, size in sent)
        assert asyncio.get_running_loop().time() == pytest.approx(total / RATE, rel=0.02)
        for until in (6.0, 12.0, 17.0):
            for name in takers:
                planned = 6_000_000 if name.startswith("up") else 3_000_000
                assert sent.by(name, until) == pytest.approx(planned * until / 18, abs=3 * BATCH_BYTES)
        outbox.close()
        await asyncio.gather(*following)

    play(story())


def test_what_is_read_from_the_log_takes_its_turns_too() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(RATE)
        reading: Any = Taker("log", sent)
        await send_frames(reading, [frame(number, SIZE) for number in range(100)], uplink)
        assert sent.by("log") == 100 * SIZE
        assert asyncio.get_running_loop().time() == pytest.approx(100 * SIZE / RATE, rel=0.05)

    play(story())


def test_ended_attempt_stops_sending_averages_that_wait() -> None:
    async def story() -> None:
        uplink, sent = Uplink(), Sent()
        uplink.pace(1.0)
        outbox = Outbox(1 << 30, uplink=uplink)
        for number in range(10):
            outbox.publish(frame(number, BATCH_BYTES, Kind.AVERAGE))
        following = asyncio.create_task(outbox.follow(Taker("a", sent)))  # type: ignore[arg-type]
        await asyncio.sleep(1.0)
        outbox.close()
        uplink.pace(0)
        assert await following == 1
        assert sent.by("a") == BATCH_BYTES

    play(story())


def test_a_batch_is_full_or_all_there_is_and_never_nothing() -> None:
    small, large = [frame(number, 30_000) for number in range(10)], [frame(0, 3 * BATCH_BYTES), frame(1, 1)]
    assert Counter(map(len, batches(small))) == {4: 2, 2: 1}
    assert [body for cut in batches(small) for body in cut] == small
    assert batch(large, 0) == large[:1]
    assert batch(large, 1) == large[1:]
    assert batch(large, 2) == []


def test_contributor_keeps_its_pace_and_its_reducers_proportions() -> None:
    async def story() -> None:
        sent = Sent()
        connections: Any = {PeerId(name * 32): Taker(name, sent) for name in "ab"}
        chunks = {
            peer: [frame(chunk, size=SIZE) for chunk in range(count)]
            for peer, count in zip(connections, (90, 30), strict=True)
        }
        assert await send_chunks(connections, chunks, pace=RATE) == {}
        whole_s = 120 * SIZE / RATE
        for part in (0.25, 0.5, 1.0):
            until = part * whole_s
            assert sent.by("a", until) == pytest.approx(0.75 * RATE * until, abs=RATE * CREDIT_S + 3 * BATCH_BYTES)
            assert sent.by("b", until) == pytest.approx(0.25 * RATE * until, abs=RATE * CREDIT_S + 3 * BATCH_BYTES)
        assert sent[-1][0] == pytest.approx(whole_s, abs=CREDIT_S + 2 * BATCH_BYTES / RATE)

    play(story())


def test_what_a_machine_sends_to_itself_waits_for_no_rate() -> None:
    uplink = Uplink()
    here, _ = own_link()
    assert way_out(here, uplink) is not uplink
    assert way_out(Taker("a", Sent()), uplink) is uplink  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("paced", "limited", "rate"), [(RATE, 0.0, RATE), (0.0, RATE, RATE), (RATE, RATE / 4, RATE / 4)]
)
def test_the_slower_of_what_site_and_owner_say_holds(paced: float, limited: float, rate: float) -> None:
    async def story() -> None:
        uplink, loop = Uplink(), asyncio.get_running_loop()
        uplink.pace(paced)
        uplink.limit(limited)
        stream = uplink.stream(10 * SIZE)
        for _ in range(10):
            await stream.turn(SIZE)
        assert loop.time() == pytest.approx(9 * SIZE / rate, abs=2 * CREDIT_S)
        uplink.limit(0.0)
        assert uplink.is_paced == (paced > 0)

    play(story())


@pytest.mark.parametrize(("rate", "held"), [(1e4, LEAST_HELD), (1e6, 500_000), (1e9, MOST_HELD), (0.0, MOST_HELD)])
def test_the_system_holds_half_a_second_of_what_may_come_in(rate: float, held: int) -> None:
    async def story() -> None:
        downlink = Downlink()
        downlink.limit(0.0)
        assert downlink.held == 0, "it is left to the system"
        downlink.limit(RATE)
        downlink.limit(rate)
        assert downlink.held == held

    play(story())


def test_whoever_reads_waits_for_all_that_was_read() -> None:
    async def story() -> None:
        downlink, loop = Downlink(), asyncio.get_running_loop()
        await downlink.came(10**9)
        assert loop.time() == 0.0, "without a limit nobody waits"
        downlink.limit(RATE)
        await asyncio.gather(*(downlink.came(SIZE) for _ in range(10)))
        assert loop.time() == pytest.approx(10 * SIZE / RATE, abs=CREDIT_S)

    play(story())

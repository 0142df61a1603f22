"""Redis hangs, is restarted or cannot be reached. Messages then go over PostgreSQL, and a run goes on."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from channels.layers import get_channel_layer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from redis.exceptions import ConnectionError as RedisConnectionError

from coordination.channel_layer import bridge
from coordination.channel_layer import redis as layers
from coordination.channel_layer.bridge import Bridge
from coordination.channel_layer.messages import HostSaid, LayerRestored
from coordination.channel_layer.process import RESTORED, Undelivered
from coordination.channel_layer.redis import RedisLayer, patiently
from coordination.threads import in_thread
from tests.coordination.engines import PATIENCE_S, fresh_database
from tests.coordination.restarting import Redis, a_run_elsewhere, goes_on_after, settings_of
from tests.coordination.running import assemble_long, require_whole_log, steps_on

RESTARTS = 2
NOWHERE = "redis://127.0.0.1:1/0"  # nothing listens there


@pytest.fixture
def redis(settings: Any) -> Iterator[Redis]:
    found = Redis()
    found.start()
    settings.CHANNEL_LAYERS = settings_of(found)
    yield found
    found.end()


@pytest.fixture
def postgresql(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_database("postgresql", request, tmp_path) as url:
        yield url


@asynccontextmanager
async def site(*addresses: str) -> AsyncIterator[list[RedisLayer]]:
    """Yield the layers of as many site processes, which have these addresses of Redis."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    found = [RedisLayer(hosts=[address], prefix=prefix) for address in addresses]
    try:
        yield found
    finally:
        for layer in found:
            await layer.flush()


@contextmanager
def away(url: str) -> Iterator[None]:
    """Cut all connections to a database, and accept no new ones during a `with` block, as while it restarts."""
    name = str(conninfo_to_dict(url)["dbname"])
    with psycopg.connect(make_conninfo(url, dbname="postgres"), autocommit=True) as control:
        control.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        control.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            control.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


async def heard(layer: RedisLayer, channel: str) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await layer.receive(channel)


async def passes(sender: RedisLayer, receiver: RedisLayer, channel: str, words: bytes) -> None:
    """Require that a message arrives. Skip messages of before."""
    await sender.send(channel, HostSaid(words))
    while (await heard(receiver, channel)).data != words:
        pass


def bridge_of(layer: RedisLayer) -> Bridge:
    assert layer._bridge is not None
    return layer._bridge


async def until(done: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():  # noqa: ASYNC110 - a layer has no event for this
            await asyncio.sleep(0.01)


# A run, with its host in another process


async def test_a_run_goes_on_each_time(redis: Redis, postgresql: str, settings: Any) -> None:
    example = await in_thread(assemble_long)(10_000)
    async with a_run_elsewhere(example, postgresql, settings):
        for _ in range(RESTARTS):
            await goes_on_after(redis, example.run)
    await in_thread(require_whole_log)(example.run)
    layer: Any = get_channel_layer()
    await layer.flush()


async def test_run_goes_on_while_redis_hangs_and_after(redis: Redis, postgresql: str, settings: Any) -> None:
    example = await in_thread(assemble_long)(10_000)
    layer: Any = get_channel_layer()
    async with a_run_elsewhere(example, postgresql, settings):
        with redis.hanging():
            await until(lambda: not layer.is_up)
            await steps_on(10)
        await until(lambda: layer.is_up and not layer.is_bridged)
        await steps_on(10)
    await in_thread(require_whole_log)(example.run)
    await layer.flush()


# Two processes


async def test_messages_arrive_while_redis_hangs(redis: Redis, postgresql: str) -> None:
    async with site(redis.url, redis.url) as (near, far):
        here, there, everyone = await near.new_channel(), await far.new_channel(), await far.new_channel()
        await far.group_add("all", everyone)
        await passes(near, far, there, b"by Redis")
        with redis.hanging():
            for number in range(3):
                await passes(near, far, there, b"to %d" % number)
                await passes(far, near, here, b"fro %d" % number)
                await near.group_send("all", HostSaid(b"to all %d" % number))
                assert (await heard(far, everyone)).data == b"to all %d" % number
        await until(lambda: not (near.is_bridged or far.is_bridged))
        await passes(near, far, there, b"by Redis again")
        await passes(far, near, here, b"and back")


async def test_message_on_its_way_into_a_hanging_redis_arrives_later(redis: Redis, postgresql: str) -> None:
    async with site(redis.url, redis.url) as (near, far):
        there = await far.new_channel()
        await passes(near, far, there, b"by Redis")
        with redis.hanging():
            await near.send(there, HostSaid(b"into the void"))
            await asyncio.sleep(0)
            await near.send(there, HostSaid(b"after it"))
            assert [(await heard(far, there)).data for _ in range(2)] == [b"into the void", b"after it"]


async def test_nobody_must_say_hello_when_nothing_is_lost(redis: Redis, postgresql: str) -> None:
    async with site(redis.url, redis.url) as (near, far):
        ears = [(layer, await layer.new_channel()) for layer in (near, far)]
        for layer, ear in ears:
            await layer.group_add(RESTORED, ear)
        with redis.hanging():
            await until(lambda: all(layer.is_bridged and not layer.is_up for layer in (near, far)))
        await until(lambda: near.is_up and far.is_up and not (near.is_bridged or far.is_bridged))
        assert [len(layer.channel(ear)) for layer, ear in ears] == [0, 0]


@pytest.mark.parametrize("fault", ["hangs", "is killed"])
async def test_streams_both_ways_are_whole_and_in_order(redis: Redis, postgresql: str, fault: str) -> None:
    """A message may arrive twice, but none is missing and no new one comes before an older one."""
    async with site(redis.url, redis.url) as (near, far):
        here, there = await near.new_channel(), await far.new_channel()
        stop = asyncio.Event()
        ways = (near, far, there), (far, near, here)
        streams = [asyncio.create_task(stream(*way, stop)) for way in ways]
        await asyncio.sleep(0.2)
        if fault == "hangs":
            with redis.hanging():
                await until(lambda: near.is_bridged and far.is_bridged)
        else:
            redis.kill()
            await until(lambda: near.is_bridged and far.is_bridged)
            redis.start()
        await until(lambda: not (near.is_bridged or far.is_bridged))
        await asyncio.sleep(0.2)
        stop.set()
        await asyncio.gather(*streams)


async def stream(sender: RedisLayer, receiver: RedisLayer, channel: str, stop: asyncio.Event) -> None:
    """Send numbered messages until `stop`. Require that the first copies arrive in order, and all of them."""
    sent, expected = 0, 0
    async with asyncio.timeout(PATIENCE_S):
        while not stop.is_set() or expected < sent:
            if not stop.is_set():
                await sender.send(channel, HostSaid(b"%d" % sent))
                sent += 1
            await asyncio.sleep(0.002)
            while len(receiver.channel(channel)):
                number = int((await receiver.receive(channel)).data)
                assert number <= expected, f"{expected} is missing before {number}"
                expected = max(expected, number + 1)


async def test_process_that_alone_misses_redis_is_heard_and_hears(redis: Redis, postgresql: str) -> None:
    async with site(redis.url, NOWHERE) as (near, far):
        here, there = await near.new_channel(), await far.new_channel()
        ear = await near.new_channel()
        await near.group_add(RESTORED, ear)
        await passes(far, near, here, b"from the one that misses it")
        await until(lambda: near.is_bridged)
        await passes(near, far, there, b"to the one that misses it")
        assert await heard(near, ear) == LayerRestored(), "Redis took what the other could not hear"
        assert near.is_up


async def test_a_long_message_goes_over_the_bridge(redis: Redis, postgresql: str) -> None:
    async with site(redis.url, redis.url) as (near, far):
        there = await far.new_channel()
        with redis.hanging():
            await passes(near, far, there, bytes(2_000_000) + b"end")


async def test_messages_go_on_after_the_database_was_away_too(redis: Redis, postgresql: str) -> None:
    async with site(redis.url, redis.url) as (near, far):
        here, there = await near.new_channel(), await far.new_channel()
        with redis.hanging():
            await passes(near, far, there, b"before")
            ear = await far.new_channel()
            await far.group_add(RESTORED, ear)
            with away(postgresql):
                await until(lambda: not bridge_of(near).is_up)
                await near.send(there, HostSaid(b"kept until it is back"))
            assert (await heard(far, there)).data == b"kept until it is back"
            assert await heard(far, ear) == LayerRestored()
            await passes(far, near, here, b"after")


async def test_without_redis_and_database_a_message_is_lost_at_once(
    redis: Redis, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "GRACE_S", 0.0)
    async with site(redis.url, redis.url) as (near, far):
        there = await far.new_channel()
        await passes(near, far, there, b"by Redis")
        with redis.hanging():
            await until(lambda: near.is_bridged)
            with away(postgresql):
                await until(lambda: not bridge_of(near).is_up)
                with pytest.raises(Undelivered):
                    await near.send(there, HostSaid(b"word"))


async def test_queue_to_other_processes_is_bounded(
    redis: Redis, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "OUTBOX", 3)
    async with site(redis.url, redis.url) as (near, far):
        here, there = await near.new_channel(), await far.new_channel()
        with redis.hanging():
            await until(lambda: near.is_bridged and far.is_bridged)
            await passes(near, far, there, b"the queue is empty")
            lost = [bool(await near.send_many((there,), HostSaid(b"word"))) for _ in range(5)]
            assert (lost[0], lost[-2:]) == (False, [True, True])
            await passes(far, near, here, b"others go on")


async def test_busy_redis_is_not_taken_for_a_dead_one(redis: Redis, postgresql: str, caplog: Any) -> None:
    async with site(redis.url, redis.url) as (near, far):
        there = await far.new_channel()
        for number in range(5):
            with redis.hanging():
                await asyncio.sleep(layers.ANSWER_S / 2)
            await passes(near, far, there, b"word %d" % number)
        assert near.is_up
        assert "Redis is away" not in caplog.text


async def test_pause_of_the_process_is_not_taken_for_a_dead_redis(redis: Redis, postgresql: str, caplog: Any) -> None:
    async with site(redis.url, redis.url) as (near, far):
        there = await far.new_channel()
        for number in range(2):
            with redis.hanging():
                await near.send(there, HostSaid(b"an answer is outstanding"))
                await asyncio.sleep(0.05)
                time.sleep(1.5 * layers.ANSWER_S)  # noqa: ASYNC251 - the pause
            await passes(near, far, there, b"word %d" % number)
        assert "Redis is away" not in caplog.text


async def test_process_recovers_when_only_its_publishing_fails(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(redis.url, redis.url) as (near, far):
        _, there = await near.new_channel(), await far.new_channel()
        await passes(near, far, there, b"before")
        with monkeypatch.context() as patched:
            patched.setattr(near, "_publish_batch", failing)
            await near.send(there, HostSaid(b"lost"))
            await until(lambda: not near.is_up)
        await until(lambda: near.is_up)
        await passes(near, far, there, b"after")


async def failing(_: Any) -> None:
    raise RedisConnectionError("reset")


# Without servers


async def test_site_on_sqlite_has_no_bridge() -> None:
    async with site(NOWHERE) as (layer,):
        await layer.new_channel()
        await until(lambda: not layer.is_up)
        assert not layer.is_bridged
        with pytest.raises(Undelivered):
            await layer.send("specific.elsewhere!1", HostSaid(b""))


async def test_patience_outlasts_a_pause_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "WAIT_S", 0.2)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        asyncio.get_running_loop().call_later(0.01, answer.set_result, "here")
        time.sleep(0.2 * layers.WAITS + 0.1)  # noqa: ASYNC251 - the pause
        return await answer

    assert await patiently(work()) == "here"


async def test_patience_ends_and_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "WAIT_S", 0.01)
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await patiently(work())
    assert ended.is_set()

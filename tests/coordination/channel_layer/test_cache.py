"""The cache on Redis: JSON, time limits and a circuit breaker. The task queue has time limits too."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis as Client
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from coordination.channel_layer import cache as caching
from coordination.channel_layer.cache import REST_S, Breaker, JsonSerializer, SafeRedisCache
from tests.coordination.restarting import Redis
from tests.servers import free_port

SEND = """
import sys, time
sys.path[:0] = ["platform"]
from config import celery_app
from kombu.exceptions import OperationalError
began = time.monotonic()
try:
    celery_app.send_task("anything")
except OperationalError:
    print(time.monotonic() - began)
"""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Server:
    """A server that is called, and may fail."""

    error: Exception | None = None
    calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return "answer"


def test_calls_fail_at_once_after_a_failure_and_one_tries_again() -> None:
    clock, server = Clock(), Server()
    breaker = Breaker(clock)
    assert breaker.call(server) == "answer"
    server.error = RedisTimeoutError()
    for _ in range(5):
        with pytest.raises(RedisError):
            breaker.call(server)
    assert server.calls == 2
    clock.now += REST_S
    with pytest.raises(RedisTimeoutError):
        breaker.call(server)
    with pytest.raises(RedisConnectionError):
        breaker.call(server)
    assert server.calls == 3
    clock.now += REST_S
    server.error = None
    assert [breaker.call(server) for _ in range(2)] == ["answer"] * 2


def test_while_one_call_tries_again_the_others_do_not_wait() -> None:
    clock, server = Clock(), Server()
    breaker = Breaker(clock)
    server.error = RedisConnectionError()
    with pytest.raises(RedisConnectionError):
        breaker.call(server)
    clock.now += REST_S

    def tries() -> str:
        with pytest.raises(RedisConnectionError):
            breaker.call(server)
        return "answer"

    assert breaker.call(tries) == "answer"
    assert server.calls == 1


def test_an_answer_that_is_an_error_breaks_nothing() -> None:
    server, breaker = Server(), Breaker()
    server.error = ResponseError()
    for _ in range(2):
        with pytest.raises(ResponseError):
            breaker.call(server)
    assert server.calls == 2


def test_values_are_json_and_never_pickles() -> None:
    serializer = JsonSerializer()
    for value in (3, 2.5, 1_000_000.0, "7", None, True, {"0a": [1, 2.5]}):
        assert serializer.loads(serializer.dumps(value)) == value
    assert serializer.dumps(3) == b"3", "Redis can add to it"
    with pytest.raises(ValueError):  # noqa: PT011 - any of them
        serializer.loads(pickle.dumps("anything"))


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    monkeypatch.setattr(caching, "BREAKER", Breaker())
    found = Redis()
    found.start()
    yield found
    found.end()


@pytest.fixture
def cache(redis: Redis) -> Any:
    return SafeRedisCache(redis.url, {})


def test_counting_and_keeping(redis: Redis, cache: Any) -> None:
    assert cache.add("count", 0, 60)
    assert [cache.incr("count"), cache.incr("count"), cache.decr("count"), cache.get("count")] == [1, 2, 1, 1]
    cache.set("known", {"0a": [1, 2.5]}, 60)
    assert cache.get("known") == {"0a": [1, 2.5]}
    assert cache.get("unknown", "usual") == "usual"
    with Client.from_url(redis.url) as looking:
        assert looking.get(":1:known") == b'{"0a": [1, 2.5]}'


def test_a_hanging_redis_delays_one_call_and_not_the_next(
    redis: Redis, cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.set("key", 1, 60)
    with redis.hanging():
        took = []
        for _ in range(20):
            began = time.monotonic()
            with pytest.raises(RedisError):
                cache.get("key")
            took.append(time.monotonic() - began)
        assert sum(took) < 20 * caching.ANSWER_S / 2
    monkeypatch.setattr(caching, "BREAKER", Breaker())
    assert cache.get("key") == 1


def refused_after_s(address: str) -> float:
    """Return the seconds after which a new process has given up sending a task."""
    own = {**os.environ, "REDIS_URL": address}
    done = subprocess.run([sys.executable, "-c", SEND], env=own, capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout)


def test_a_task_is_given_up_soon_when_redis_hangs_or_is_down(redis: Redis) -> None:
    with redis.hanging():
        assert refused_after_s(redis.url) < 10
    assert refused_after_s(f"redis://127.0.0.1:{free_port()}/0") < 10

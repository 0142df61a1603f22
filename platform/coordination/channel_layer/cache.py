"""Django's cache on Redis. It never makes a request wait for long, and never unpickles data from Redis."""

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_S = 1.0  # timeout for a response from Redis
REST_S = 3.0  # how long calls fail immediately after a failure


class JsonSerializer:
    """A JSON serializer. Tuples become lists. Integers are stored as plain digits, so that Redis can increment them."""

    def dumps(self, obj: Any) -> bytes:
        return json.dumps(obj, allow_nan=False).encode()

    def loads(self, data: bytes) -> Any:
        """Decode a value. Raises ValueError if it is not JSON."""
        return json.loads(data)


class Breaker:
    """A circuit breaker. After a failure, one call every `REST_S` seconds is let through; all others fail at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries_at: float | None = None  # after a failure, the time of the next attempt

    def call(self, work: Callable[[], T]) -> T:
        """Call `work` and return its result. While the breaker is open, raise redis-py's ConnectionError instead."""
        self._wait_for_turn()
        try:
            result = work()
        except (RedisConnectionError, RedisTimeoutError) as error:
            if self._tries_at is None:
                log.warning("the cache goes without Redis: %s", error)
            self._tries_at = self._clock() + REST_S
            raise
        self._tries_at = None
        return result

    def _wait_for_turn(self) -> None:
        with self._lock:
            if self._tries_at is None:
                return
            if self._clock() < self._tries_at:
                raise RedisConnectionError("it did not answer a moment ago")
            self._tries_at = self._clock() + REST_S  # until then, only this call is let through


BREAKER = Breaker()  # shared by all threads; each has its own cache and connections


class GuardedRedis(Redis):
    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        work: Callable[..., Any] = super().execute_command
        return BREAKER.call(lambda: work(*arguments, **options))


class Client(RedisCacheClient):
    def __init__(self, servers: list[str], **options: Any) -> None:
        options = {"socket_connect_timeout": ANSWER_S, "socket_timeout": ANSWER_S, **options}
        super().__init__(servers, serializer=f"{__name__}.JsonSerializer", **options)
        self._client = GuardedRedis


class SafeRedisCache(RedisCache):
    def __init__(self, server: str, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self._class = Client

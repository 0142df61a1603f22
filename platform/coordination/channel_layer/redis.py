"""The channel layer for several processes: `ProcessLayer` within each process, Redis between them.

A process subscribes to only two Redis channels. When Redis has failed, the group `RESTORED` is told that messages may
have been lost.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from coordination.channel_layer.messages import LayerMessage, LayerRestored
from coordination.channel_layer.process import CAPACITY, HOST_CAPACITY, RESTORED, ProcessLayer

log = logging.getLogger(__name__)

RETRY_S = 0.25  # between attempts to reach Redis
ANSWER_S = 2.0  # timeout for an answer of Redis
SILENCE_S = 2.0  # after this time without a message, ping Redis
OUTBOX = 10_000  # messages waiting to be published
OUTBOX_BYTES = 64 * 1024 * 1024
BATCH = 256  # messages published in one round trip
GONE = (RedisError, OSError, TimeoutError)


class Parcel(msgspec.Struct, array_like=True):
    """A message between processes, for channels or for a group. `origin` has already served its own group members."""

    origin: str
    channels: list[str]
    group: str
    message: LayerMessage


class RedisLayer(ProcessLayer):
    """A channel layer across processes. `hosts` has one Redis address; all names in Redis begin with `prefix`."""

    def __init__(
        self,
        *,
        hosts: list[str],
        prefix: str = "manyhands",
        capacity: int = CAPACITY,
        host_capacity: int = HOST_CAPACITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(capacity=capacity, host_capacity=host_capacity, clock=clock)
        (self.address,), self.prefix = hosts, prefix
        self.is_up = True  # False from the first failure until Redis answers again
        self._outbox: deque[tuple[str, bytes]] = deque()
        self._outbox_bytes = 0
        self._posted = asyncio.Event()
        self._subscribed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._redis: Any = None

    async def new_channel(self, prefix: str = "specific.") -> str:
        """Create a channel. Unless Redis is down, wait until messages from other processes can arrive."""
        self._start()
        if self.is_up and not self._subscribed.is_set():
            await asyncio.wait([asyncio.ensure_future(self._subscribed.wait())], timeout=ANSWER_S)
        return await super().new_channel(prefix)

    async def send_many(self, channels: Iterable[str], message: LayerMessage) -> list[str]:
        """Send a message to channels in any of the processes; each other process gets the message only once."""
        here: list[str] = []
        elsewhere: dict[str, list[str]] = {}
        for channel in channels:
            process = process_of(channel)
            if process == self.process:
                here.append(channel)
            else:
                elsewhere.setdefault(process, []).append(channel)
        lost = await super().send_many(here, message)
        for process, names in elsewhere.items():
            if not self._post(f"{self.prefix}.{process}", Parcel(self.process, names, "", message)):
                lost += names
        return lost

    async def group_send(self, group: str, message: LayerMessage) -> None:
        self._post(f"{self.prefix}.groups", Parcel(self.process, [], group, message))
        await super().group_send(group, message)

    async def flush(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._redis is not None:
            await self._redis.aclose(close_connection_pool=True)
        self._tasks, self._redis = [], None
        self._outbox.clear()
        self._outbox_bytes = 0
        self._subscribed.clear()
        await super().flush()

    def _start(self) -> None:
        if self._tasks:
            return
        self._redis = Redis.from_url(
            self.address,
            retry=Retry(NoBackoff(), 0),  # a retry would hide that messages were lost
            socket_connect_timeout=ANSWER_S,
            socket_timeout=ANSWER_S,
        )
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._publish())]

    def _post(self, name: str, parcel: Parcel) -> bool:
        self._start()
        if not self.is_up or len(self._outbox) >= OUTBOX or self._outbox_bytes > OUTBOX_BYTES:
            return False
        self._outbox.append((name, data := msgspec.msgpack.encode(parcel)))
        self._outbox_bytes += len(data)
        self._posted.set()
        return True

    async def _publish(self) -> None:
        """Publish queued messages in batches, each in one round trip. Messages that cannot be published are lost."""
        while not is_ending():
            await self._posted.wait()
            batch = [self._outbox.popleft() for _ in range(min(BATCH, len(self._outbox)))]
            self._outbox_bytes -= sum(len(data) for _, data in batch)
            if not self._outbox:
                self._posted.clear()
            try:
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for name, data in batch:
                        pipeline.publish(name, data)
                    await pipeline.execute()
            except GONE as error:
                self._broke(error)

    def _broke(self, error: Exception) -> None:
        if self.is_up:
            log.warning("Redis is away: %s", error)
        self.is_up = False
        self._outbox.clear()
        self._outbox_bytes = 0

    async def _listen(self) -> None:
        while not is_ending():
            ear = self._redis.pubsub()
            try:
                await self._hear(ear)
            except GONE as error:
                self._broke(error)
            finally:
                await _closed(ear)
            await asyncio.sleep(RETRY_S)

    async def _hear(self, ear: PubSub) -> None:
        """Deliver incoming messages. Raises a Redis error, or TimeoutError if Redis does not answer a ping."""
        await ear.subscribe(f"{self.prefix}.{self.process}", f"{self.prefix}.groups")
        was_asked = False
        while not is_ending():
            message = await ear.get_message(timeout=SILENCE_S)
            if message is None:
                if was_asked:
                    raise TimeoutError("it does not answer")
                await ear.ping()
            elif message["type"] == "subscribe" and message["data"] == 2:  # both names are subscribed
                await self._is_back()
            elif message["type"] == "message":
                await self._deliver(message["data"])
            was_asked = message is None

    async def _is_back(self) -> None:
        if not self.is_up:
            log.warning("Redis answers again")
        was_lost, self.is_up = self._subscribed.is_set() or not self.is_up, True
        self._subscribed.set()
        if was_lost:
            await super().group_send(RESTORED, LayerRestored())

    async def _deliver(self, data: bytes) -> None:
        try:
            parcel = msgspec.msgpack.decode(data, type=Parcel)
        except msgspec.DecodeError:
            log.exception("a message of another process was not understood")
            return
        if not parcel.group:
            await super().send_many(parcel.channels, parcel.message)
        elif parcel.origin != self.process:
            await super().group_send(parcel.group, parcel.message)


def process_of(channel: str) -> str:
    return channel.partition(".")[2].partition("!")[0]


def is_ending() -> bool:
    """Return True if this task was cancelled. redis-py may have swallowed or replaced the CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _closed(ear: PubSub) -> None:
    with contextlib.suppress(*GONE):
        await ear.aclose()  # type: ignore[no-untyped-call]

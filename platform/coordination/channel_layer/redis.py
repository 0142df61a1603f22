"""The channel layer for several processes: `ProcessLayer` within each process, and Redis between them.

A process subscribes to only two Redis channels. While Redis is down, messages between processes go over PostgreSQL
(`bridge`). Every process always receives from both; only sending switches between them. Messages that Redis has not
acknowledged are sent again. If any may still have been lost, the group `RESTORED` is notified.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from django.db import connection
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from coordination.channel_layer.bridge import GROUPS, Bridge, Outbox
from coordination.channel_layer.messages import LayerMessage, LayerRestored
from coordination.channel_layer.process import CAPACITY, HOST_CAPACITY, RESTORED, ProcessLayer

log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S = 0.25  # seconds between attempts to reach Redis
# Redis counts as down after WAITS consecutive waits without a response. If this process pauses, it uses up only one.
WAIT_S, WAITS = 0.5, 3
ANSWER_S = WAIT_S * WAITS
NOTICED_S = ANSWER_S + 2 * WAIT_S  # within this time, all processes notice an outage of Redis
AVOID_S = 5.0  # messages go over Redis again once every process has been able to reach it for this long
TURN_S = 0.1  # pause between the bridge's last message and Redis's first
TELL_S = 1.0  # seconds between telling other processes that this one cannot reach Redis
AWAY = "away"  # the group for messages whose sender cannot reach Redis
GONE = (RedisError, OSError, TimeoutError)


class Parcel(msgspec.Struct, array_like=True):
    """A message between processes, for channels or a group.

    `origin`: the sending process, which has already delivered the message to its own members of the group.
    """

    origin: str
    channels: list[str]
    group: str
    message: LayerMessage


class RedisLayer(ProcessLayer):
    """A channel layer for several processes.

    `hosts` contains a single Redis address. All names in Redis start with `prefix`.
    """

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
        self.is_up = True  # False from a failure until Redis next delivers a message
        self._outbox = Outbox()
        self._batch: Sequence[tuple[str, bytes]] = ()  # the messages being published
        self._posted = asyncio.Event()
        self._subscribed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._redis: Any = None
        self._bridge: Bridge | None = None
        self._bridged = asyncio.Event()  # set while messages go over the bridge
        self._may_publish = asyncio.Event()
        self._may_publish.set()
        self._has_missed = False  # True if this process itself has failed to reach Redis since the bridge took over
        self._avoided_until = self._told_at = -math.inf

    @property
    def is_bridged(self) -> bool:
        """True while messages to other processes go through the database."""
        return self._bridged.is_set()

    async def new_channel(self, prefix: str = "specific.") -> str:
        """Create a channel. Unless Redis is down, wait until messages from other processes can reach it."""
        self._start()
        if self.is_up and not self._subscribed.is_set():
            await asyncio.wait([asyncio.ensure_future(self._subscribed.wait())], timeout=ANSWER_S)
        return await super().new_channel(prefix)

    async def send_many(self, channels: Iterable[str], message: LayerMessage) -> list[str]:
        """Send a message to channels in any process. Each other process receives it only once for all its channels.

        Return the channels that definitely did not receive it.
        """
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
            if not self._post(process, Parcel(self.process, names, "", message)):
                lost += names
        return lost

    async def group_send(self, group: str, message: LayerMessage) -> None:
        self._post(GROUPS, Parcel(self.process, [], group, message))
        await super().group_send(group, message)

    async def flush(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._redis is not None:
            with contextlib.suppress(*GONE):
                await self._redis.aclose(close_connection_pool=True)
        self._tasks, self._redis, self._bridge = [], None, None
        self._outbox.empty()
        self._subscribed.clear()
        self._bridged.clear()
        self._may_publish.set()
        self._has_missed = False
        await super().flush()

    def _start(self) -> None:
        if self._tasks:
            return
        # No retries, which would hide lost messages, and no timeouts for responses (see `patiently`).
        self._redis = Redis.from_url(self.address, retry=Retry(NoBackoff(), 0), socket_connect_timeout=ANSWER_S)
        work = [self._listen(), self._publish()]
        if connection.vendor == "postgresql":
            self._bridge = Bridge(self.process, deliver=self._deliver, recovered=self._bridge_recovered)
            work += [self._bridge.work(), self._return(self._bridge)]
        self._tasks = [asyncio.create_task(part) for part in work]

    def _post(self, to: str, parcel: Parcel) -> bool:
        """Queue a message for another process or for all processes. Return False if that is impossible."""
        self._start()
        data = msgspec.msgpack.encode(parcel)
        if self._bridge is not None and self.is_bridged and self._bridge.post(to, data):
            return True
        if not self.is_up or not self._outbox.put(to, data):
            return False
        self._posted.set()
        return True

    # Redis

    async def _publish(self) -> None:
        """Publish queued messages in batches, one round trip per batch."""
        while not is_ending():
            await self._posted.wait()
            await self._may_publish.wait()
            self._batch = self._outbox.take()
            if not self._outbox:
                self._posted.clear()
            try:
                await patiently(self._publish_batch(self._batch))
            except GONE as error:
                self._broke(error)
            self._batch = ()

    async def _publish_batch(self, batch: Sequence[tuple[str, bytes]]) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for to, data in batch:
                pipeline.publish(f"{self.prefix}.{to}", data)
            await pipeline.execute()

    def _broke(self, error: Exception) -> None:
        """After a failure of Redis, switch to the bridge and tell the other processes to switch as well.

        Without a bridge, messages are lost.
        """
        if self.is_up:
            log.warning("Redis is away: %s", error)
        self.is_up, self._has_missed = False, True
        self._avoid_redis()
        if self._bridge is not None and self.clock() - self._told_at > TELL_S:
            self._told_at = self.clock()
            self._post(GROUPS, Parcel(self.process, [], AWAY, LayerRestored()))

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
        """Deliver incoming messages. Raises a Redis error, or TimeoutError if Redis is silent for too long.

        After a silence, the process sends itself an empty message to test whether Redis delivers it.
        """
        mine = f"{self.prefix}.{self.process}"
        await patiently(ear.subscribe(mine, f"{self.prefix}.{GROUPS}"))
        was_up, silent = False, 0
        while not is_ending():
            message = await ear.get_message(timeout=WAIT_S)
            silent = silent + 1 if message is None else 0
            if silent > WAITS:
                raise TimeoutError("it passes nothing on")
            if was_up and not self.is_up:
                raise RedisConnectionError("it took no message")  # detected by `_publish`, which must try again
            if message is None or message["type"] != "message":
                if silent == 1 or (message and message["data"] == 2):  # now subscribed to both names
                    await patiently(self._redis.publish(mine, b""))
            elif message["data"]:
                await self._deliver(message["data"])
            elif not was_up:
                was_up = True
                await self._is_back()

    async def _is_back(self) -> None:
        if not self.is_up:
            log.warning("Redis answers again")
        was_lost, self.is_up = not self.is_up, True
        self._subscribed.set()
        if was_lost and (self._bridge is None or not self._bridge.is_up):
            await self._tell_restored()

    async def _deliver(self, data: bytes) -> None:
        try:
            parcel = msgspec.msgpack.decode(data, type=Parcel)
        except msgspec.DecodeError:
            log.exception("a message of another process was not understood")
            return
        if not parcel.group:
            await super().send_many(parcel.channels, parcel.message)
        elif parcel.origin == self.process:
            return
        elif parcel.group == AWAY:
            self._avoid_redis()
        else:
            await super().group_send(parcel.group, parcel.message)

    # While any process cannot reach Redis, all processes use the bridge, because they cannot know which messages it
    # misses.

    def _avoid_redis(self) -> None:
        """Send over the bridge for a while, starting with messages that Redis may not have delivered."""
        unsent, self._batch = [*self._batch, *self._outbox.empty()], ()
        self._avoided_until = self.clock() + AVOID_S
        if self._bridge is None:
            return
        if not self.is_bridged:
            log.warning("messages between processes go over the database")
        self._bridged.set()
        for to, data in unsent:
            self._bridge.post(to, data)

    async def _return(self, bridge: Bridge) -> None:
        """Switch back to Redis once all processes have been able to reach it for some time.

        New messages wait until the last ones have crossed the bridge, so that all of them arrive in order.
        """
        while True:
            await self._bridged.wait()
            await asyncio.sleep(NOTICED_S)
            if not self._has_missed:  # Redis accepted messages for a process that was not receiving them
                await self._tell_restored()
            while not self.is_up or self.clock() < self._avoided_until:  # noqa: ASYNC110 - a time has no event
                await asyncio.sleep(RETRY_S)
            self._may_publish.clear()
            self._bridged.clear()
            self._has_missed = False
            while bridge.has_unsent and not self.is_bridged:  # noqa: ASYNC110 - a bridge has no event for this
                await asyncio.sleep(TURN_S)
            await asyncio.sleep(TURN_S)
            self._may_publish.set()
            log.warning("messages between processes go over Redis again")

    async def _bridge_recovered(self) -> None:
        if self.is_bridged:
            await self._tell_restored()

    async def _tell_restored(self) -> None:
        await super().group_send(RESTORED, LayerRestored())


async def patiently(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return its result. Raises TimeoutError after ANSWER_S.

    Wait several times for a short while. A single long wait would also time out if this process itself had been paused.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(WAITS):
            done, _ = await asyncio.wait([task], timeout=WAIT_S)
            if done:
                return task.result()
        raise TimeoutError("it does not answer")
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=WAIT_S)


def process_of(channel: str) -> str:
    return channel.partition(".")[2].partition("!")[0]


def is_ending() -> bool:
    """Return True if this task was cancelled, even if redis-py swallowed or replaced the CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _closed(ear: PubSub) -> None:
    with contextlib.suppress(*GONE):
        await ear.aclose()  # type: ignore[no-untyped-call]

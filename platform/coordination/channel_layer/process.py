"""The channel layer between the sockets and hosts of a single process. For several processes, see `redis`.

The layers that ship with Channels drop sockets from groups after a day, scan all channels for each message, or let a
slow reader's queue grow without limit. In this layer, a channel exists until `forget` is called. Messages may be lost;
sockets, hosts and the protocol detect the loss.
"""

import asyncio
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from channels.exceptions import ChannelFull
from channels.layers import get_channel_layer

from coordination.channel_layer.messages import ChannelOverflowed, LayerMessage, ToHost, peer_of, size_of

# A page of the log has 64 messages totalling at most 1 MiB. Add a few rounds of broadcasts.
CAPACITY = 1_000  # messages queued for one socket
CAPACITY_BYTES = 32 * 1024 * 1024  # bytes of data: four messages of maximum length
EXPIRY_S = 60.0  # a socket with a message older than this has stopped reading
HOST_CAPACITY = 20_000  # messages queued for a host: 1,000 peers sending two a second for ten seconds
HOST_CAPACITY_BYTES = 256 * 1024 * 1024
HOST = "host."  # prefix of hosts' channels
SLICE = 32  # sockets served in a row before yielding to other tasks
RESTORED = "restored"  # the group that receives `LayerRestored`


class Undelivered(ChannelFull):
    """Raised for an undelivered message: the channel has no reader, is full, or cannot be reached."""


class Channel:
    """A reader's message queue. If `ends` is set, a queue that overflows closes for good and notifies its reader."""

    def __init__(self, *, capacity: int, capacity_bytes: int, ends: bool, clock: Callable[[], float]) -> None:
        self.capacity, self.capacity_bytes, self.ends, self.clock = capacity, capacity_bytes, ends, clock
        self._first: deque[Any] = deque()
        self._waiting: deque[tuple[float, LayerMessage]] = deque()
        self.bytes = 0  # total size of the queued messages
        self._is_over = False
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of queued messages, without those that the reader queued for itself with `put_first`."""
        return len(self._waiting)

    def put(self, message: LayerMessage) -> bool:
        """Append a message. Return False if the queue is full.

        If `ends` is set, the queue then drops all messages and accepts no more, so its reader must reconnect.
        """
        if self._is_over or self._is_full(message):
            self._overflow()
            return False
        self._waiting.append((self.clock(), message))
        self.bytes += size_of(message)
        self._arrived.set()
        return True

    def put_first(self, message: object) -> None:
        """Queue a message from the reader to itself, ahead of messages from others, even if the queue is full.

        The reader must limit the number of these messages.
        """
        self._first.append(message)
        self._arrived.set()

    async def get(self) -> Any:
        """Return the next message. Those queued with `put_first` come first. Cancelling this call loses no message."""
        while not self._first and not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        if self._first:
            return self._first.popleft()
        _, message = self._waiting.popleft()
        self._gone(message)
        return message

    def _gone(self, message: LayerMessage) -> None:
        self.bytes -= size_of(message)

    def _is_full(self, message: LayerMessage) -> bool:
        if not self._waiting:
            return False  # an empty queue accepts any message
        if len(self._waiting) >= self.capacity or self.bytes + size_of(message) > self.capacity_bytes:
            return True
        return self.ends and self.clock() - self._waiting[0][0] > EXPIRY_S

    def _overflow(self) -> None:
        if self.ends and not self._is_over:
            self._is_over = True
            self._waiting.clear()
            self.bytes = 0
            self.put_first(ChannelOverflowed())


class Inbox(Channel):
    """A host's message queue. When it is full, it drops the latest messages of the peer that takes up most of it.

    Each peer's rate is limited (`Allowances`), but a thousand peers together may send more than a host can handle.
    """

    def __init__(self, *, capacity: int, capacity_bytes: int, clock: Callable[[], float]) -> None:
        super().__init__(capacity=capacity, capacity_bytes=capacity_bytes, ends=False, clock=clock)
        self.dropped: Counter[str] = Counter()  # messages lost per peer since the last call of `told`
        self._counts: Counter[str] = Counter()
        self._sizes: Counter[str] = Counter()

    def put(self, message: LayerMessage) -> bool:
        """Append a message for the host and return True.

        Return False if the message is not for a host, or if the queue is full and the sender takes up most of it.
        """
        if not isinstance(message, ToHost):
            return False
        peer = peer_of(message)
        while self._is_full(message) and (most := max(self._counts, key=self._part)) != peer:
            if self._part(most) <= self._part(peer, message):
                break
            self._drop(most)
        if not super().put(message):
            self.dropped[peer] += 1
            return False
        self._counts[peer] += 1
        self._sizes[peer] += size_of(message)
        return True

    def told(self) -> Counter[str]:
        """Return how many messages each peer has lost since this method was last called."""
        dropped, self.dropped = self.dropped, Counter()
        return dropped

    def _part(self, peer: str, message: LayerMessage | None = None) -> float:
        messages, size = (1, size_of(message)) if message is not None else (0, 0)
        return max((self._counts[peer] + messages) / self.capacity, (self._sizes[peer] + size) / self.capacity_bytes)

    def _drop(self, peer: str) -> None:
        """Drop the peer's latest message. Search from the end, where a busy peer's messages are likely to be."""
        for place in range(len(self._waiting) - 1, -1, -1):
            message = self._waiting[place][1]
            if peer_of(message) == peer:
                del self._waiting[place]
                self._gone(message)
                self.dropped[peer] += 1
                return

    def _gone(self, message: LayerMessage) -> None:
        super()._gone(message)
        peer = peer_of(message)
        self._counts[peer] -= 1
        self._sizes[peer] -= size_of(message)
        if not self._counts[peer]:
            del self._counts[peer], self._sizes[peer]


def site_layer() -> "ProcessLayer":
    layer: Any = get_channel_layer()
    assert isinstance(layer, ProcessLayer)
    return layer


class ProcessLayer:
    """The channel layer of a single process. It passes messages by reference and never copies them."""

    extensions = ("groups", "flush")

    def __init__(
        self,
        *,
        capacity: int = CAPACITY,
        host_capacity: int = HOST_CAPACITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity, self.host_capacity, self.clock = capacity, host_capacity, clock
        self.process = uuid.uuid4().hex
        self.channels: dict[str, Channel] = {}
        self.groups: dict[str, set[str]] = {}

    async def new_channel(self, prefix: str = "specific.") -> str:
        """Create a channel in this process. Messages accumulate in it until `forget` is called."""
        name = f"{prefix}{self.process}!{uuid.uuid4().hex}"
        self.channel(name)
        return name

    def channel(self, name: str) -> Channel:
        if name not in self.channels:
            self.channels[name] = self._new(name)
        return self.channels[name]

    def inbox(self, name: str) -> Inbox:
        found = self.channel(name)
        assert isinstance(found, Inbox)
        return found

    def _new(self, name: str) -> Channel:
        if name.startswith(HOST):
            return Inbox(capacity=self.host_capacity, capacity_bytes=HOST_CAPACITY_BYTES, clock=self.clock)
        return Channel(capacity=self.capacity, capacity_bytes=CAPACITY_BYTES, ends=True, clock=self.clock)

    def forget(self, name: str) -> None:
        """Delete a channel that no longer has a reader."""
        self.channels.pop(name, None)
        for group in [group for group, names in self.groups.items() if name in names]:
            self._leave(group, name)

    async def receive(self, channel: str) -> Any:
        """Return a channel's next message.

        On cancellation, forget the channel, because Channels ends consumers by cancelling them.
        """
        try:
            return await self.channel(channel).get()
        except asyncio.CancelledError:
            self.forget(channel)
            raise

    async def send(self, channel: str, message: LayerMessage) -> None:
        """Send a message to one channel. Raises Undelivered if the channel definitely did not receive it."""
        if await self.send_many((channel,), message):
            raise Undelivered(channel)

    async def send_many(self, channels: Iterable[str], message: LayerMessage) -> list[str]:
        """Send a message to many channels. Return the channels that definitely did not receive it."""
        lost = []
        for number, channel in enumerate(channels, 1):
            if channel not in self.channels or not self.channels[channel].put(message):
                lost.append(channel)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return lost

    async def group_add(self, group: str, channel: str) -> None:
        self.groups.setdefault(group, set()).add(channel)

    async def group_discard(self, group: str, channel: str) -> None:
        self._leave(group, channel)

    def _leave(self, group: str, channel: str) -> None:
        names = self.groups.get(group, set())
        names.discard(channel)
        if not names:
            self.groups.pop(group, None)

    async def group_send(self, group: str, message: LayerMessage) -> None:
        await self.send_many(tuple(self.groups.get(group, ())), message)

    async def flush(self) -> None:
        self.channels, self.groups = {}, {}

"""This machine's uplink, shared by a process's data links: the order and pace in which they send (rules 18, 36)."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from peer_agent.protocol.messages import Message
from peer_agent.protocol.timing import BATCH_BYTES
from peer_agent.protocol.wire import Frame

CREDIT_S = 0.05  # a pause saves up this many seconds' worth of the rate
HELD_S = 0.5  # seconds' worth of the download limit that the system may buffer for one link ...
LEAST_HELD, MOST_HELD = 64 * 1024, 4 * 1024 * 1024  # ... and limits on that buffer in bytes
Body = TypeVar("Body", bound=Message | Frame | None)


class Bucket:
    """A rate limit in bytes per second; 0 means no limit.

    In t seconds it grants at most rate * (t + CREDIT_S) bytes plus one batch.
    """

    def __init__(self) -> None:
        self._rate = 0.0
        self._free_at = -math.inf

    @property
    def is_limited(self) -> bool:
        return self._rate > 0

    def pace(self, rate: float, now: float) -> None:
        """Change the rate. Bytes that were already granted still count toward the limit."""
        ahead = max(self._free_at - now, 0.0) * self._rate
        self._rate, self._free_at = rate, now + (ahead / rate if rate > 0 else 0.0)

    def free_at(self) -> float:
        return self._free_at if self._rate > 0 else -math.inf

    def take(self, size: int, now: float) -> None:
        if self._rate > 0:
            self._free_at = max(self._free_at, now - CREDIT_S) + size / self._rate


class Stream:
    """One sender on the uplink, with `planned` bytes. `done` is the fraction sent, used as its virtual time."""

    def __init__(self, uplink: "Uplink", planned: int) -> None:
        self._uplink, self.planned = uplink, max(planned, 1)
        self.done = 0.0

    async def turn(self, size: int) -> None:
        """Wait until this sender may send `size` bytes. Call it again only after writing these bytes to the socket."""
        await self._uplink.turn(self, size)


class Uplink:
    """Grants turns to senders in proportion to their planned bytes. Without a rate limit, no sender waits.

    Uses start-time fair queueing: the sender that has sent the smallest fraction goes first. A sender that was blocked
    by a full socket does not catch up later.
    """

    def __init__(self) -> None:
        self._paced, self._limited = Bucket(), Bucket()
        self._virtual = 0.0
        self._waiting: dict[Stream, tuple[float, int, asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_paced(self) -> bool:
        return self._paced.is_limited or self._limited.is_limited

    def pace(self, bytes_per_s: float) -> None:
        """Set the pace requested by the site, in bytes per second for all links together. 0 means no limit."""
        self._paced.pace(bytes_per_s, asyncio.get_running_loop().time())
        self._give()

    def limit(self, bytes_per_s: float) -> None:
        """Set the owner's limit in bytes per second, which applies in addition to the pace. 0 means no limit."""
        self._limited.pace(bytes_per_s, asyncio.get_running_loop().time())
        self._give()

    async def unpaced(self, size: int) -> None:
        """Wait until a bandwidth probe may send `size` bytes.

        Only the owner's limit applies. The site's pace does not, because a probe may show that the pace is too low.
        """
        now = asyncio.get_running_loop().time()
        self._limited.take(size, now)
        await asyncio.sleep(max(self._limited.free_at() - now, 0.0))

    def _free_at(self) -> float:
        return max(self._paced.free_at(), self._limited.free_at())

    def stream(self, planned: int) -> Stream:
        return Stream(self, planned)

    async def turn(self, stream: Stream, size: int) -> None:
        if not self.is_paced:
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting[stream] = (max(stream.done, self._virtual), size, granted)
        self._give()
        try:
            await granted
        finally:
            self._waiting.pop(stream, None)

    def _give(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._free_at() <= loop.time():
            self._grant(loop.time())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._free_at(), self._give) if self._waiting else None

    def _grant(self, now: float) -> None:
        stream = min(self._waiting, key=lambda stream: self._waiting[stream][0])
        self._virtual, size, granted = self._waiting.pop(stream)
        stream.done = self._virtual + size / stream.planned
        self._paced.take(size, now)
        self._limited.take(size, now)
        if not granted.done():
            granted.set_result(None)


UPLINK = Uplink()


class Downlink:
    """This machine's downlink. Delays reads so that senders stay within the owner's limit."""

    def __init__(self) -> None:
        self._bucket = Bucket()
        self.held = 0  # bytes that the system may buffer for one link; 0 until a limit is first set

    def limit(self, bytes_per_s: float) -> None:
        """Limit the read rate of all links and downloads together, in bytes per second. 0 means no limit."""
        self._bucket.pace(bytes_per_s, asyncio.get_running_loop().time())
        if bytes_per_s > 0 or self.held:
            most = HELD_S * bytes_per_s if bytes_per_s > 0 else MOST_HELD
            self.held = int(min(max(most, LEAST_HELD), MOST_HELD))

    async def came(self, size: int) -> None:
        """Count `size` bytes as read. Wait until the owner's limit allows more."""
        if self._bucket.is_limited:
            loop = asyncio.get_running_loop()
            self._bucket.take(size, loop.time())
            await asyncio.sleep(max(self._bucket.free_at() - loop.time(), 0.0))


DOWNLINK = Downlink()


def size_of(body: Message | Frame | None) -> int:
    """Return how many bytes of a body count toward the uplink's pace: a frame's payload, and 0 for a message."""
    return len(body.payload) if isinstance(body, Frame) else 0


def batch(bodies: Sequence[Body], start: int, most_bytes: int = BATCH_BYTES) -> Sequence[Body]:
    """Return the bodies to send together from index `start`: at most `most_bytes`, but at least one body. Batches are
    limited because a `drop` message cannot recall bytes already written to the socket.
    """
    size, stop = 0, start
    while stop < len(bodies) and (stop == start or size + size_of(bodies[stop]) <= most_bytes):
        size += size_of(bodies[stop])
        stop += 1
    return bodies[start:stop]


def batches(bodies: Sequence[Body], most_bytes: int = BATCH_BYTES) -> Iterator[Sequence[Body]]:
    start = 0
    while ready := batch(bodies, start, most_bytes):
        yield ready
        start += len(ready)


WINDOW_S = 5.0


class Traffic:
    """Counts bytes that this process has sent and received over links and downloads. Thread-safe."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._lock = threading.Lock()

    def add(self, *, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.received += received


TRAFFIC = Traffic()


class Rates:
    """Upload and download rates in megabits per second, over the last `WINDOW_S` seconds."""

    def __init__(self, traffic: Traffic = TRAFFIC) -> None:
        self._traffic = traffic
        self._marks: deque[tuple[float, int, int]] = deque()

    def read(self, now: float | None = None) -> tuple[float, float]:
        """Return the upload and download rates at monotonic time `now`. Call this about once a second."""
        now = time.monotonic() if now is None else now
        self._marks.append((now, self._traffic.sent, self._traffic.received))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()
        began, sent, received = self._marks[0]
        passed_s = now - began
        if passed_s <= 0:
            return 0.0, 0.0
        scale = 8 / 1e6 / passed_s
        return (self._traffic.sent - sent) * scale, (self._traffic.received - received) * scale

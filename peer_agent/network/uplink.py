"""The way out of this machine that all data links of a process share: who sends next, and how fast (rules 18, 36)."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from peer_agent.protocol.deadlines import BATCH_BYTES
from peer_agent.protocol.messages import Message
from peer_agent.protocol.wire import Frame

CREDIT_S = 0.05  # of the rate that a pause saves up
HELD_S = 0.5  # of a limit on the way in, which the system may hold for one link before it is read …
LEAST_HELD, MOST_HELD = 64 * 1024, 4 * 1024 * 1024  # … and bytes of it
Body = TypeVar("Body", bound=Message | Frame | None)


class Bucket:
    """An even rate, in bytes per second; 0: no limit. In any time t it gives rate * (t + CREDIT_S) and one batch."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._free_at = -math.inf

    @property
    def is_limited(self) -> bool:
        return self._rate > 0

    def pace(self, rate: float, now: float) -> None:
        """Another rate from now on, at which what went already is waited for."""
        ahead = max(self._free_at - now, 0.0) * self._rate
        self._rate, self._free_at = rate, now + (ahead / rate if rate > 0 else 0.0)

    def free_at(self) -> float:
        return self._free_at if self._rate > 0 else -math.inf

    def take(self, size: int, now: float) -> None:
        if self._rate > 0:
            self._free_at = max(self._free_at, now - CREDIT_S) + size / self._rate


class Stream:
    """One of those that share: bytes of which `planned` are to go. Its place in virtual time is the part that went."""

    def __init__(self, uplink: "Uplink", planned: int) -> None:
        self._uplink, self.planned = uplink, max(planned, 1)
        self.done = 0.0

    async def turn(self, size: int) -> None:
        """Wait until it may send so many bytes; asked again when these are in the socket."""
        await self._uplink.turn(self, size)


class Uplink:
    """Gives turns to whoever has bytes and room in its socket, in proportion to what each has planned.

    Fair queueing by start times: who has had the least of its share goes first, and what one could not take while
    its socket was full is not made up for. Without a rate nobody waits, and the system divides the link.
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
        """Send no faster than this, all links together; 0: as fast as they take it. What the site says."""
        self._paced.pace(bytes_per_s, asyncio.get_running_loop().time())
        self._give()

    def limit(self, bytes_per_s: float) -> None:
        """The same, as the machine's owner says: it holds beside any pace, also where nobody is asked."""
        self._limited.pace(bytes_per_s, asyncio.get_running_loop().time())
        self._give()

    async def unpaced(self, size: int) -> None:
        """Wait until so many bytes of a measure may go: its owner's limit holds, and no pace, which it may raise."""
        now = asyncio.get_running_loop().time()
        self._limited.take(size, now)
        await asyncio.sleep(max(self._limited.free_at() - now, 0.0))

    def _free_at(self) -> float:
        return max(self._paced.free_at(), self._limited.free_at())

    def stream(self, planned: int) -> Stream:
        """One more that shares, with so many bytes to send in all."""
        return Stream(self, planned)

    async def turn(self, stream: Stream, size: int) -> None:
        """Wait until this one may send so many bytes."""
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
        """To those whose turn it is; and again when the next may go."""
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
    """The way into this machine: what was read is answered for before more is read, so that the sender waits."""

    def __init__(self) -> None:
        self._bucket = Bucket()
        self.held = 0  # bytes that the system may hold for one link; 0: nothing was ever limited

    def limit(self, bytes_per_s: float) -> None:
        """Read no faster than this, all links and downloads together; 0: as fast as it comes."""
        self._bucket.pace(bytes_per_s, asyncio.get_running_loop().time())
        if bytes_per_s > 0 or self.held:
            most = HELD_S * bytes_per_s if bytes_per_s > 0 else MOST_HELD
            self.held = int(min(max(most, LEAST_HELD), MOST_HELD))

    async def came(self, size: int) -> None:
        """So many bytes were read: wait until more may be."""
        if self._bucket.is_limited:
            loop = asyncio.get_running_loop()
            self._bucket.take(size, loop.time())
            await asyncio.sleep(max(self._bucket.free_at() - loop.time(), 0.0))


DOWNLINK = Downlink()


def size_of(body: Message | Frame | None) -> int:
    """Bytes of it that count: those of its chunk."""
    return len(body.payload) if isinstance(body, Frame) else 0


def batch(bodies: Sequence[Body], start: int, most_bytes: int = BATCH_BYTES) -> Sequence[Body]:
    """What goes out at once from `start` on: up to `most_bytes`, but at least one; nothing at the end.

    More than `BATCH_BYTES` would be out of reach of a `drop`.
    """
    size, stop = 0, start
    while stop < len(bodies) and (stop == start or size + size_of(bodies[stop]) <= most_bytes):
        size += size_of(bodies[stop])
        stop += 1
    return bodies[start:stop]


def batches(bodies: Sequence[Body], most_bytes: int = BATCH_BYTES) -> Iterator[Sequence[Body]]:
    """All of them, cut into what goes out at once."""
    start = 0
    while ready := batch(bodies, start, most_bytes):
        yield ready
        start += len(ready)


# Bytes that this process has moved over links and downloads, counted where they go into and come out of sockets.

WINDOW_S = 5.0


class Traffic:
    """Two sums. Counted from the loop and from threads."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._lock = threading.Lock()

    def add(self, *, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.received += received


TRAFFIC = Traffic()


class Rates:
    """Megabits per second, up and down, over the last `WINDOW_S` seconds."""

    def __init__(self, traffic: Traffic = TRAFFIC) -> None:
        self._traffic = traffic
        self._marks: deque[tuple[float, int, int]] = deque()

    def read(self, now: float | None = None) -> tuple[float, float]:
        """The rates at `now`, a monotonic time; to be asked about once a second."""
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

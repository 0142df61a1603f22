"""Sends chunks: from a contributor to several reducers over one uplink (rule 18), and from a reducer to all
receivers.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence

from peer_agent.network.link import Connection, LinkLost, Refused, way_out
from peer_agent.network.uplink import UPLINK, Bucket, Stream, Uplink, batch, batches, size_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Message
from peer_agent.protocol.timing import BATCH_BYTES
from peer_agent.protocol.wire import Frame

LEAST_AHEAD = 2  # at least this many batches may wait for one reducer's socket ...
# ... or this fraction of the reducer's batches. This limits how far other reducers get ahead of a stalled one.
AHEAD = 0.1
TURN = 0.02  # one batch for each reducer makes up at most this fraction of all bytes
PATIENCE_S = 1.0  # how long other reducers wait for a reducer that has no room for its next batch


def interleave(queues: Mapping[PeerId, Sequence[int]]) -> Iterator[tuple[PeerId, int]]:
    """Yield pairs of a reducer and the index of its next batch. Deficit round robin weights reducers by their total
    bytes, so that all queues end at about the same time. `queues` holds each reducer's batch sizes in bytes.
    """
    totals = {peer: sum(sizes) for peer, sizes in queues.items() if sizes}
    most = max(totals.values(), default=0)
    quantum = max((max(queues[peer]) for peer in totals), default=0)
    deficit, index = dict.fromkeys(totals, 0), dict.fromkeys(totals, 0)
    waiting = list(totals)
    while waiting:
        for peer in waiting:
            sizes = queues[peer]
            deficit[peer] += quantum * totals[peer]  # in units of 1/most bytes, so that the deficit stays an integer
            while index[peer] < len(sizes) and sizes[index[peer]] * most <= deficit[peer]:
                deficit[peer] -= sizes[index[peer]] * most
                yield peer, index[peer]
                index[peer] += 1
        waiting = [peer for peer in waiting if index[peer] < len(queues[peer])]


def batch_bytes(chunks: Mapping[PeerId, Sequence[Frame]]) -> int:
    """Return the maximum size in bytes of a batch for one reducer.

    A round's first and last averages wait until the slowest uplink has sent one batch to every reducer, so batches stay
    small. With few reducers, larger batches save CPU time.
    """
    whole = sum(size_of(frame) for frames in chunks.values() for frame in frames)
    return min(BATCH_BYTES, int(TURN * whole / max(len(chunks), 1)))


async def send_chunks(
    connections: Mapping[PeerId, Connection],
    chunks: Mapping[PeerId, Sequence[Frame]],
    *,
    first: Mapping[PeerId, Message] | None = None,
    pace: float = 0.0,
    full_s: dict[PeerId, float] | None = None,
    patience_s: float = PATIENCE_S,
    uplink: Uplink = UPLINK,
) -> dict[PeerId, LinkLost | Refused]:
    """Send each reducer its `first` message and its chunks. Return the error of each reducer whose link failed.

    `pace` limits the total bytes per second; 0 means no limit. `full_s` accumulates the seconds for which each link
    accepted no data. If a reducer has no room for a batch within `patience_s`, the others stop waiting for it. If this
    coroutine is cancelled, it stops after the current batch.
    """
    bucket, loop = Bucket(), asyncio.get_running_loop()
    bucket.pace(pace, loop.time())
    said, most_bytes = first or {}, batch_bytes(chunks)
    cut = {peer: list(batches(frames, most_bytes)) for peer, frames in chunks.items()}
    lanes = {peer: _Lane(connections[peer], ready, said.get(peer), uplink) for peer, ready in cut.items()}
    waited_s = {} if full_s is None else full_s
    async with asyncio.TaskGroup() as writers:
        for peer, lane in lanes.items():
            writers.create_task(lane.run(peer, waited_s))
        for peer, index in interleave({peer: lane.sizes for peer, lane in lanes.items()}):
            await asyncio.sleep(max(bucket.free_at() - loop.time(), 0.0))
            bucket.take(lanes[peer].sizes[index], loop.time())
            await lanes[peer].grant(patience_s)
    return {peer: lane.lost for peer, lane in lanes.items() if lane.lost is not None}


async def send_frames(connection: Connection, frames: Sequence[Frame], uplink: Uplink = UPLINK) -> None:
    """Send frames over one link, sharing the uplink with other links. Raises LinkLost or Refused if the link ends."""
    stream = way_out(connection, uplink).stream(sum(map(size_of, frames)))
    for ready in batches(frames):
        await stream.turn(sum(map(size_of, ready)))
        await connection.send(*ready)


class _Lane:
    def __init__(
        self, connection: Connection, cut: Sequence[Sequence[Frame]], first: Message | None, uplink: Uplink
    ) -> None:
        self._connection, self._first, self._batches = connection, first, cut
        self.sizes = [sum(map(size_of, batch)) for batch in self._batches]
        self._stream = way_out(connection, uplink).stream(sum(self.sizes))
        self._granted = asyncio.Semaphore(0)
        self._room = asyncio.Semaphore(max(LEAST_AHEAD, int(AHEAD * len(cut))))
        self._on_its_own = False
        self.lost: LinkLost | Refused | None = None

    async def run(self, peer: PeerId, full_s: dict[PeerId, float]) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._first is not None:
                await self._connection.send(self._first)
            for frames, size in zip(self._batches, self.sizes, strict=True):
                await self._granted.acquire()
                await self._stream.turn(size)
                began = loop.time()
                await self._connection.send(*frames)
                full_s[peer] = full_s.get(peer, 0.0) + loop.time() - began
                self._room.release()
        except (LinkLost, Refused) as error:
            self.lost = error
            self._room.release()

    async def grant(self, patience_s: float) -> None:
        """Permit this reducer's lane to send one more batch. Wait up to `patience_s` for room in the lane."""
        if not self._on_its_own and self.lost is None:
            try:
                async with asyncio.timeout(patience_s):
                    await self._room.acquire()
            except TimeoutError:
                self._on_its_own = True
        self._granted.release()


class Outbox:
    """The averaged chunks that a reducer sends in one attempt, in order of completion.

    Each body is stored once, and each receiver has a cursor into the list (rule 35). A slow receiver does not delay the
    others. It costs only the memory for the bodies that its socket is sending.
    """

    def __init__(self, max_bytes: int, *, planned: int = 0, uplink: Uplink = UPLINK) -> None:
        """Create an empty outbox for up to `max_bytes`.

        A receiver's share of the uplink is in proportion to its `planned` bytes.
        """
        self.planned, self._uplink = planned or max_bytes, uplink
        self._bodies: list[Message | Frame | None] = []  # None in place of bodies no longer needed
        self._room = max_bytes
        self._closed = False
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._bodies)

    def begin_attempt(self, kept: Collection[int]) -> None:
        """Begin another attempt. Keep sending the spans in `kept` from earlier attempts, and drop all other chunks."""
        needed = [body if not isinstance(body, Frame) or body.span in kept else None for body in self._bodies]
        self._room += sum(map(size_of, self._bodies)) - sum(map(size_of, needed))
        self._bodies = needed

    def publish(self, body: Message | Frame) -> None:
        """Add a body for all receivers. Do nothing after `close`.

        Raises ValueError if there are more bytes than the plan averages.
        """
        if self._closed:
            return
        self._room -= size_of(body)
        if self._room < 0:
            raise ValueError("more averaged bytes than the plan has")
        self._bodies.append(body)
        self._wake()

    def close(self) -> None:
        """End the attempt and free its bodies. Receivers fetch any that they still lack from the log."""
        self._closed = True
        self._bodies.clear()
        self._wake()

    async def follow(self, connection: Connection, start: int = 0) -> int:
        """Send bodies from index `start` on, until `close`. Return the index of the next body.

        Raises LinkLost or Refused if the link ends.
        """
        cursor, stream = start, way_out(connection, self._uplink).stream(self.planned)
        while not self._closed:
            if cursor < len(self._bodies):
                cursor += await self._send(connection, stream, cursor)
            else:
                await self._news.wait()
        return cursor

    async def _send(self, connection: Connection, stream: Stream, cursor: int) -> int:
        """Send one batch. Return how many bodies it had, or 0 if the attempt ended before the batch was sent."""
        bodies = batch(self._bodies, cursor)
        await stream.turn(sum(map(size_of, bodies)))
        if self._closed:
            return 0
        needed = [body for body in self._bodies[cursor : cursor + len(bodies)] if body is not None]
        if needed:  # another attempt may have begun since
            await connection.send(*needed)
        return len(bodies)

    def _wake(self) -> None:
        # Replace the event, so that later waiters wait for the next change.
        news, self._news = self._news, asyncio.Event()
        news.set()

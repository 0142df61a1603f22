"""What a reducer gives out: every body exists once, and each receiver has a cursor into the one list (rule 35)."""

import asyncio
from collections.abc import Collection

from peer_agent.network.link import Connection
from peer_agent.network.own_link import way_out
from peer_agent.network.uplink import UPLINK, Stream, Uplink, batch, size_of
from peer_agent.protocol.messages import Message
from peer_agent.protocol.wire import Frame


class Outbox:
    """The averaged chunks of one attempt, in the order in which they were finished.

    A receiver that is slow has a cursor that is behind; it holds back nobody, and costs no memory beyond the
    bodies that its socket is taking. Not responsible for who receives, nor for what happens to those who are lost.
    """

    def __init__(self, max_bytes: int, *, planned: int = 0, uplink: Uplink = UPLINK) -> None:
        """`planned`: bytes to each receiver, by which it has its share of the uplink."""
        self.planned, self._uplink = planned or max_bytes, uplink
        self._bodies: list[Message | Frame | None] = []  # None: nobody needs it any more
        self._room = max_bytes
        self._closed = False
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """How many bodies there are."""
        return len(self._bodies)

    def begin_attempt(self, kept: Collection[int]) -> None:
        """What comes now is of another attempt. Of those before, the spans that are kept go on, and others no more."""
        needed = [body if not isinstance(body, Frame) or body.span in kept else None for body in self._bodies]
        self._room += sum(map(size_of, self._bodies)) - sum(map(size_of, needed))
        self._bodies = needed

    def publish(self, body: Message | Frame) -> None:
        """Give out one more; nothing after `close`. Raises ValueError beyond the bytes that the plan allows."""
        if self._closed:
            return
        self._room -= size_of(body)
        if self._room < 0:
            raise ValueError("more averaged bytes than the plan has")
        self._bodies.append(body)
        self._wake()

    def close(self) -> None:
        """The attempt is over: free everything. Whoever is behind asks the log."""
        self._closed = True
        self._bodies.clear()
        self._wake()

    async def follow(self, connection: Connection, start: int = 0) -> int:
        """Send everything from `start` on, also what is published meanwhile, until `close`.

        Returns how many were sent up to then, counted from the first of the list. Raises LinkLost, Refused.
        """
        cursor, stream = start, way_out(connection, self._uplink).stream(self.planned)
        while not self._closed:
            if cursor < len(self._bodies):
                cursor += await self._send(connection, stream, cursor)
            else:
                await self._news.wait()
        return cursor

    async def _send(self, connection: Connection, stream: Stream, cursor: int) -> int:
        """As many as go out at once; how many these were, and 0 where the attempt ended before its turn."""
        bodies = batch(self._bodies, cursor)
        await stream.turn(sum(map(size_of, bodies)))
        if self._closed:
            return 0
        needed = [body for body in self._bodies[cursor : cursor + len(bodies)] if body is not None]
        if needed:  # another attempt may have begun before its turn
            await connection.send(*needed)
        return len(bodies)

    def _wake(self) -> None:
        # A fresh event each time, so that a receiver that comes to wait later waits for what is later.
        news, self._news = self._news, asyncio.Event()
        news.set()

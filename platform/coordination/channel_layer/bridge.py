"""Messages between the site's processes over PostgreSQL, used while Redis is down.

A message is a row. Its recipients read it when a NOTIFY wakes them, or at the next poll. All processes always listen,
because another process may lose its connection to Redis first. Rows are deleted after a minute.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, LiteralString

import psycopg
from django.db import connection

GROUPS = "groups"  # the recipient of messages to all processes; a message to one process has its name
OUTBOX = 10_000  # most messages waiting to be sent
OUTBOX_BYTES = 64 * 1024 * 1024
BATCH = 256  # messages sent in one round trip
BATCH_BYTES = 4 * 1024 * 1024  # bytes of their data, unless a single message is longer
PAGE = 32  # rows read in one round trip
POLL_S = 1.0  # seconds between two reads without a NOTIFY
LIMIT_S = 3.0  # timeout for an answer from the database
RETRY_S, LONGEST_S = 0.25, 4.0  # seconds between attempts to connect; each wait is twice the last
GRACE_S = 5.0  # messages are queued this long without a connection, for example while the database restarts
FORGET_S = 15.0  # seconds between two deletions of old rows

log = logging.getLogger(__name__)

# The table of the model `Parcel`. A lock makes rows visible in the order of their ids, so a reader that has read one
# row has missed none before it. PostgreSQL lets transactions with a NOTIFY commit one by one anyway.
BEGIN: LiteralString = 'SET synchronous_commit = off; LISTEN "parcel.groups"; LISTEN "parcel.{process}"'
NEWEST: LiteralString = "SELECT coalesce(max(id), 0) FROM coordination_parcel"
SEND: LiteralString = """
    WITH held AS MATERIALIZED (SELECT pg_advisory_xact_lock(7246093318)),
    sent AS (
        INSERT INTO coordination_parcel (recipient, data, at)
        SELECT part.recipient, part.data, now() FROM held, unnest(%s::text[], %s::bytea[]) AS part (recipient, data)
        RETURNING id, recipient
    )
    SELECT pg_notify('parcel.' || recipient, max(id)::text) FROM sent GROUP BY recipient
"""
READ: LiteralString = """
    SELECT id, data FROM coordination_parcel WHERE id > %s AND recipient IN ('groups', %s) ORDER BY id LIMIT %s
"""
FORGET: LiteralString = "DELETE FROM coordination_parcel WHERE at < now() - interval '1 minute'"

Link = psycopg.AsyncConnection[Any]


class Outbox:
    """A bounded queue of messages to other processes, as pairs of a recipient and data."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, to: str, data: bytes) -> bool:
        """Append a message. Return False if the queue is full."""
        if len(self._waiting) >= OUTBOX or self._bytes > OUTBOX_BYTES:
            return False
        self._waiting.append((to, data))
        self._bytes += len(data)
        return True

    def take(self) -> list[tuple[str, bytes]]:
        """Remove and return the oldest messages that fit into one batch."""
        taken: list[tuple[str, bytes]] = []
        size = 0
        while self._waiting and len(taken) < BATCH and (not taken or size + len(self._waiting[0][1]) <= BATCH_BYTES):
            taken.append(self._waiting.popleft())
            size += len(taken[-1][1])
        self._bytes -= size
        return taken

    def empty(self) -> list[tuple[str, bytes]]:
        """Remove and return all messages."""
        taken, self._waiting, self._bytes = list(self._waiting), deque(), 0
        return taken


class Bridge:
    """A process's own connection to the table of messages.

    `deliver` receives the data of each message for this process. `recovered` is called when a lost connection is back,
    because messages may have been lost.
    """

    def __init__(
        self,
        process: str,
        *,
        deliver: Callable[[bytes], Awaitable[None]],
        recovered: Callable[[], Awaitable[None]],
    ) -> None:
        self.process, self._deliver, self._recovered = process, deliver, recovered
        self._parameters = parameters()
        self._outbox = Outbox()
        self._woken = asyncio.Event()
        self.is_up = self._is_sending = False
        self._accepts_until = time.monotonic() + GRACE_S
        self._last = math.inf  # id of the last row read; infinite before the first connection
        self._forgot_at = -math.inf

    @property
    def has_unsent(self) -> bool:
        """True while messages are queued or being sent."""
        return bool(self._outbox) or self._is_sending

    def post(self, to: str, data: bytes) -> bool:
        """Queue a message. Return False if the queue is full, or if the database has been down for too long."""
        if time.monotonic() > self._accepts_until or not self._outbox.put(to, data):
            return False
        self._woken.set()
        return True

    async def work(self) -> None:
        """Send and read messages until cancelled. Reconnect when the connection fails."""
        wait_s = RETRY_S
        while True:
            link: Link | None = None
            try:
                async with asyncio.timeout(LIMIT_S):
                    link = await psycopg.AsyncConnection.connect(**self._parameters)
                await self._begin(link)
                wait_s = RETRY_S
                while True:
                    await self._serve(link)
            except (psycopg.Error, OSError, TimeoutError) as error:
                self._broke(error)
            finally:
                if link is not None:
                    await link.close()
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_S)

    async def _begin(self, link: Link) -> None:
        link.add_notify_handler(lambda _: self._woken.set())
        await _ask(link, BEGIN.replace("{process}", self.process))
        ((newest,),) = await _ask(link, NEWEST)
        was_up = self._last < math.inf
        self._last = min(self._last, newest)  # in a restored database, the newest may be older than before
        if time.monotonic() > self._accepts_until:
            self._outbox.empty()
        self.is_up, self._accepts_until = True, math.inf
        if was_up:
            log.warning("messages can go over the database again")
            await self._recovered()

    def _broke(self, error: Exception) -> None:
        if self.is_up:
            log.warning("messages cannot go over the database: %s", str(error) or "it does not answer")
            self._accepts_until = time.monotonic() + GRACE_S
        self.is_up = self._is_sending = False

    async def _serve(self, link: Link) -> None:
        """Send a batch, read a page and wait until there is more to do. Messages that cannot be sent are lost."""
        self._woken.clear()
        if batch := self._outbox.take():
            self._is_sending = True
            await _ask(link, SEND, ([to for to, _ in batch], [data for _, data in batch]))
            self._is_sending = False
        rows = await _ask(link, READ, (self._last, self.process, PAGE))
        for number, data in rows:
            self._last = number
            await self._deliver(data)
        if time.monotonic() - self._forgot_at > FORGET_S:
            await _ask(link, FORGET)
            self._forgot_at = time.monotonic()
        if len(rows) < PAGE and not self._outbox:
            await self._rest(link)

    async def _rest(self, link: Link) -> None:
        """Wait until a message is posted, the database sends a notification, or the next poll is due."""
        loop, number = asyncio.get_running_loop(), link.fileno()
        loop.add_reader(number, self._woken.set)
        try:
            async with asyncio.timeout(POLL_S):
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(number)


async def _ask(link: Link, query: LiteralString, values: tuple[Any, ...] = ()) -> list[Any]:
    async with asyncio.timeout(LIMIT_S):
        answer = await link.execute(query, values or None, binary=bool(values))  # binary allows one statement only
        return await answer.fetchall() if answer.description else []


def parameters() -> dict[str, Any]:
    """Return psycopg's arguments for a connection to the site's database, without those that only Django uses."""
    found: dict[str, Any] = connection.get_connection_params()
    return {name: value for name, value in found.items() if name not in ("context", "cursor_factory")} | {
        "autocommit": True
    }

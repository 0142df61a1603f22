"""Messages between the site's processes over PostgreSQL, used while Redis is down.

Each message is a row in a table. Recipients read it when a NOTIFY wakes them, or else at their next poll. All processes
listen all the time, because another process may be the first to lose its connection to Redis. Rows are deleted after a
minute.
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

GROUPS = "groups"  # the recipient of messages to all processes; any other recipient is the name of a process
OUTBOX = 10_000  # maximum number of messages waiting to be sent
OUTBOX_BYTES = 64 * 1024 * 1024
BATCH = 256  # messages sent in one round trip
BATCH_BYTES = 4 * 1024 * 1024  # bytes of data in a batch, unless a single message is longer
PAGE = 32  # rows read per round trip
POLL_S = 1.0  # seconds between reads when there is no NOTIFY
LIMIT_S = 3.0  # timeout for a response from the database
RETRY_S, LONGEST_S = 0.25, 4.0  # seconds between connection attempts, doubling each time
GRACE_S = 5.0  # how long messages are queued without a connection, such as while the database restarts
FORGET_S = 15.0  # seconds between deletions of old rows

log = logging.getLogger(__name__)

# Queries on the table of the model `Parcel`. A lock makes rows visible in the order of their ids, so a reader that has
# seen one row has missed none before it. The lock costs little, because PostgreSQL commits transactions with a NOTIFY
# one by one in any case.
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
    """A bounded queue of messages to other processes, as (recipient, data) pairs."""

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
        """Remove and return the oldest messages, as many as fit into one batch."""
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
    """A process's own connection to the message table.

    `deliver` is called with the data of each message for this process. `recovered` is called when a lost connection is
    restored, because messages may have been lost in between.
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
        self._last = math.inf  # id of the last row read; infinity before the first connection
        self._forgot_at = -math.inf

    @property
    def has_unsent(self) -> bool:
        """True while any messages are queued or being sent."""
        return bool(self._outbox) or self._is_sending

    def post(self, to: str, data: bytes) -> bool:
        """Queue a message. Return False if the queue is full or the database has been down too long."""
        if time.monotonic() > self._accepts_until or not self._outbox.put(to, data):
            return False
        self._woken.set()
        return True

    async def work(self) -> None:
        """Send and read messages until cancelled. Reconnect whenever the connection fails."""
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
        self._last = min(self._last, newest)  # in a restored database, ids may have gone back
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
        """Send a batch, read a page, and wait until there is more to do. Messages that cannot be sent are lost."""
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
        """Wait until a message is posted, a notification arrives from the database, or the next poll is due."""
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
        answer = await link.execute(query, values or None, binary=bool(values))  # binary allows only one statement
        return await answer.fetchall() if answer.description else []


def parameters() -> dict[str, Any]:
    """Return psycopg's connection arguments for the site's database, without those that only Django uses."""
    found: dict[str, Any] = connection.get_connection_params()
    return {name: value for name, value in found.items() if name not in ("context", "cursor_factory")} | {
        "autocommit": True
    }

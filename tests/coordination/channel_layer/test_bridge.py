"""Messages between processes over PostgreSQL: complete, in order, bounded, and deleted after a minute."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from coordination.channel_layer import bridge
from coordination.channel_layer.bridge import GROUPS, Bridge, Outbox
from coordination.models import Parcel
from coordination.threads import in_thread
from tests.coordination.engines import PATIENCE_S, fresh_database

SENDERS, EACH = 3, 400


@pytest.fixture
def postgresql(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_database("postgresql", request, tmp_path) as url:
        yield url


class Process:
    """A process of the site, with the messages that it has received."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        self.recoveries = 0
        self.bridge = Bridge(name, deliver=self.received.put, recovered=self._recovered)

    async def _recovered(self) -> None:
        self.recoveries += 1

    async def next(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.received.get()


@asynccontextmanager
async def processes(count: int) -> AsyncIterator[list[Process]]:
    """Yield processes that can hear one another already."""
    found = [Process(f"{number:032x}") for number in range(count)]
    tasks = [asyncio.create_task(process.bridge.work()) for process in found]
    async with asyncio.timeout(PATIENCE_S):
        while not all(process.bridge.is_up for process in found):  # noqa: ASYNC110 - a bridge has no event for this
            await asyncio.sleep(0.01)
    yield found
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_messages_reach_their_recipients_alone(postgresql: str) -> None:
    async with processes(3) as (first, second, third):
        first.bridge.post(second.name, b"to the second")
        first.bridge.post(GROUPS, b"to all")
        second.bridge.post(first.name, b"back")
        assert [await second.next() for _ in range(2)] == [b"to the second", b"to all"]
        assert await third.next() == b"to all"
        assert {await first.next() for _ in range(2)} == {b"to all", b"back"}
        assert all(process.received.empty() for process in (first, second, third))


async def test_nothing_is_lost_doubled_or_out_of_order(postgresql: str) -> None:
    async with processes(SENDERS + 1) as (*senders, reader):
        for number in range(EACH):
            for sender in senders:
                assert sender.bridge.post(reader.name, f"{sender.name} {number}".encode())
            await asyncio.sleep(0.0005)
        received = [(await reader.next()).decode().split() for _ in range(SENDERS * EACH)]
        assert reader.received.empty()
    assert Counter(map(tuple, received)).most_common(1)[0][1] == 1
    for sender in senders:
        assert [int(number) for name, number in received if name == sender.name] == list(range(EACH))


async def test_a_process_does_not_read_what_is_older_than_itself(postgresql: str) -> None:
    await in_thread(Parcel.objects.create)(recipient=GROUPS, data=b"old")
    async with processes(2) as (first, second):
        first.bridge.post(GROUPS, b"new")
        assert await second.next() == b"new"


async def test_a_long_message_and_many_of_them(postgresql: str) -> None:
    words = [bytes([number]) * 2_000_000 for number in range(5)]
    async with processes(2) as (first, second):
        for part in words:
            assert first.bridge.post(second.name, part)
        assert [await second.next() for _ in words] == words


async def test_polling_suffices_if_notifications_are_lost(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "SEND", bridge.SEND.replace("pg_notify", "concat"))
    async with processes(2) as (first, second):
        first.bridge.post(second.name, b"unannounced")
        assert await second.next() == b"unannounced"


async def test_old_rows_are_deleted(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "FORGET_S", 0.0)
    for age_s in (61, 50):
        at = timezone.now() - timedelta(seconds=age_s)
        await in_thread(Parcel.objects.create)(recipient=GROUPS, data=b"", at=at)
    async with processes(1):
        async with asyncio.timeout(PATIENCE_S):
            while await in_thread(Parcel.objects.count)() > 1:  # noqa: ASYNC110 - rows have no event to wait for
                await asyncio.sleep(0.01)
    assert timezone.now() - (await in_thread(Parcel.objects.get)()).at > timedelta(seconds=50)


# Without a server


def test_the_queries_are_about_the_table_of_the_model() -> None:
    table = Parcel._meta.db_table
    assert all(f" {table}" in query for query in (bridge.NEWEST, bridge.SEND, bridge.READ, bridge.FORGET))
    assert {field.name for field in Parcel._meta.fields} == {"id", "recipient", "data", "at"}


def test_outbox_is_bounded_in_messages_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "OUTBOX", 3)
    monkeypatch.setattr(bridge, "OUTBOX_BYTES", 100)
    few, long = Outbox(), Outbox()
    assert [few.put("a", b"") for _ in range(4)] == [True, True, True, False]
    assert [long.put("a", bytes(101)) for _ in range(2)] == [True, False]
    assert long.take() == [("a", bytes(101))]
    assert long.put("a", b"there is room again")


def test_batches_are_bounded_and_one_message_always_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "BATCH", 2)
    monkeypatch.setattr(bridge, "BATCH_BYTES", 10)
    outbox = Outbox()
    for size in (20, 6, 4, 1, 1, 1):
        outbox.put("a", bytes(size))
    batches = []
    while outbox:
        batches.append([len(data) for _, data in outbox.take()])
    assert batches == [[20], [6, 4], [1, 1], [1]]

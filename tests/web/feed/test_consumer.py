"""The feed's socket: who is admitted, what the site sends, and what a watcher may send, on both channel layers."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.db import OperationalError
from django.test import Client

from accounts.deactivation import close_account
from accounts.models import Person
from coordination.channel_layer.messages import RunMoved, watchers_of
from coordination.threads import in_thread
from runs.lifecycle.membership import add_member, remove_member
from runs.models import Run
from server.asgi import sockets
from tests.coordination.engines import PATIENCE_S, fresh_database
from tests.coordination.example_run import Example, example_run
from tests.runs.factories import committed
from web.feed import admission, consumer, watch
from web.feed.live import BEAT, Live, look

communicator: Any = ApplicationCommunicator  # asgiref's testing module has no types
routes = sockets
feed = URLRouter(routes)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


@pytest.fixture(autouse=True)
def no_look_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the feed be updated only by messages, so that no test depends on the clock."""
    monkeypatch.setattr(watch, "LOOK_S", 2 * PATIENCE_S)
    monkeypatch.setattr(watch, "REST_S", 0.0)
    monkeypatch.setattr(watch, "RESTS", 0)


class Watcher:
    def __init__(self, run: Run, query: bytes = b"", /, **headers: str) -> None:
        named = {"host": "localhost", **headers}
        scope = {
            "type": "websocket",
            "path": f"/ws/runs/{run.slug}/",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "query_string": query,
            "subprotocols": [],
            "client": ("192.0.2.7", 1),
        }
        self.end = communicator(feed, scope)

    async def connect(self) -> bool:
        await self.end.send_input({"type": "websocket.connect"})
        return bool((await self.event())["type"] == "websocket.accept")

    async def event(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.end.receive_output(PATIENCE_S)
        return found

    async def message(self) -> dict[str, Any]:
        """Return the next message, past any beats."""
        while (text := (await self.event())["text"]) == BEAT:
            pass
        found: dict[str, Any] = json.loads(text)
        return found

    async def say(self, text: str) -> None:
        await self.end.send_input({"type": "websocket.receive", "text": text})

    async def leave(self) -> None:
        await self.end.send_input({"type": "websocket.disconnect", "code": 1001})
        await self.end.wait(PATIENCE_S)


@asynccontextmanager
async def watching(run: Run, query: bytes = b"", /, **headers: str) -> AsyncIterator[Watcher]:
    watcher = Watcher(run, query, **headers)
    assert await watcher.connect()
    try:
        yield watcher
    finally:
        await watcher.leave()


async def a_step(example: Example, layer: Any, loss: float) -> None:
    await in_thread(committed)(example.run, (example.teo.machine, 3), (example.noor.machine, 1), loss=loss)
    await layer.group_send(watchers_of(example.run.run_id), RunMoved())


async def test_picture_first_and_then_what_changed(example: Example, layer: Any) -> None:
    async with watching(example.run) as watcher:
        first = await watcher.message()
        assert (first["whole"], first["chart"]["add"]) == (True, [])
        await a_step(example, layer, 5.0)
        second = await watcher.message()
        assert (second["whole"], second["seq"]) == (False, first["seq"] + 1)
        now = await in_thread(look)(example.run.pk)
        assert now is not None
        assert {**first["parts"], **second["parts"]} == now.parts
        assert second["chart"]["add"] == now.chart["points"]
        assert "written" not in second["parts"], "only what has changed is sent"
        assert re.findall(r'data-person="(\w+)"', second["parts"]["leaderboard"])[:2] == ["Teo", "Noor"]


async def test_a_step_sends_one_point_and_not_the_curve(example: Example, layer: Any) -> None:
    async with watching(example.run) as watcher:
        await watcher.message()
        for step in range(1, 4):
            await a_step(example, layer, 8.0 - step)
            message = await watcher.message()
            assert (message["chart"]["from"], len(message["chart"]["add"])) == (step - 1, 1)


async def test_all_who_watch_share_one_look(example: Example, layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def counted_look(run: UUID, language: str, before: Live | None) -> Any:
        looks.append(run)
        return look(run, language, before)

    monkeypatch.setattr(watch, "look", counted_look)
    async with watching(example.run) as one, watching(example.run) as other:
        assert await one.message() == await other.message()
        await a_step(example, layer, 5.0)
        assert await one.message() == await other.message()
    assert len(looks) == 2


async def test_each_language_that_is_watched_has_a_picture(example: Example, layer: Any) -> None:
    async with (
        watching(example.run) as program,
        watching(example.run, b"language=bn") as reader,
        watching(example.run, b"language=xx") as stranger,
    ):
        told = [(await each.message())["parts"]["head"] for each in (program, reader, stranger)]
        assert told[0] == told[2] != told[1]
        bengali = await in_thread(look)(example.run.pk, "bn")
        assert bengali is not None
        assert told[1] == bengali.parts["head"]
        assert set(watch._watches) == {(example.run.pk, "en"), (example.run.pk, "bn")}
        await a_step(example, layer, 5.0)
        assert "ধাপ 1 / " in (await reader.message())["parts"]["head"]
        assert "Step 1 of " in (await program.message())["parts"]["head"]


async def test_without_a_word_of_the_host_it_looks_by_itself(
    example: Example, layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.05)
    async with watching(example.run) as watcher:
        await watcher.message()
        await in_thread(committed)(example.run, (example.teo.machine, 3))
        assert "Step 1 of " in (await watcher.message())["parts"]["head"]


async def test_beats_show_that_site_and_database_answer(
    example: Example, layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database is down there are no beats, so the page does not go on saying that it is live."""
    monkeypatch.setattr(watch, "LOOK_S", 0.05)
    monkeypatch.setattr(watch, "BEAT_S", 0.1)
    down = threading.Event()

    def failing_look(*arguments: Any) -> Any:
        if down.is_set():
            raise OperationalError
        return look(*arguments)

    monkeypatch.setattr(watch, "look", failing_look)
    async with watching(example.run) as watcher:
        await watcher.message()
        for _ in range(3):
            assert (await watcher.event())["text"] == BEAT
        down.set()
        await asyncio.sleep(0.3)
        while not await watcher.end.receive_nothing(0.3):
            assert (await watcher.event())["text"] == BEAT, "it was under way"
        down.clear()
        assert (await watcher.event())["text"] == BEAT


async def test_a_held_out_loss_comes_when_it_is_known(
    example: Example, layer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.05)
    async with watching(example.run) as watcher:
        first = await watcher.message()
        assert first["chart"]["heldout"] == []
        await in_thread(example.run.snapshots.update)(heldout_loss=6.125)
        message = await watcher.message()
        ((step, _, loss),) = message["chart"]["heldout"]
        assert (step, loss) == (0, 6.125)
        assert "6.12" in message["parts"]["loss"]


async def test_again_is_answered_with_the_picture(example: Example, layer: Any) -> None:
    async with watching(example.run) as watcher:
        first = await watcher.message()
        await watcher.say("again")
        assert await watcher.message() == first


@pytest.mark.parametrize("words", [["hello"], [""], ["x" * 100_000], ["again"] * (consumer.AGAIN_BURST + 1)])
async def test_whoever_says_something_else_or_too_much_is_left(example: Example, layer: Any, words: list[str]) -> None:
    async with watching(example.run) as watcher:
        for word in words:
            await watcher.say(word)
        while (event := await watcher.event())["type"] == "websocket.send":
            pass
        assert (event["type"], event["code"]) == ("websocket.close", consumer.NOT_UNDERSTOOD)


async def test_a_slow_socket_gets_a_picture_for_what_it_missed(example: Example, layer: Any) -> None:
    subscription = watch.subscribe(example.run.pk)
    other = watch.subscribe(example.run.pk)
    for loss in range(watch.WAITING + 2):
        await other.next()
        await a_step(example, layer, float(loss + 1))
    await other.next()
    waiting = [json.loads(await subscription.next() or "") for _ in range(subscription._waiting.qsize())]
    assert waiting[0]["whole"]
    assert waiting[0]["seq"] > watch.WAITING
    now = await in_thread(look)(example.run.pk)
    assert now is not None
    assert dict(item for message in waiting for item in message["parts"].items()) == now.parts
    await watch.unsubscribe(subscription)
    await watch.unsubscribe(other)


async def test_nobody_looks_once_all_have_left(example: Example, layer: Any) -> None:
    async with watching(example.run) as watcher:
        await watcher.message()
        assert (example.run.pk, "en") in watch._watches
    assert watch._watches == {}
    assert not admission._sockets
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("watch")] == []


async def test_a_run_that_becomes_private_is_asked_for_anew(example: Example, layer: Any) -> None:
    async with watching(example.run) as watcher:
        await watcher.message()
        await in_thread(Run.objects.filter(pk=example.run.pk).update)(visibility="private")
        await layer.group_send(watchers_of(example.run.run_id), RunMoved())
        assert (await watcher.event())["code"] == consumer.OVER
    assert not await Watcher(example.run).connect()


class TestWhoLosesTheRun:
    @pytest.fixture(autouse=True)
    def asked_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(consumer, "ASK_S", 0.02)

    @pytest.mark.parametrize("name", ["removed", "logged out", "closed"])
    async def test_their_socket_ends(self, example: Example, layer: Any, name: str) -> None:
        cookie = await in_thread(let_in)(example.run, "Noor")
        other = await in_thread(cookie_of)("Amina")
        async with watching(example.run, cookie=other) as stays, watching(example.run, cookie=cookie) as watcher:
            assert (await watcher.message())["whole"] is (await stays.message())["whole"] is True
            await in_thread(shut_out)(example.run, "Noor", name, cookie)
            while (event := await watcher.event())["type"] == "websocket.send":
                pass
            assert (event["type"], event["code"]) == ("websocket.close", consumer.OVER)
            await stays.say("again")
            assert (await stays.message())["whole"]
        assert not await Watcher(example.run, cookie=cookie).connect()

    async def test_who_may_still_see_it_stays_while_the_database_is_away(
        self, example: Example, layer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = asyncio.Event()

        def away(_: Any) -> None:
            loop.call_soon_threadsafe(asked.set)
            raise OperationalError

        loop = asyncio.get_running_loop()
        cookie = await in_thread(let_in)(example.run, "Noor")
        async with watching(example.run, cookie=cookie) as watcher:
            await watcher.message()
            monkeypatch.setattr(consumer, "visible_run", away)
            async with asyncio.timeout(PATIENCE_S):
                await asked.wait()
            await watcher.say("again")
            assert (await watcher.message())["whole"]


def let_in(run: Run, name: str) -> str:
    Run.objects.filter(pk=run.pk).update(visibility="private")
    add_member(run=run, name=name)
    return cookie_of(name)


def shut_out(run: Run, name: str, how: str, cookie: str) -> None:
    if how == "removed":
        remove_member(member=run.members.get(person__username=name))
    elif how == "closed":
        close_account(person=Person.objects.get(username=name))
    else:
        browser = Client()
        browser.cookies["sessionid"] = cookie.partition("=")[2]
        browser.post("/logout/")


class TestTheDoor:
    async def test_no_run(self, example: Example, layer: Any) -> None:
        assert not await Watcher(Run(slug="nothing")).connect()

    @pytest.mark.parametrize(
        ("headers", "may"),
        [
            ({"origin": "http://localhost"}, True),
            ({"origin": "http://localhost:8000", "host": "localhost:8000"}, True),
            ({"origin": "http://127.0.0.1:8000"}, True),  # the public address in the settings
            ({"origin": "http://localhost:8000"}, False),
            ({"origin": "http://elsewhere.example"}, False),
            ({"origin": "null"}, False),
            ({"origin": "http://elsewhere.example", "host": "elsewhere.example"}, False),
        ],
    )
    async def test_only_pages_of_this_site(
        self, example: Example, layer: Any, headers: dict[str, str], may: bool
    ) -> None:
        watcher = Watcher(example.run, **headers)
        assert await watcher.connect() is may
        await watcher.leave() if may else None

    async def test_an_address_has_so_many_sockets(self, example: Example, layer: Any, settings: Any) -> None:
        settings.PEOPLE_PER_ADDRESS = 1
        async with watching(example.run):
            assert not await Watcher(example.run).connect()
        async with watching(example.run):
            pass

    async def test_who_is_logged_in_counts_for_themselves(
        self, example: Example, layer: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.PEOPLE_PER_ADDRESS = 0
        monkeypatch.setattr(admission, "MOST_OF_PERSON", 1)
        assert not await Watcher(example.run).connect()
        teo, amina = [await in_thread(cookie_of)(name) for name in ("Teo", "Amina")]
        async with watching(example.run, cookie=teo), watching(example.run, cookie=amina):
            assert not await Watcher(example.run, cookie=teo).connect()


def cookie_of(name: str) -> str:
    client = Client()
    client.force_login(Person.objects.get(username=name))
    return f"sessionid={client.cookies['sessionid'].value}"

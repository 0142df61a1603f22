"""Readers whose browser is old, or asleep, or whose socket died without a word: the page goes on."""

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from playwright.sync_api import Browser, WebSocketRoute

from tests.end_to_end.rig.browser import LIVE, Reader, chromium
from tests.end_to_end.rig.swarm import Swarm
from tests.end_to_end.test_live_page import RECORDER

# What browsers learned after those that the front end is built for (frontend/vite.config.ts), three years and more ago.
LEARNED_LATER = """
  const forget = (holder, names) => names.forEach((name) => holder && delete holder[name]);
  forget(Array, ["fromAsync"]);
  forget(Array.prototype, ["toSorted", "toReversed", "toSpliced", "with"]);
  forget(Object, ["groupBy"]);
  forget(Map, ["groupBy"]);
  forget(Promise, ["withResolvers", "try"]);
  forget(Set.prototype, ["union", "intersection", "difference", "symmetricDifference", "isSubsetOf", "isSupersetOf"]);
  forget(globalThis.Iterator?.prototype, ["map", "filter", "take", "drop", "flatMap", "reduce", "toArray", "some"]);
  forget(String.prototype, ["isWellFormed", "toWellFormed"]);
  forget(RegExp, ["escape"]);
  forget(URL, ["canParse", "parse"]);
  forget(AbortSignal, ["any"]);
  forget(Document.prototype, ["startViewTransition"]);
  forget(Element.prototype, ["checkVisibility", "setHTMLUnsafe", "getHTML", "moveBefore"]);
  forget(globalThis, ["Iterator", "navigation", "scheduler", "CloseWatcher", "requestIdleCallback", "Temporal"]);
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, english: str) -> Iterator[tuple[Swarm, Browser]]:
    """A run that one volunteer works for, and a browser."""
    with Swarm(tmp_path_factory.mktemp("away")) as swarm, chromium() as browser:
        swarm.start_site()
        amina = swarm.sign_up("Amina")
        swarm.open_run(amina, english, trainers=1, steps=100_000)
        swarm.start_agent("amina", token=swarm.token_of(amina))
        swarm.wait_for_step(1)
        yield swarm, browser


def watch(swarm: Swarm, reader: Reader) -> Reader:
    """The run's page, live, with the recorder running."""
    reader.page.goto(f"{swarm.url}/runs/{swarm.slug}/")
    reader.page.wait_for_selector(LIVE, state="attached")
    reader.page.evaluate(RECORDER)
    return reader


def is_up_to_date(swarm: Swarm, reader: Reader) -> None:
    """It shows the step that there is now, by itself, and nothing went wrong in it."""
    reader.wait_for(f"window.seen.at(-1).step >= {swarm.facts()['step']}")
    assert reader.page.evaluate("window.mark") == "still the same page"
    assert reader.faults == []


def moves(swarm: Swarm, reader: Reader) -> None:
    """Up to date, and two steps later again."""
    is_up_to_date(swarm, reader)
    swarm.wait_for_step(swarm.facts()["step"] + 2)
    is_up_to_date(swarm, reader)


def test_a_browser_of_years_ago(run: tuple[Swarm, Browser]) -> None:
    swarm, browser = run
    reader = Reader(browser)
    reader.page.add_init_script(LEARNED_LATER)
    watch(swarm, reader)
    assert reader.page.evaluate("[].toSorted === undefined && Promise.withResolvers === undefined")
    moves(swarm, reader)
    reader.page.select_option(".choices select >> nth=0", "time")
    reader.page.select_option(".choices select >> nth=1", "some")
    reader.page.check(".choices input")
    moves(swarm, reader)
    assert reader.page.locator(".curve canvas").count() == 1
    reader.context.close()


@contextmanager
def asleep() -> Iterator[None]:
    """Every process of our browser stands still, as when a phone is put away."""
    browsers = [child for child in psutil.Process().children(recursive=True) if "chrom" in child.name()]
    assert browsers
    for process in browsers:
        process.suspend()
    try:
        yield
    finally:
        for process in browsers:
            process.resume()


def test_a_phone_that_sleeps(run: tuple[Swarm, Browser]) -> None:
    swarm, browser = run
    reader = watch(swarm, Reader(browser, width=390, height=844))
    before = reader.page.evaluate("window.seen.length")
    with asleep():
        swarm.wait_for_step(swarm.facts()["step"] + 20)
        woken = swarm.facts()["step"]
    is_up_to_date(swarm, reader)
    steps = [look["step"] for look in reader.page.evaluate("window.seen")[before:]]
    assert steps == sorted(steps), "it never went back"
    assert steps[-1] >= woken
    moves(swarm, reader)
    reader.context.close()


def test_a_phone_whose_socket_died_while_it_slept(run: tuple[Swarm, Browser]) -> None:
    """Some router forgot the connection: nothing comes, nothing fails, until the page is seen again and asks."""
    swarm, browser = run
    reader, sockets = Reader(browser), 0
    is_dead = False

    def is_alive(number: int) -> bool:
        return number > 1 or not is_dead

    def pass_on(route: WebSocketRoute) -> None:
        nonlocal sockets
        sockets += 1
        number, server = sockets, route.connect_to_server()
        route.on_message(lambda text: server.send(text) if is_alive(number) else None)
        server.on_message(lambda text: route.send(text) if is_alive(number) else None)

    reader.page.route_web_socket(lambda url: "/ws/runs/" in url, pass_on)
    watch(swarm, reader)
    is_dead = True
    asleep = swarm.facts()["step"]
    swarm.wait_for_step(asleep + 3)
    assert (reader.page.evaluate("window.seen.at(-1).step") <= asleep + 1, sockets) == (True, 1)
    reader.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    moves(swarm, reader)
    assert sockets == 2, "the dead one was left for another"
    reader.context.close()

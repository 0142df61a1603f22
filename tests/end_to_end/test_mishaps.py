"""Mishaps involving a person, a browser and a machine: each is explained in words, and nothing is lost."""

import contextlib
import json
import re
import sqlite3
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from playwright.sync_api import Browser

from demo.processes import bare_environment
from demo.recipes import python_text
from peer_agent.protocol.credentials import public_bytes
from tests.end_to_end.rig.browser import LIVE, Reader, chromium, sign_in, sign_up
from tests.end_to_end.rig.swarm import MANYHANDS, PASSWORD, SHOWN, Swarm
from tests.end_to_end.test_live_page import open_page

# Steps take as long as in real runs, since the site checks for revoked machines once a second.
SECONDS_A_STEP: dict[str, str] = {"width": "96", "layers": "2", "target_batch": "384"}
ROUNDS = 2  # rounds that a revoked machine may still be part of: the current one, and one that was just planned
OVERRIDE = "\u202e"  # right-to-left override: it reverses the direction of the text after it
HOSTILE = f"<img src=x onerror=window.harm=1><script>window.harm=2</script>{OVERRIDE}&amp; {{{{7*7}}}} مرحبا"
MACHINE = f"<b onmouseover=alert(1)>desk</b>{OVERRIDE}\"'>"
# For every text on the page that contains the words: the element, unless it isolates the text's direction.
LOOSE = """(words) => {
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (!node.data.includes(words) || node.parentElement.closest("script")) continue;
    const holder = node.parentElement.closest("bdi, [dir=auto], td, textarea");
    found.push(holder ? "" : node.parentElement.outerHTML);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one browser for all tests, since Playwright cannot start twice."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Swarm(tmp_path_factory.mktemp("mishaps")) as swarm:
        swarm.start_site()
        yield swarm


@pytest.fixture
def site(shared: Swarm, browser: Browser) -> Iterator[tuple[Swarm, Browser]]:
    yield shared, browser
    shared.end_agents()


def person(site: tuple[Swarm, Browser], name: str) -> Reader:
    swarm, browser = site
    reader = Reader(browser)
    sign_up(reader, swarm.url, name, PASSWORD)
    return reader


def asks(swarm: Swarm, name: str) -> str:
    """Run `manyhands login`, which asks for approval, and return the code that it shows."""
    home = swarm.folder / name
    home.mkdir(exist_ok=True)
    (swarm.folder / f"{name}.log").unlink(missing_ok=True)
    swarm.start(name, [MANYHANDS, "login", swarm.url], bare_environment(home), home)
    swarm.wait(lambda: SHOWN.search(swarm.log(name)), 60, f"{name} shows a code")
    found = SHOWN.search(swarm.log(name))
    assert found is not None
    return found[1]


def types(reader: Reader, swarm: Swarm, code: str) -> str:
    reader.page.goto(f"{swarm.url}/approve/")
    reader.page.fill("#code", code)
    reader.page.click("button:has-text('Continue')")
    reader.page.wait_for_url(lambda address: "code=" in address)
    return reader.page.inner_text("main")


def let_expire(swarm: Swarm, code: str) -> None:
    with contextlib.closing(sqlite3.connect(next(swarm.data.glob("*.sqlite3")), timeout=20)) as database, database:
        query = "update accounts_devicerequest set expires_at = '2020-01-01 00:00:00' where user_code = ?"
        assert database.execute(query, (code.replace("-", ""),)).rowcount == 1


def machines_of(swarm: Swarm, name: str) -> int:
    people = swarm.rows("select id, username from accounts_person")
    owners = [row[0] for row in swarm.rows("select person_id from accounts_machine where revoked_at is null")]
    return sum(owners.count(found) for found, username in people if username == name)


def nothing_to_approve(reader: Reader) -> bool:
    return reader.page.locator("button:has-text('Approve')").count() == 0


def test_a_wrong_an_expired_and_a_used_code(site: tuple[Swarm, Browser]) -> None:
    swarm, _ = site
    amina, teo = person(site, "Amina"), person(site, "Teo")

    said = types(amina, swarm, "BBBB-BBBB")
    assert "(E224). No machine is showing the code “BBBB-BBBB”. Compare it with the one in the terminal" in said
    assert "Nothing was approved." in said
    assert nothing_to_approve(amina)

    code = asks(swarm, "desk")
    let_expire(swarm, code)
    said = types(amina, swarm, code)
    assert f"(E225). The code {code} has expired" in said
    assert "Run the same command in the terminal again for a new one." in said
    assert nothing_to_approve(amina)
    assert swarm.processes["desk"].wait(60) == 1
    assert "E222: The code has expired" in swarm.log("desk")

    fresh = asks(swarm, "desk")
    assert fresh != code
    # A person may type the code in lower case and without the dash.
    assert "Is this your machine?" in types(amina, swarm, fresh.replace("-", "").lower())
    amina.page.click("button:has-text('Approve')")
    amina.page.wait_for_selector("h1:has-text('is approved')")
    assert swarm.processes["desk"].wait(60) == 0
    said = types(teo, swarm, fresh)
    assert f"(E226). Someone else has already used the code {fresh}." in said
    assert nothing_to_approve(teo)
    assert "is approved" in types(amina, swarm, fresh)
    assert nothing_to_approve(amina)
    assert (machines_of(swarm, "Amina"), machines_of(swarm, "Teo")) == (1, 0)
    assert amina.faults == teo.faults == []


def after_revocation(swarm: Swarm, name: str) -> list[int]:
    """Return the steps that contain this person's work and were committed after the machine was revoked."""
    [(at,)] = swarm.rows("select revoked_at from accounts_machine where revoked_at is not null")
    revoked_at = datetime.fromisoformat(at).replace(tzinfo=UTC)
    late = {step["step"] for step in swarm.items("steps") if datetime.fromisoformat(step["at"]) > revoked_at}
    return [row["step"] for row in swarm.items("ledger") if row["person"] == name and row["step"] in late]


def test_a_machine_that_is_revoked_in_the_middle_of_a_run(site: tuple[Swarm, Browser], english: str) -> None:
    swarm, browser = site
    mira, tom = swarm.sign_up("Mira"), swarm.sign_up("Tom")
    swarm.open_endless_run(mira, english, trainers=1, **SECONDS_A_STEP)
    for name, visitor in (("mira", mira), ("tom", tom)):
        swarm.start_agent(name, token=swarm.token_of(visitor))
    swarm.wait(lambda: {row["person"] for row in swarm.items("ledger")} == {"Mira", "Tom"}, 120, "both work")
    tab = open_page(swarm, browser, LIVE)
    sign_in(tab, swarm.url, "Tom", PASSWORD)
    tabs = [tab.page, tab.another_tab().page]
    for page in tabs:
        page.goto(f"{swarm.url}/machines/")
        page.click("td summary[aria-label^='Change ']")
    tabs[0].click("td button:has-text('Revoke')")
    tabs[0].wait_for_selector("tr.off:has-text('Revoked')")

    # The page in the other tab is outdated. Its buttons still work and show the present state.
    tabs[1].click("td button:has-text('Rename')")
    tabs[1].wait_for_selector("tr.off:has-text('Revoked')")

    swarm.wait(lambda: swarm.processes["tom"].poll() is not None, 60, "Tom's agent ends")
    said = swarm.log("tom")
    assert "E214: This machine was revoked. Credit already earned is kept. Its owner" in said
    swarm.wait_for_step(swarm.head() + 3)
    assert len(after_revocation(swarm, "Tom")) <= ROUNDS
    assert len(after_revocation(swarm, "Mira")) >= 3
    given = {line["name"]: line["samples"] for line in swarm.items("leaderboard")}
    assert given["Tom"] > 0, "credit is kept"
    assert swarm.processes["mira"].poll() is None


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", f"Te{OVERRIDE}o", "a", "Te o", "Teo\tTeo", "x" * 31])
def test_a_name_that_cannot_be_one_is_refused_in_words(site: tuple[Swarm, Browser], name: str) -> None:
    swarm, browser = site
    reader = Reader(browser)
    reader.page.goto(f"{swarm.url}/signup/")
    reader.page.evaluate("document.querySelector('[name=username]').removeAttribute('maxlength')")
    reader.page.fill("[name=username]", name)
    reader.page.fill("[name=password]", PASSWORD)
    reader.page.evaluate("document.querySelector('main form').noValidate = true")
    reader.page.click("main button.main")
    assert re.search("30", reader.page.inner_text("main .error"))
    assert reader.page.url.endswith("/signup/")
    assert reader.faults == []
    assert not swarm.rows("select 1 from accounts_person where username like '%alert%'")
    reader.context.close()


def hostile_request(swarm: Swarm, run: str) -> str:
    key = public_bytes(Ed25519PrivateKey.generate()).hex()
    body = json.dumps({"name": MACHINE, "public_key": key, "system": MACHINE, "run": run}).encode()
    request = urllib.request.Request(f"{swarm.url}/api/v1/devices", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return str(found["user_code"])


def check_page(reader: Reader, url: str, words: str, wait: str = "main") -> None:
    """Require that the page shows the words as typed, that they do not reverse the surrounding text, and that no
    script runs.
    """
    reader.page.goto(url)
    reader.page.wait_for_selector(wait, state="attached")
    shown = reader.page.evaluate(LOOSE, words)
    values = reader.page.evaluate("[...document.querySelectorAll('input, textarea')].map((field) => field.value)")
    assert shown or words in values, f"{url} does not show it"
    assert not any(shown), f"{url}: {shown}"
    assert reader.page.evaluate("window.harm") is None
    assert reader.page.locator("img[src=x], b[onmouseover]").count() == 0
    assert reader.faults == [], url


def test_markup_and_right_to_left_text_are_shown_as_text(site: tuple[Swarm, Browser]) -> None:
    swarm, _ = site
    organizer, visitor = Reader(site[1]), swarm.sign_up("visitor")
    swarm.draft(visitor, python_text()[:50_000], trainers=1, steps=5, title=HOSTILE, purpose=HOSTILE, licence=HOSTILE)
    sign_in(organizer, swarm.url, "visitor", PASSWORD)
    run = f"{swarm.url}/runs/{swarm.slug}/"
    for page in ("manage/", "edit/", "delete/", "publish/", ""):
        check_page(organizer, run + page, HOSTILE)
    visitor.publish(swarm.slug)
    swarm.wait_for_state("open", 120)
    code = hostile_request(swarm, swarm.slug)
    check_page(organizer, f"{swarm.url}/approve/?code={code}", MACHINE)
    check_page(organizer, f"{swarm.url}/approve/?code={code}", HOSTILE)
    organizer.page.click("button:has-text('Approve')")
    organizer.page.wait_for_selector("h1:has-text('is approved')")
    check_page(organizer, organizer.page.url, MACHINE)
    swarm.start_agent("worker", token=swarm.token_of(visitor))
    swarm.wait(lambda: machines_of(swarm, "visitor"), 60, "its machine is known")
    organizer.page.goto(f"{swarm.url}/machines/")
    organizer.page.click("td summary[aria-label^='Change ']")
    organizer.page.fill("td input[name=name]", MACHINE)
    organizer.page.click("td button:has-text('Rename')")
    organizer.page.wait_for_load_state()
    check_page(organizer, f"{swarm.url}/machines/", MACHINE)
    spectator = Reader(site[1])
    check_page(spectator, f"{swarm.url}/", HOSTILE)
    check_page(spectator, run, HOSTILE, wait=LIVE)
    swarm.wait_finished()
    spectator.page.wait_for_selector("a:text-is('Download the model')", timeout=120_000)
    check_page(spectator, run, HOSTILE, wait=LIVE)
    card = visitor.read(f"/api/v1/runs/{swarm.slug}/release/README.md")
    assert "script" in card
    assert re.findall(r"(?<!\\)<(?:img|script|/script)", card) == [], "markdown shows it, too"
    assert OVERRIDE not in swarm.log("worker"), "the terminal is not turned either"


def test_machine_is_removed_and_restored_and_a_run_starts_over(site: tuple[Swarm, Browser]) -> None:
    """The organizer uses the pages while a host drives the run and a machine waits for a second one."""
    swarm, browser = site
    organizer, volunteer = swarm.sign_up("Noor"), swarm.sign_up("Zoe")
    swarm.open_run(organizer, python_text()[:50_000], trainers=2, steps=4)
    reader, manage = Reader(browser), f"{swarm.url}/runs/{swarm.slug}/manage/"
    sign_in(reader, swarm.url, "Noor", PASSWORD)
    comes(swarm, swarm.token_of(volunteer))
    reader.page.goto(manage)
    reader.page.fill("input[name=remove-name]", "Zoe")
    reader.page.click("button:text-is('Remove')")
    assert goes(swarm) == "E324"
    reader.page.click("button:has-text('Restore access')")
    comes(swarm)
    reader.page.goto(manage)
    reader.page.click("button:has-text('Return to draft')")
    assert goes(swarm) == "E308"
    reader.page.click("a:has-text('Edit draft')")
    reader.page.click("summary:has-text('Model and training settings')")
    reader.page.fill("input[name=minimum_trainers]", "1")
    reader.page.fill("input[name=width]", "64")
    reader.page.click("button:has-text('Save draft')")
    reader.page.click("button:has-text('Publish run')")
    swarm.wait_for_state("open", 120)
    swarm.start_agent("zoe")
    swarm.wait_finished()
    ledger, records = swarm.books()
    assert ledger == records > 0
    assert len(swarm.records()) == 4
    assert "Traceback" not in swarm.log("site")


def comes(swarm: Swarm, token: str = "") -> None:
    swarm.start_agent("zoe", token=token)
    swarm.wait(lambda: swarm.online("trainer") and swarm.facts()["waiting_for"], 60, "it waits for another")


def goes(swarm: Swarm) -> str:
    assert swarm.processes["zoe"].wait(30) == 1
    swarm.wait(lambda: not swarm.online("trainer") or swarm.facts()["state"] == "draft", 30, "it is seen no more")
    return swarm.last_code("zoe")

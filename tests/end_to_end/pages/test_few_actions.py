"""The number of actions that people need. An action is a click or filling in a field."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from demo.visitor import Visitor
from tests.end_to_end.pages.test_accessibility import AXE, violations
from tests.end_to_end.rig.browser import Reader, chromium, sign_up
from tests.end_to_end.rig.swarm import PASSWORD, Swarm

MOST_ORGANIZER, MOST_VOLUNTEER = 12, 3
PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
PRINTED = re.compile(r"^ +(http://\S+/approve/\S+)$", re.MULTILINE)


class Counted:
    def __init__(self, page: Page, *, touches: bool) -> None:
        self.page, self.touches, self.actions = page, touches, list[str]()

    def press(self, selector: str) -> None:
        self.actions.append(selector)
        (self.page.tap if self.touches else self.page.click)(selector)

    def fill(self, selector: str, text: str) -> None:
        self.actions.append(selector)
        self.page.fill(selector, text)

    def choose(self, selector: str, file: Path) -> None:
        self.actions.append(selector)
        self.page.set_input_files(selector, file)


def axe_finds(reader: Reader) -> list[str]:
    reader.page.evaluate(AXE.read_text())
    return violations(reader, "light")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Swarm, Browser]]:
    with Swarm(tmp_path_factory.mktemp("few")) as swarm, chromium() as browser:
        swarm.start_site()
        yield swarm, browser


@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
def test_from_the_front_page_to_a_run_that_takes_volunteers(
    site: tuple[Swarm, Browser], english: str, tmp_path: Path, device: dict[str, Any], record_property: Any
) -> None:
    swarm, browser = site
    text = tmp_path / "words.txt"
    text.write_text(english)
    reader = Reader(browser, **device)
    reader.page.goto(swarm.url)
    assert axe_finds(reader) == []
    person = Counted(reader.page, touches=bool(device))
    person.press("header a:text-is('Sign up')")
    person.fill("input[name=username]", "Phone" if device else "Desk")
    person.fill("input[name=password]", PASSWORD)
    person.press("main button:text-is('Sign up')")
    person.press("main a:text-is('New run') >> nth=0")
    reader.page.wait_for_selector("input[name=text]", state="attached")
    assert axe_finds(reader) == []
    person.choose("input[name=text]", text)
    person.fill("input[name=licence]", "CC0")
    person.press("label:has-text('I have the right to share the text')")
    person.fill("input[name=title]", "Words on a phone" if device else "Words")
    person.press("button:text-is('Continue')")
    person.press("button:text-is('Publish run')")
    reader.page.wait_for_selector("button:text-is('Pause')", timeout=120_000)
    record_property("actions to an open run", len(person.actions))
    assert len(person.actions) <= MOST_ORGANIZER, person.actions
    assert not reader.faults
    slug = reader.page.url.split("/runs/")[1].split("/")[0]
    facts = Visitor(swarm.url).read_json(f"runs/{slug}")
    assert facts["state"] == "open"
    assert facts["target_steps"] != 1000, "set from the text"
    if device:
        assert reader.page.evaluate("document.documentElement.scrollWidth") <= device["width"], "nothing is cut off"


@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
def test_from_a_link_to_credit(
    site: tuple[Swarm, Browser], english: str, device: dict[str, Any], record_property: Any
) -> None:
    """After signing in, a person pastes the page's command into a terminal, opens the address that it shows, and
    approves.
    """
    swarm, browser = site
    organizer, name = swarm.sign_up("Ida" if device else "Amina"), "Lea" if device else "Teo"
    swarm.open_endless_run(organizer, english)
    reader = Reader(browser, **device)
    run = f"{swarm.url}/runs/{swarm.slug}/"
    sign_up(reader, swarm.url, name, PASSWORD)
    reader.page.goto(run)
    person = Counted(reader.page, touches=bool(device))
    person.actions.append("the line of the page, in a terminal")
    assert f"manyhands join {run}" in reader.page.inner_text("#join pre >> nth=0")
    assert axe_finds(reader) == []
    swarm.start_agent(name)
    swarm.wait(lambda: PRINTED.search(swarm.log(name)), 60, "it shows an address")
    address = PRINTED.search(swarm.log(name))
    assert address is not None
    person.actions.append("the address that it shows")
    reader.page.goto(address[1])
    person.press("button:text-is('Approve')")
    swarm.wait(lambda: any(row["person"] == name for row in swarm.items("ledger")), 120, "credit")
    record_property("actions to the first credit", len(person.actions))
    assert len(person.actions) <= MOST_VOLUNTEER

"""On a phone, people watch a run without layout shifts, moderate it, and limit a machine, all by touch."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.end_to_end.pages.test_few_actions import PHONE
from tests.end_to_end.rig.browser import LIVE, Reader, chromium, sign_in
from tests.end_to_end.rig.swarm import PASSWORD, Swarm

# A step takes about a second, so the page changes while it is measured.
SLOW: dict[str, Any] = {"width": "64", "layers": "1", "target_batch": "64", "warmup_steps": "5"}
MORE_STEPS = 8
# Layout shift without input: a new row moves list rows, or a number moves the words behind it.
SHIFTS = """
  window.shifts = 0;
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) if (!each.hadRecentInput) window.shifts += each.value;
  }).observe({ type: "layout-shift" });
"""
# Elements above the end of the timeline, which grows until it is full. On a busy machine, steps may become too long to
# be shown together, or short enough again. Then `.no-bar` keeps the room of one bar.
PLACES = """[...document.querySelectorAll(
  "main h1, main h2, main section, main .curve, main progress, main .no-bar"
)].map((each) => {
  const { x, y, width } = each.getBoundingClientRect();
  const name = each.matches("progress, .no-bar") ? "bar" : each.id || each.className || each.localName;
  return [name, x + scrollX, y + scrollY, width];
}).filter(([, , y]) => y < document.querySelector(".timeline").getBoundingClientRect().bottom + scrollY - 200)"""
MOST_SHIFT = 0.002  # layout shift of a page per step; Web Vitals call 0.1 in five seconds good


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, english: str) -> Iterator[tuple[Swarm, Browser]]:
    """Yield a run in which Amina and Teo train. Noor has an account."""
    with Swarm(tmp_path_factory.mktemp("phone")) as swarm, chromium() as browser:
        swarm.start_site()
        amina, teo = (swarm.sign_up(name) for name in ("Amina", "Teo"))
        swarm.sign_up("Noor")
        swarm.open_endless_run(amina, english, **SLOW)
        swarm.start_agent("amina", token=swarm.token_of(amina))
        swarm.start_agent("teo", token=swarm.token_of(teo))
        swarm.wait(
            lambda: {row["person"] for row in swarm.items("ledger")} == {"Amina", "Teo"}, 120, "both have credit"
        )
        yield swarm, browser


def on_phone(swarm: Swarm, browser: Browser, who: str = "") -> Reader:
    reader = Reader(browser, **PHONE)
    if who:
        sign_in(reader, swarm.url, who, PASSWORD)
    return reader


def tap(reader: Reader, selector: str) -> None:
    with reader.page.expect_navigation():
        reader.page.tap(selector)


def fits(reader: Reader) -> None:
    wide = reader.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= PHONE["width"], (reader.page.url, wide)
    assert not reader.faults


@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
def test_spectator_sees_a_run_move_without_layout_shift(
    run: tuple[Swarm, Browser], device: dict[str, Any], record_property: Any
) -> None:
    swarm, browser = run
    reader = Reader(browser, **device)
    press = reader.page.tap if device else reader.page.click
    reader.page.goto(swarm.url)
    press(".runs h3 a")
    reader.page.wait_for_selector(LIVE, state="attached")
    reader.page.wait_for_timeout(1000)
    reader.page.evaluate(SHIFTS)
    before, places = swarm.head(), reader.page.evaluate(PLACES)
    swarm.wait_for_step(before + MORE_STEPS)
    reader.wait_for(f"Number(document.querySelector('#part-head progress').value) >= {before + MORE_STEPS}")
    shifts = reader.page.evaluate("window.shifts")
    record_property("layout shift", shifts)
    assert shifts < MOST_SHIFT * MORE_STEPS
    assert reader.page.evaluate(PLACES) == places
    assert reader.page.evaluate("performance.getEntriesByType('navigation').length") == 1
    press("a:text-is('Full leaderboard')")
    reader.page.wait_for_selector("td:has-text('Teo')")
    press("a:text-is('This week')")
    reader.page.wait_for_selector("td:has-text('Teo')")
    reader.page.goto(f"{swarm.url}/runs/{swarm.slug}/activity/")
    assert "Teo" in reader.page.inner_text("main")
    if device:
        fits(reader)
    reader.context.close()


def test_an_owner_sets_a_limit_and_pauses(run: tuple[Swarm, Browser]) -> None:
    swarm, browser = run
    reader = on_phone(swarm, browser, "Teo")
    reader.page.goto(f"{swarm.url}/machines/")
    fits(reader)
    reader.page.tap("summary[aria-label^='Change ']")
    tap(reader, "a[aria-label^='Limits for']")
    fits(reader)
    reader.page.fill("input[name=up_mbps]", "50")
    tap(reader, "button:text-is('Save')")
    report = "select report from accounts_machinecontrol where reported_at is not null"
    swarm.wait(lambda: any('"revision":1' in row[0] for row in swarm.rows(report)), 30, "the machine has heard of it")
    reader.page.tap("summary:text-is('Pause')")
    tap(reader, "button:text-is('Until I resume it')")
    swarm.wait(lambda: "Paused by you" in swarm.log("teo"), 30, "the machine rests")

    def says_so() -> bool:
        reader.page.goto(f"{swarm.url}/machines/")
        return "Paused by you" in reader.page.inner_text("#mine >> xpath=..")

    swarm.wait(says_so, 60, "the machine has left the run and reports from its own link")
    tap(reader, "button:text-is('Resume')")
    swarm.wait(lambda: "Working again" in swarm.log("teo"), 30, "the machine works again")
    reader.context.close()


def test_a_moderator_removes_somebody_and_lets_them_back(run: tuple[Swarm, Browser]) -> None:
    """This must be the module's last test, because it ends Teo's agent."""
    swarm, browser = run
    organizer, moderator = on_phone(swarm, browser, "Amina"), on_phone(swarm, browser, "Noor")
    organizer.page.goto(f"{swarm.url}/runs/{swarm.slug}/manage/")
    fits(organizer)
    for section in ("#everyone", "#material"):
        organizer.page.tap(f"nav[data-sections] a[href='{section}']")
        organizer.wait_for(f"document.querySelector('nav[data-sections] [aria-current]').hash === '{section}'")
    organizer.page.tap("summary:text-is('Invite to a role')")
    organizer.page.fill("input[name=role-name]", "Noor")
    organizer.page.select_option("select[name=role-role]", "moderator")
    tap(organizer, "button:text-is('Invite')")
    organizer.page.wait_for_selector("li:has-text('invited, not accepted yet')")
    moderator.page.goto(f"{swarm.url}/account/")
    tap(moderator, "a[aria-label='View the invitation to A run']")
    fits(moderator)
    tap(moderator, "button:text-is('Accept as Noor')")
    moderator.page.goto(f"{swarm.url}/runs/{swarm.slug}/leaderboard/")
    fits(moderator)
    tap(moderator, "button[aria-label='Remove Teo from this run']")
    moderator.page.wait_for_selector("text=Teo was removed.")
    fits(moderator)
    swarm.wait(lambda: swarm.processes["teo"].poll() is not None, 30, "the removed person's agent ends")
    tap(moderator, "button[aria-label='Undo: restore access for Teo']")
    moderator.page.wait_for_selector("text=Teo was removed.", state="detached")
    swarm.start_agent("teo")
    swarm.wait(lambda: len(swarm.online("trainer")) == 2, 90, "Teo trains again")
    organizer.page.goto(f"{swarm.url}/runs/{swarm.slug}/manage/")
    tap(organizer, "a:has-text('Audit log')")
    assert "Noor" in organizer.page.inner_text("main")
    fits(organizer)
    for reader in (organizer, moderator):
        reader.context.close()

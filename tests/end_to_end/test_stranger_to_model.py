"""From a stranger's first click to the finished model: three people in three browsers, and one agent outside the
clone.
"""

import hashlib
import os
import platform
import re
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Download

from demo.recipes import LICENCE
from tests.end_to_end.rig.browser import LIVE, Reader, chromium, sign_up
from tests.end_to_end.rig.outside import downloaded_wheel, make_environment
from tests.end_to_end.rig.swarm import PASSWORD, SHOWN, SMALL, Swarm
from tests.end_to_end.test_live_page import RECORDER

STEPS = 25
TITLE = "Words of Python"
UPLOAD = re.compile(r"/uploads/[0-9a-f-]{36}/$")
PRINTED = re.compile(r"^ +(http://\S+/approve/\S+)$", re.MULTILINE)


def new_draft(swarm: Swarm, browser: Browser, text: Path) -> Reader:
    """Sign up an organizer and fill in the form. The browser uploads the text in pieces before the form is sent."""
    organizer = Reader(browser)
    page = organizer.page
    sign_up(organizer, swarm.url, "Amina", PASSWORD)
    page.goto(f"{swarm.url}/runs/new/")
    page.set_input_files("input[name=text]", text)
    page.wait_for_selector("[data-says]:has-text('uploaded')")
    assert any(UPLOAD.search(url) for url in organizer.requests)
    before = page.inner_text("[data-estimate]")
    fill_in(organizer)
    page.wait_for_function("before => document.querySelector('[data-estimate]').innerText !== before", arg=before)
    page.click("button:has-text('Continue')")
    page.wait_for_selector(f"h1:has-text('{TITLE}')")
    swarm.slug = page.url.split("/runs/")[1].split("/")[0]
    return organizer


def fill_in(organizer: Reader) -> None:
    """Fill in settings that let two cores finish the run in a minute."""
    page = organizer.page
    page.fill("[name=title]", TITLE)
    page.fill("[name=licence]", LICENCE)
    page.check("[name=may_share]")
    page.click("summary:has-text('Model and training settings')")
    for name, value in {**SMALL, "target_steps": str(STEPS), "minimum_trainers": "1"}.items():
        field = page.locator(f"[name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def open_the_run(organizer: Reader, swarm: Swarm) -> None:
    """Check that the page shows five pieces of the text, then open the run."""
    page = organizer.page
    page.goto(f"{swarm.url}/runs/{swarm.slug}/manage/")
    page.wait_for_selector("#verdict")
    page.click("section[aria-labelledby=verdict] summary:has-text('Two more')")
    pieces = page.locator("section[aria-labelledby=verdict] blockquote")
    assert len({piece for piece in pieces.all_inner_texts() if piece}) == 5
    page.click("button:has-text('Publish run')")
    page.wait_for_selector("button:has-text('Pause')")


def approve(volunteer: Reader, swarm: Swarm, agent: str) -> None:
    """Open the address that the agent prints, compare the code, and approve."""
    swarm.wait(lambda: PRINTED.search(swarm.log(agent)) and SHOWN.search(swarm.log(agent)), 60, "it shows a code")
    address, code = (found[1] for found in (PRINTED.search(swarm.log(agent)), SHOWN.search(swarm.log(agent))) if found)
    volunteer.page.goto(address)
    assert volunteer.page.inner_text("p.code") == code
    asks = volunteer.page.inner_text("dl.asks")
    assert all(words in asks for words in (platform.node(), platform.system(), TITLE)), asks
    volunteer.page.click("button:has-text('Approve')")
    volunteer.page.wait_for_selector("h1:has-text('is approved')")


def first_ledger_row_s(swarm: Swarm, volunteer: Reader, home: Path) -> float:
    """Type the page's command into a new shell. Return how many seconds pass until the ledger has its first row."""
    volunteer.page.goto(f"{swarm.url}/runs/{swarm.slug}/")
    volunteer.page.click("summary:has-text('With pip')")
    line = volunteer.page.inner_text("details.system[open] pre code >> text=/ join /")
    environment = {"PATH": os.defpath, "HOME": str(home)}
    began = time.monotonic()
    # with --attached the agent ends with the tests
    swarm.start("teo", ["sh", "-c", f"exec {line} --attached"], environment, home)
    approve(volunteer, swarm, "teo")
    swarm.wait(lambda: swarm.items("ledger"), 120, "the first ledger row")
    return time.monotonic() - began


def saved(download: Download, folder: Path) -> Path:
    path = folder / download.suggested_filename
    download.save_as(path)
    return path


def take_home(spectator: Reader, folder: Path) -> None:
    """Download the model card and the archive from the page, which has been open the whole time."""
    page = spectator.page
    with page.expect_download() as card:
        page.click("a:has-text('Model card')")
    assert f"| Steps | {STEPS:,} |" in saved(card.value, folder).read_text()
    with page.expect_download() as archive:
        page.click("a:has-text('Download the model')")
    zipped = saved(archive.value, folder)
    row = page.locator("tr", has=page.locator("text=all files in one"))
    assert row.locator(".digest").text_content() == hashlib.sha256(zipped.read_bytes()).hexdigest()
    with zipfile.ZipFile(zipped) as release:
        assert release.testzip() is None
        assert any(name.endswith("/model.safetensors") for name in release.namelist())


def check_it_moved(spectator: Reader) -> None:
    """Require that the page was loaded only once and updated itself."""
    assert spectator.page.evaluate("window.mark") == "still the same page"
    seen = spectator.page.evaluate("window.seen")
    assert len({look["loss"] for look in seen if look["step"]}) > 3
    assert seen[0]["ranks"] == []
    assert seen[-1]["ranks"] == ["Teo"]
    assert spectator.faults == []


def test_from_a_strangers_first_click_to_the_model(
    tmp_path: Path, wheel: Path, english: str, record_property: Callable[[str, object], None]
) -> None:
    text = tmp_path / "words.txt"
    text.write_text(english)
    with Swarm(tmp_path / "swarm", {"MANYHANDS_DOWNLOADS": str(wheel)}) as swarm, chromium() as browser:
        swarm.start_site()
        organizer = new_draft(swarm, browser, text)
        open_the_run(organizer, swarm)
        spectator = Reader(browser)
        spectator.page.goto(f"{swarm.url}/runs/{swarm.slug}/")
        spectator.page.wait_for_selector(LIVE, state="attached")
        spectator.page.evaluate(RECORDER)
        volunteer = Reader(browser)
        sign_up(volunteer, swarm.url, "Teo", PASSWORD)
        home = tmp_path / "teo"
        home.mkdir()
        make_environment(downloaded_wheel(volunteer, swarm.url, tmp_path), home / "manyhands")
        took_s = first_ledger_row_s(swarm, volunteer, home)
        record_property("from Enter to the first ledger row, approval included", f"{took_s:.1f} s")
        print(f"from Enter to the first ledger row: {took_s:.1f} s, approval included")
        spectator.page.wait_for_selector("a:text-is('Download the model')", timeout=180_000)
        check_it_moved(spectator)
        take_home(spectator, tmp_path)
        assert volunteer.faults == organizer.faults == []

"""Visitors have a released model write text: with scripts, without scripts, and while the site restarts."""

import re
from pathlib import Path

from demo.visitor import Refused, Visitor
from tests.end_to_end.rig.browser import LIVE, Reader, chromium
from tests.end_to_end.rig.swarm import Swarm

STEPS = 3
MARKUP = "<b>Many</b> \u05e9\u05dc\u05d5\u05dd"
TEXT = re.compile(r'<blockquote dir="auto">(?:<strong>(.*?)</strong>)?(.*?)</blockquote>', re.DOTALL)


def test_visitors_let_a_released_model_write(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm, chromium() as browser:
        swarm.start_site()
        organizer = swarm.sign_up("organizer")
        swarm.open_run(organizer, english, trainers=1, steps=STEPS)
        swarm.start_agent("teo", token=swarm.token_of(organizer))
        swarm.wait_finished(300)
        on_the_runs_page(swarm, Reader(browser))
        without_a_script(swarm, Reader(browser, java_script_enabled=False))
        through_a_restart(swarm)


def on_the_runs_page(swarm: Swarm, reader: Reader) -> None:
    """Have the model write on the run's page. Require that the page does not reload and that it escapes the text."""
    reader.page.goto(f"{swarm.url}/runs/{swarm.slug}/")
    reader.page.wait_for_selector(LIVE, state="attached")
    reader.page.evaluate("window.mark = 'the same page'")
    reader.page.fill("textarea[name=prompt]", MARKUP)
    reader.page.click("[data-try] button")
    reader.page.wait_for_selector("[data-trial] a:has-text('Link to this text')", timeout=120_000)
    shown = reader.page.inner_text("[data-trial] blockquote")
    assert shown.startswith(MARKUP)
    assert len(shown) > len(MARKUP)
    assert reader.page.evaluate("window.mark") == "the same page"
    reader.page.fill("textarea[name=prompt]", "x" * 400)
    reader.page.evaluate("document.querySelector('textarea[name=prompt]').value = 'x'.repeat(600)")
    reader.page.click("[data-try] button")
    reader.page.wait_for_selector("[data-trial] .error:has-text('At most 500 characters')")
    assert reader.faults == []


def without_a_script(swarm: Swarm, reader: Reader) -> None:
    reader.page.goto(f"{swarm.url}/runs/{swarm.slug}/try/")
    reader.page.fill("textarea[name=prompt]", MARKUP)
    reader.page.click("[data-try] button")
    reader.page.wait_for_url(lambda address: not address.endswith("/try/"))
    reader.page.wait_for_selector("text=Link to this text", timeout=120_000)
    assert reader.page.inner_text("blockquote").startswith(MARKUP)


def through_a_restart(swarm: Swarm) -> None:
    """Submit a prompt, kill and restart the site, and require that the text appears without a second request."""
    visitor = Visitor(swarm.url)
    visitor.submit(f"/runs/{swarm.slug}/try/", {"prompt": "Many hands"})
    swarm.kill("site")
    path = visitor.address.removeprefix(swarm.url)
    swarm.start_site()
    swarm.wait(lambda: is_written(visitor, path), 120, "it is written")
    prompt, text = TEXT.findall(visitor.read(path))[0]
    assert prompt == "Many hands"
    assert text


def is_written(visitor: Visitor, path: str) -> bool:
    try:
        return "Link to this text" in visitor.read(path)
    except Refused:
        return False

"""A run's page in a real browser. The page updates itself, even without WebSockets and after the site restarts."""

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, WebSocketRoute

from tests.end_to_end.rig.browser import LIVE, POLLING, Reader, chromium, sign_in
from tests.end_to_end.rig.stalls import Heartbeat, Span, stalled_s
from tests.end_to_end.rig.swarm import PASSWORD, Swarm
from tests.tier import length

PROMPT_S = 2.0
MORE_STEPS = length(10, 5)
# Some tens of samples a second on a busy machine: a step takes a second or two, as in a small real run.
SLOW = {"width": "96", "layers": "2", "target_batch": "96", "warmup_steps": "5"}
# Records every step and rank that the page shows, with the time.
RECORDER = """
  window.mark = "still the same page";
  window.seen = [];
  const look = () => {
    const step = document.querySelector("#part-head .under").textContent.match(/step ([\\d,]+)/i);
    const names = [...document.querySelectorAll("#part-leaderboard [data-panel='board=all'] tbody tr td:nth-child(2)")];
    const now = {
      step: step ? Number(step[1].replaceAll(",", "")) : 0,
      loss: document.querySelector("#part-loss .big")?.textContent.trim() ?? "",
      sentence: document.querySelector("#part-head .sentence").textContent,
      ranks: names.map((name) => name.textContent.replace("● now", "").trim()),
    };
    const last = window.seen.at(-1);
    if (!last || JSON.stringify({ ...last, at: 0 }) !== JSON.stringify({ ...now, at: 0 }))
      window.seen.push({ ...now, at: Date.now() / 1000 });
  };
  const everything = { childList: true, subtree: true, characterData: true };
  new MutationObserver(look).observe(document.getElementById("content"), everything);
  look();
"""
# The places in which a freshly fetched page differs from the live one, with both texts. Excluded are charts, which the
# live page draws, and times, which the live page shows in the reader's time zone.
DIFFERENCES = """async () => {
  const fresh = new DOMParser().parseFromString(await (await fetch(location.pathname)).text(), "text/html");
  const text = (page, name) => {
    const part = page.querySelector(`#part-${name}`).cloneNode(true);
    for (const drawn of part.querySelectorAll("#part-chart, .readout, .told")) drawn.remove();
    return part.textContent.replace(/\\s+/g, "");
  };
  const all = ["head", "loss", "step", "leaderboard", "averaging", "links", "written", "samples"];
  const names = all.filter((name) => document.getElementById(`part-${name}`) || fresh.getElementById(`part-${name}`));
  return names.map((name) => [name, text(fresh, name), text(document, name)]).filter(([, one, other]) => one !== other);
}"""


SUMMARY = "#part-loss .axes [data-panel^='chart=']:not([hidden])"


def blocked(route: WebSocketRoute) -> None:
    """Close the WebSocket, as a proxy that does not support WebSockets would."""
    route.close()


def open_page(swarm: Swarm, browser: Browser, link: str) -> Reader:
    """Open a reader's page with the recorder running. `link` selects how the page receives updates."""
    reader = Reader(browser)
    if link == POLLING:
        reader.page.route_web_socket(re.compile("/ws/"), blocked)
    reader.page.goto(f"{swarm.url}/runs/{swarm.slug}/")
    reader.page.wait_for_selector(link, state="attached")
    reader.page.evaluate(RECORDER)
    reader.requests.clear()
    return reader


def begin(swarm: Swarm, english: str) -> Any:
    """Start a site and a run in which one volunteer, Amina, works. Return a token for Teo."""
    swarm.start_site()
    amina, teo = swarm.sign_up("Amina"), swarm.sign_up("Teo")
    swarm.open_run(amina, english, trainers=1, steps=500, **SLOW)
    swarm.start_agent("amina", token=swarm.token_of(amina))
    swarm.wait_for_step(1)
    return swarm.token_of(teo)


def says_the_same_anew(swarm: Swarm, reader: Reader) -> None:
    """Require that the live page equals a freshly fetched one, so that the template and the script agree."""
    swarm.wait(lambda: reader.page.evaluate(DIFFERENCES) == [], 10, "the kept page is as a fresh one")


def teo_overtakes_amina(swarm: Swarm, token: str, *readers: Reader) -> None:
    """Start Teo's agent. Once the readers have seen both people, stop Amina's agent and wait until Teo has more
    samples than she does.
    """
    swarm.start_agent("teo", token=token)
    swarm.wait(lambda: len(swarm.items("leaderboard")) == 2, 120, "Teo has given samples")
    for reader in readers:
        reader.wait_for('window.seen.some((look) => look.sentence.includes("2 people on 2 machines"))')
    swarm.processes["amina"].terminate()
    swarm.wait(lambda: swarm.items("leaderboard")[0]["name"] == "Teo", 180, "Teo is first")


def delays(seen: list[dict[str, Any]], steps: list[dict[str, Any]], stalls: list[Span]) -> list[float]:
    """Return the seconds from each commit until the page shows that step or a later one, in ascending order.

    Only steps that the page's recorder covers count. The machine's pauses are subtracted.
    """
    first, last = seen[0]["step"], max(look["step"] for look in seen)
    late = []
    for step in steps:
        if first < step["step"] <= last:
            at = datetime.fromisoformat(step["at"]).timestamp()
            shown = next(look["at"] for look in seen if look["step"] >= step["step"])
            late.append(shown - at - stalled_s(stalls, at, shown))
    return sorted(late)


def look_back(reader: Reader, swarm: Swarm) -> list[dict[str, Any]]:
    """Wait until the page ranks Teo first, and return everything the page has shown. Fail if it has reloaded or had an
    error.
    """
    reader.wait_for('window.seen.at(-1).ranks[0] === "Teo"')
    seen: list[dict[str, Any]] = reader.page.evaluate("window.seen")
    assert reader.page.evaluate("window.mark") == "still the same page"
    assert reader.faults == []
    assert len({look["step"] for look in seen}) > 3
    assert len({look["loss"] for look in seen}) > 3
    assert {tuple(look["ranks"]) for look in seen} >= {("Amina",), ("Amina", "Teo"), ("Teo", "Amina")}
    words = " ".join(look["sentence"] for look in seen)
    assert "1 person on 1 machine" in words
    assert "2 people on 2 machines" in words
    return seen


def test_steps_show_in_time_by_socket_or_by_polling_if_blocked(
    tmp_path: Path, english: str, record_property: Callable[[str, object], None]
) -> None:
    with Swarm(tmp_path) as swarm, chromium() as browser, Heartbeat(browser) as heart:
        token = begin(swarm, english)
        live, polled = open_page(swarm, browser, LIVE), open_page(swarm, browser, POLLING)
        teo_overtakes_amina(swarm, token, live, polled)
        swarm.wait_for_step(swarm.facts()["step"] + MORE_STEPS)
        shown = {"socket": look_back(live, swarm), "polling": look_back(polled, swarm)}
        assert live.requests == [], "nothing was fetched: the socket brought it all"
        assert {url.rsplit("/", 1)[-1] for url in polled.requests} == {"feed.json"}
        steps, stalls = swarm.items("steps"), heart.stalls()
        for way, seen in shown.items():
            late = delays(seen, steps, stalls)
            figures = f"{len(late)} steps, median {median(late):.2f} s, worst {late[-1]:.2f} s"
            record_property(way, figures)
            print(f"{way}: {figures}; stalled {sum(end - start for start, end in stalls):.1f} s in all")
            assert len(late) >= MORE_STEPS
            assert late[-1] < PROMPT_S, f"{way}: {late}"
        for reader in (live, polled):
            reads_every_board(reader)


def test_it_goes_on_by_itself_after_the_site_was_killed(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm, chromium() as browser:
        begin(swarm, english)
        pages = [open_page(swarm, browser, LIVE), open_page(swarm, browser, POLLING)]
        swarm.kill("site")
        for reader in pages:
            reader.page.wait_for_selector("html[data-feed=away]", state="attached")
            assert "the site does not answer" in reader.text("link")
            assert reader.page.inner_text("h1") == "A run", "what was known stays on the page"
        swarm.start_site()
        before = swarm.facts()["step"]
        for reader, link in zip(pages, (LIVE, POLLING), strict=True):
            reader.page.wait_for_selector(link, state="attached")
            reader.wait_for(f"window.seen.at(-1).step > {before + 1}")
            assert reader.page.evaluate("window.mark") == "still the same page"
            assert reader.faults == []


def reads_every_board(reader: Reader) -> None:
    """Require that each leaderboard can be selected by a link, that the choice persists, and that the board updates."""
    rows = "[...document.querySelectorAll('#part-leaderboard [data-panel]:not([hidden]) tbody tr')]"
    samples = f"{rows}.map((row) => +row.cells[2].innerText.replace(/,/g, ''))"
    for name, board in (("This week", "week"), ("Today", "day")):
        reader.page.click(f"#part-leaderboard nav a:has-text('{name}')")
        assert reader.page.url.endswith(f"?board={board}")
        before = reader.page.evaluate(samples)
        assert len(before) == 2
        assert before == sorted(before, reverse=True)
        reader.wait_for(f"{samples}.reduce((sum, one) => sum + one, 0) > {sum(before)}", 60)
        assert reader.page.inner_text("#part-leaderboard nav [aria-current]") == name
    reader.page.reload()
    assert "Samples since midnight, UTC." in reader.text("leaderboard"), "also at its address"


def reads_every_chart(reader: Reader) -> None:
    """Require that each chart has a link and its own address, and can be read using the keyboard."""
    names = ["Samples per second", "Machines", "Learning rate", "Data per step"]
    reader.page.click("#part-loss .axes summary")
    assert reader.page.locator("#part-loss nav a").all_inner_texts() == ["Loss", *names]
    told = {}
    for name in names:
        reader.page.click(f"#part-loss nav a:has-text('{name}')")
        reader.page.focus(".curve")
        reader.page.keyboard.press("End")
        told[name] = reader.page.inner_text(".readout").partition(": ")[2]
        assert " in step 4: " in reader.page.inner_text(SUMMARY)
    assert told["Machines"] == "1 machine"
    assert re.fullmatch(r"learning rate [\d.e-]+", told["Learning rate"])
    assert re.fullmatch(r"[\d.]+ [kM]B averaged", told["Data per step"])
    assert reader.page.url.endswith("?chart=bytes")
    reader.page.click("#part-loss nav a:has-text('Loss')")
    assert reader.page.inner_text(SUMMARY).startswith("Training loss ")
    label = reader.page.get_attribute(".curve", "aria-label")
    assert label is not None
    assert label.startswith("Training loss ")


def test_a_finished_run_shows_its_model_without_a_reload(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm, chromium() as browser:
        swarm.start_site()
        amina = swarm.sign_up("Amina")
        swarm.open_run(amina, english, trainers=1, steps=4)
        live = open_page(swarm, browser, LIVE)
        assert live.page.locator("text=Run this command to join").count() == 1
        says_the_same_anew(swarm, live)
        swarm.start_agent("amina", token=swarm.token_of(amina))
        live.page.wait_for_selector('text="Download the model"', timeout=180_000)
        assert live.page.inner_text("#part-head .badge").startswith("Finished")
        assert live.page.locator("text=Run this command to join").count() == 0
        says_the_same_anew(swarm, live)
        reads_every_chart(live)
        assert live.page.evaluate("window.mark") == "still the same page"
        assert live.faults == []


PARTS = {
    "step": """<section id="part-step"><h2>This step</h2><ul>
      <li data-key="a" data-person="Teo"><span class="who">Teo</span> <eased-number value="%d">%d</eased-number></li>
      <li data-key="b" data-person="Noor"><span class="who">Noor</span></li></ul></section>""",
    "activity": """<section id="part-activity"><p id="told">said %d times</p><input name="note">
      <details><summary>More</summary><a href="#more">link %d</a></details></section>""",
}


def test_new_parts_keep_what_the_reader_marks_opens_types_and_focuses(tmp_path: Path, english: str) -> None:
    """The feed is answered here, so that each new message comes when the reader is ready for it."""
    with Swarm(tmp_path) as swarm, chromium() as browser:
        swarm.start_site()
        swarm.sign_up("Teo")
        swarm.open_run(swarm.sign_up("Amina"), english, trainers=1, steps=4)
        reader = Reader(browser)
        page = reader.page
        sign_in(reader, swarm.url, "Teo", PASSWORD)
        count = 1

        def answer(route: Any) -> None:
            parts = {name: html % (count, count) for name, html in PARTS.items()}
            route.fulfill(json={"whole": True, "seq": 0, "parts": parts, "chart": None, "standing": standing})

        def says(text: str) -> bool:
            return bool(page.inner_text("#told") == text)

        page.route_web_socket(re.compile("/ws/"), blocked)
        page.goto(f"{swarm.url}/runs/{swarm.slug}/")
        standing = page.get_attribute("#live", "data-standing")
        page.route(re.compile("feed[.]json"), answer)
        swarm.wait(lambda: says("said 1 times"), 10, "the parts have come")
        assert page.get_attribute("#part-step [data-person=Teo]", "class") == "mine"
        assert not page.get_attribute("#part-step [data-person=Noor]", "class")
        page.fill("[name=note]", "typed")
        page.click("#part-activity summary")
        page.focus("#part-activity a")
        page.evaluate("window.kept = document.querySelector('#part-activity a')")
        count = 2
        swarm.wait(lambda: says("said 2 times"), 10, "new parts have come")
        assert page.input_value("[name=note]") == "typed"
        assert page.get_attribute("#part-activity details", "open") is not None
        assert page.evaluate("document.activeElement === window.kept && window.kept.textContent") == "link 2"
        page.wait_for_selector("#part-step eased-number:text-is('2')")
        page.evaluate("getSelection().selectAllChildren(document.getElementById('told'))")
        count = 3
        page.wait_for_selector("#part-step eased-number:text-is('3')")
        assert says("said 2 times"), "a text that is marked stays"
        assert page.evaluate("String(getSelection())") == "said 2 times"
        page.evaluate("getSelection().removeAllRanges()")
        swarm.wait(lambda: says("said 3 times"), 10, "the part that waited is shown")
        assert reader.faults == []

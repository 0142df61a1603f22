"""The terminal's texts in Bengali, and in a pseudo-locale that reveals words not marked for translation."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from peer_agent.display.device_code import code_in_words
from peer_agent.display.json_lines import JsonLinesView
from peer_agent.display.lines import Event, View
from peer_agent.display.status import (
    SENTENCES,
    ShownTrouble,
    Status,
    sentence,
    status_facts,
    status_lines,
    write_status,
)
from peer_agent.display.terminal import picture
from peer_agent.doctor import Check, bad, check_clock, check_device, check_memory, check_relays
from peer_agent.machine.home import Home
from peer_agent.machine.language import columns_of, speak, translated
from peer_agent.machine.preflight import Preflight
from peer_agent.machine.resting import WORDS, Rest, in_words
from peer_agent.protocol.errors import Fault
from peer_agent.site.enrolment import Code
from tests.agent.program import manyhands
from tests.display.test_json_lines import all_that_happens, everything
from tests.display.test_status import busy

ACCENTED = set("aeiouycnsAEIOUYCNS")  # letters that the pseudo-locale replaces in every translated message
GIVEN = set(re.findall(r"\w+", "Loading The model is overfitting Listening at port in a sentence CPU pip install it"))
NAMES = set(re.findall(r"\w+", "A small model of Python's own words; https://a.example/runs/a-run; ann"))


@pytest.fixture(autouse=True)
def _english_afterwards() -> Iterator[None]:
    yield
    speak("en")


def unmarked(text: str) -> set[str]:
    return {word for word in re.findall(r"[A-Za-z]+", text) if set(word) & ACCENTED}


def page(width: int, now: Status, *events: Event) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=60, force_terminal=True, no_color=True, legacy_windows=False)
    console.print(picture(now, events, console))
    return [Text.from_ansi(line).plain for line in stream.getvalue().splitlines()]


def in_trouble() -> Status:
    fault = Fault.of("E138", free="1 GB", path="/a")
    now = busy()
    now.events = []
    now.troubles = [ShownTrouble(fault.code, fault.title, fault.severity, fault.text)] * 5
    return now


# Every text is marked for translation


def test_everything_that_a_view_is_told_is_marked() -> None:
    speak("en_XA")
    stream = io.StringIO()
    view = View(stream)
    all_that_happens(view)
    view.state("waiting", "")
    view.state("finishing", "")
    view.progress(3, 8, 1.0)
    view.accepted = 8
    view.farewell()
    assert unmarked(stream.getvalue()) - {"E"} <= GIVEN


@pytest.mark.parametrize("doing", SENTENCES)
def test_every_page_is_marked(doing: str) -> None:
    speak("en_XA")
    now = in_trouble()
    now.doing, now.reason = doing, ""
    for now.quota, now.rank, now.loss in ((16, 3, 1.0), (0, None, None)):
        assert unmarked("\n".join(page(100, now))) - {"E"} <= NAMES


def test_a_status_is_marked(tmp_path: Path) -> None:
    speak("en_XA")
    home, now = Home(tmp_path), in_trouble()
    now.heldout_loss = 4.0
    lines = status_lines(home, {"running": False})
    with home.locked():
        lines += status_lines(home, status_facts(home, 0.0))
        for now.role in ("trainer", "auxiliary"):
            write_status(home, now, 1000.0)
            lines += status_lines(home, status_facts(home, 2000.0))
    assert unmarked("\n".join(lines).replace(str(tmp_path), "")) - {"E"} <= NAMES


def test_what_is_said_beside_it_is_marked() -> None:
    speak("en_XA")
    code = Code("x", "BCDF-GHJK", "https://a/", "https://a/?c", 900, 2)
    full = Preflight(
        device="H100", at_once=1, recomputes=True, micro_batch=8, memory_bytes=1, gpu_bytes=1, disk_bytes=1, pace_s=1.0
    )
    lines = [
        *code_in_words(code, io.StringIO(), ""),
        *full.lines(),
        *(in_words(Rest(why), translated) for why in WORDS),
    ]
    assert unmarked("\n".join(lines)) <= {"https", "a", "c", "BCDF"}


async def test_the_doctor_is_marked(tmp_path: Path) -> None:
    speak("en_XA")
    checks = [check_device(lambda: ""), check_memory(), check_clock(0.0, 0.0), *await check_relays(Home(tmp_path))]
    checks.append(bad("disk", Fault.of("E121", free="1 GB", path="/", needed="2 GB")))
    assert unmarked("\n".join(check.line() for check in checks)) <= {"E"}


# Programs get English


def test_json_is_english_whoever_reads_it(tmp_path: Path) -> None:
    home, now = Home(tmp_path), in_trouble()
    with home.locked():
        write_status(home, now, 1000.0)
        told = manyhands(tmp_path, "status", MANYHANDS_LANGUAGE="bn").stdout
        facts = json.loads(manyhands(tmp_path, "status", "--json", MANYHANDS_LANGUAGE="bn").stdout)
    assert "ধাপ 413-এর প্রশিক্ষণ চলছে।" in told
    assert "ডিস্কে জায়গা কম (E138)। /a-এর ডিস্কে মাত্র 1 GB খালি।" in told
    assert facts["sentence"] == "Training step 413."
    assert facts["troubles"][0]["title"] == "Little disk space left"


def test_troubles_are_written_down_in_english() -> None:
    speak("bn")
    (told,) = [event for event in everything() if event["event"] == "trouble"]
    assert told["text"].startswith("Only 1 GB is free on the disk of /a. ")


def test_waiting_reason_is_logged_in_english_shown_in_bengali() -> None:
    speak("bn")
    shown, written = io.StringIO(), io.StringIO()
    for view in (View(shown), JsonLinesView(written)):
        view.state("waiting", "waiting for 2 more volunteers")
        assert view.now.reason == "waiting for 2 more volunteers"
        view.now.doing = "waiting"
        assert "আরও 2 জন স্বেচ্ছাসেবকের অপেক্ষা" in sentence(view.now)
    assert "আরও 2 জন স্বেচ্ছাসেবকের অপেক্ষা" in shown.getvalue()
    assert json.loads(written.getvalue())["reason"] == "waiting for 2 more volunteers"


# Bengali


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_page_in_bengali_fits(width: int) -> None:
    speak("bn")
    now = in_trouble()
    now.title = "বাংলা প্রবাদের একটি ছোট মডেল, যা সবাই মিলে প্রশিক্ষণ দেয়, আর যার নাম এক লাইনে ধরে না"
    now.warning = "held-out লস বাড়ছে: ধাপ 400-এ 3.30 ছিল, এখন 4.29। মডেলটি ডেটা মুখস্থ করছে, তাই থামানো ভালো।"
    lines = page(width, now, Event("12:04:01", now.warning))
    assert max(map(columns_of, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for part in ("ধাপ 413-এর প্রশিক্ষণ চলছে।", "16টির মধ্যে 12টি নমুনা", "12.3 নমুনা/সে.", "41,210টি নমুনা", "3 / 17"):
        assert part in text


def test_columns_stand_below_one_another_in_bengali() -> None:
    speak("bn")
    checks = [Check(name, "ok", "|") for name in ("device", "memory", "disk", "versions", "clock")]
    assert len({columns_of(check.line().partition("|")[0]) for check in checks}) == 1
    lines = Preflight(device="|", memory_bytes=10**9, disk_bytes=10**9, gpu_bytes=1).lines()
    rows = [re.fullmatch(r"(\S+ {2,})\S.*", line) for line in lines]
    assert len({columns_of(row[1]) for row in rows if row is not None}) == 1
    assert all(rows)
    names = re.compile(r"((?:প্রশিক্ষণের লস|গতি|আপ ও ডাউন|স্বীকৃতি|স্থান) +)\S.*")
    figures = [row[1] for line in page(100, busy()) if (row := names.fullmatch(line)) is not None]
    assert [len(figures), len(set(map(columns_of, figures)))] == [5, 1]


def test_help_is_in_the_readers_language(tmp_path: Path) -> None:
    said = {
        language: manyhands(tmp_path, "join", "--help", LANG=language, COLUMNS="200").stdout
        for language in ("C", "xx_YY.UTF-8", "bn_BD.UTF-8")
    }
    assert "Train the run at RUN_URL" in said["C"]
    assert said["xx_YY.UTF-8"] == said["C"]
    assert "RUN_URL-এর রানের প্রশিক্ষণে সাহায্য করে" in said["bn_BD.UTF-8"]
    assert ("│" in said["C"], "│" in said["bn_BD.UTF-8"]) == (True, False), "frames break in many terminals"


def test_an_error_that_ends_a_command_is_in_the_readers_language(tmp_path: Path) -> None:
    done = manyhands(tmp_path, "leave", MANYHANDS_LANGUAGE="bn")
    assert done.returncode == 1
    assert done.stderr.startswith(f"E116: {tmp_path}-এ কোনো এজেন্ট কাজ করছে না। কিছুই বদলায়নি।")

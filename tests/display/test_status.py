"""The status file that one command writes and another reads: fresh, stale or absent, and its display."""

import io
import json
import logging
import re
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from peer_agent.display.lines import Event
from peer_agent.display.status import (
    SENTENCES,
    ShownTrouble,
    Status,
    is_stale,
    read_status,
    sentence,
    status_facts,
    status_lines,
    write_status,
)
from peer_agent.display.terminal import HINT, LiveView, is_terminal, picture
from peer_agent.machine.home import Home
from peer_agent.network.uplink import Rates, Traffic
from peer_agent.protocol.errors import Fault

CLEARED = "\x1b[2J"


def busy() -> Status:
    return Status(
        site="https://a.example",
        run="a-run",
        title="A small model of Python's own words",
        person="ann",
        doing="training",
        step=413,
        target_steps=1000,
        loss=3.4212,
        samples=12,
        quota=16,
        samples_per_s=12.34,
        up_mbps=1.25,
        down_mbps=0.75,
        accepted=41210,
        rank=3,
        people=17,
        events=[
            "12:04:01  step 412: loss 3.421, 17 machines, 12 of 2,048 samples from this machine",
            "12:04:02  two",
            "3",
        ],
    )


def test_status_is_read_only_from_the_running_agent(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert read_status(home) is None
    with home.locked():
        assert status_facts(home, 0.0)["running"] is True
        write_status(home, busy(), 1000.0)
        read = read_status(home)
        assert read is not None
        assert (read.title, read.at) == (busy().title, 1000.0)
        write_status(home, Status(pid=1), 1000.0)
        assert read_status(home) is None, "it was said by another process"
        write_status(home, busy(), 1000.0)
    assert read_status(home) is None
    assert status_facts(home, 0.0) == {"running": False, "pid": None}


@pytest.mark.parametrize("content", [b"", b"{", b'{"pid": "x"}', b"\xff"])
def test_a_status_that_is_damaged_is_none(tmp_path: Path, content: bytes) -> None:
    home = Home(tmp_path)
    home.write("status.json", content)
    with home.locked():
        assert "has reported nothing yet" in status_lines(home, status_facts(home, 0.0))[0]


def test_what_a_run_takes_is_a_line_of_the_status(tmp_path: Path) -> None:
    home, now = Home(tmp_path), busy()
    now.energy_wh, now.sent_bytes = 412.0, 2_700_000_000
    with home.locked():
        write_status(home, now, 1000.0)
        assert status_lines(home, status_facts(home, 1000.0))[-1] == "About 0.4 kWh and 2.7 GB up so far."


def test_an_agent_that_sleeps_is_told_from_one_that_works(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.locked():
        write_status(home, busy(), 1000.0)
        fresh, stale = (status_facts(home, now) for now in (1010.0, 1030.0))
        assert (fresh["stale"], stale["stale"]) == (False, True)
        assert "Training step 413." in status_lines(home, fresh)
        assert len(status_lines(home, stale)) == len(status_lines(home, fresh)) + 1
        json.dumps(fresh)
    assert is_stale(busy(), time.time())


@pytest.mark.parametrize("doing", SENTENCES)
def test_everything_it_may_do_has_a_sentence(doing: str) -> None:
    assert sentence(Status(doing=doing)).endswith(".")


def shown(width: int, now: Status, *events: Event) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=24, force_terminal=True, no_color=True, legacy_windows=False)
    console.print(picture(now, events, console))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_page_fits_and_says_everything(width: int) -> None:
    lines = shown(width, busy())
    assert len(lines) <= 24
    assert max(len(Text.from_ansi(line).plain.rstrip()) for line in lines) <= width
    text = " ".join(" ".join(Text.from_ansi(line).plain for line in lines).split())
    for part in (
        "Training step 413.",
        "3.421",
        "12.3 samples/s",
        "1.2 and 0.8 Mb/s",
        "41,210 samples",
        "3 of 17",
        HINT,
    ):
        assert part in text
    assert "▓" * 3 in text
    assert "12 of 16 samples" in text
    assert ("step 413 of 1,000" in text) == (width > 40)


def test_held_out_loss_leads_and_a_warning_is_read_whole(tmp_path: Path) -> None:
    now, home = busy(), Home(tmp_path)
    assert "training loss" in " ".join(shown(80, now))
    now.heldout_loss, now.warning = 4.2901, "The model is overfitting: held-out loss rose from 3.30 at step 400."
    for width in (40, 80, 120):
        lines = [Text.from_ansi(line).plain for line in shown(width, now)]
        assert len(lines) <= 24
        text = " ".join(" ".join(lines).split())
        assert ("held-out loss" in text, "4.290" in text, "3.421 " in text.replace("loss 3.421,", "")) == (
            True,
            True,
            False,
        )
        assert now.warning in text
    with home.locked():
        write_status(home, now, 1000.0)
        lines = status_lines(home, status_facts(home, 1000.0))
    assert now.warning in lines
    assert "training loss 3.421, held-out loss 4.290" in lines[-1]


def test_an_error_is_read_to_its_end() -> None:
    fault = Fault.of("E108", samples="0-3", shard=2)
    page = " ".join(" ".join(shown(80, busy(), Event("12:04:01", str(fault), fault.code))).split())
    assert f"{fault.code}: {fault.text}" in page


def wrong(code: str, title: str = "No relay reachable") -> ShownTrouble:
    return ShownTrouble(code, title, "high", "None of the run's relays can be reached. Nothing was lost.")


def test_troubles_stand_below_the_sentence_as_far_as_they_fit() -> None:
    now = busy()
    now.troubles = [wrong("E135")]
    (line,) = [line for line in shown(80, now) if "E135" in line]
    assert Text.from_ansi(line).plain.startswith("No relay reachable (E135). None of the run's relays")
    now.troubles = [wrong(f"E{number}") for number in range(501, 506)]
    lines = shown(80, now)
    assert len(lines) <= 24
    text = " ".join(lines)
    assert [code for code in ("E501", "E503", "E504") if code in text] == ["E501", "E503"]
    assert "2 more: see `manyhands status`." in text


def test_another_command_reads_what_is_wrong_and_what_happened(tmp_path: Path) -> None:
    home, now = Home(tmp_path), busy()
    now.troubles = [wrong("E135")]
    now.events = ["12:04:01  Joined.", "12:04:02  E108: again"]
    with home.locked():
        write_status(home, now, 1000.0)
        facts = status_facts(home, 1000.0)
    assert facts["troubles"][0]["code"] == "E135"
    assert facts["events"] == ["12:04:01  Joined.", "12:04:02  E108: again"], "a line each, as programs know it"
    assert wrong("E135").line in status_lines(home, facts)


def test_colour_says_nothing_alone_and_may_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=stream, width=80, force_terminal=True, legacy_windows=False)
    now = busy()
    now.troubles = [wrong("E135")]
    console.print(picture(now, [Event("12:04:01", "E108: a", "E108")], console))
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", stream.getvalue())
    assert "(E135)" in stream.getvalue()
    assert "E108: " in stream.getvalue()


def test_an_error_is_red_by_its_number_and_not_by_its_words() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, legacy_windows=False, color_system="standard")
    events = [Event("12:04:01", "an error", "E108"), Event("12:04:02", "E108: a sentence")]
    console.print(picture(busy(), events, console))
    (error,) = [line for line in stream.getvalue().splitlines() if "an error" in line]
    (sentence_,) = [line for line in stream.getvalue().splitlines() if "a sentence" in line]
    assert ("\x1b[31m" in error, "\x1b[31m" in sentence_) == (True, False)


def test_a_terminal_of_another_size_gets_a_new_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal has wrapped the lines of the old page, so overwriting it in place would leave fragments."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    view = LiveView(stream)
    view.console = Console(file=stream, width=80, height=24, force_terminal=True, legacy_windows=False)
    with view.live(tmp_path / "agent.log"):
        view.refresh()
        assert CLEARED not in stream.getvalue()
        view.console.size = ConsoleDimensions(60, 24)
        view.refresh()
        assert stream.getvalue().count(CLEARED) == 1
        view.refresh()
        assert stream.getvalue().count(CLEARED) == 1


def test_without_a_terminal_there_are_lines() -> None:
    assert not is_terminal(io.StringIO())
    stream = io.StringIO()
    view = LiveView(stream)
    view.say("one")
    assert stream.getvalue().endswith("  one\n")
    assert view.events[-1].text == "one"


def test_a_warning_stands_on_the_page_and_is_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    view = LiveView(stream)
    view.console = Console(file=stream, width=80, height=24, force_terminal=True, legacy_windows=False)
    with view.live(tmp_path / "agent.log"):
        before = stream.tell()
        view.warn("The model is overfitting.")
        assert "The model is overfitting." in stream.getvalue()[before:]
        view.warn("")
    assert view.events == []
    view.warn("The model is overfitting.")
    assert stream.getvalue().endswith("  The model is overfitting.\n"), "there is no page any more"


def test_the_first_credit_stays_above_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    view = LiveView(stream)
    view.console = Console(file=stream, width=80, height=24, force_terminal=True, legacy_windows=False)
    with view.live(tmp_path / "agent.log"):
        view.first_credit(12, 64)
        for step in range(5):
            view.say(f"event {step}")
    assert stream.getvalue().count("Your first 64 samples are in the model: step 12.") == 1
    assert [event.text for event in view.events] == ["event 2", "event 3", "event 4"]


def test_the_last_page_says_that_the_run_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    view = LiveView(stream)
    view.now = busy()
    view.now.site, view.now.run = "https://train.example.org", "proverbs"
    with view.live(tmp_path / "agent.log"):
        before = stream.tell()
        view.state("finished", "")
    page = stream.getvalue()[before:]
    assert "The run is finished. Thank you" in page
    assert "The model: https://train.example.org/runs/proverbs/" in page
    assert "Ctrl-C" not in page


def test_what_is_logged_does_not_tear_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    view = LiveView(stream)
    with view.live(tmp_path / "agent.log"):
        logging.getLogger("somewhere").warning("a line")
    assert "a line" in (tmp_path / "agent.log").read_text()
    assert "a line" not in stream.getvalue()


def test_rates_are_of_the_last_seconds() -> None:
    traffic = Traffic()
    rates = Rates(traffic)
    assert rates.read(0.0) == (0.0, 0.0)
    traffic.add(sent=1_000_000, received=500_000)
    assert rates.read(1.0) == (8.0, 4.0)
    for second in range(2, 9):
        last = rates.read(float(second))
    assert last == (0.0, 0.0)

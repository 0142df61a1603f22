"""A title of a run stands in other people's terminals: it may look odd, it may not act."""

import io
import logging
from pathlib import Path

import pytest

from peer_agent.display.lines import View
from peer_agent.machine.faults import sanitize_fault
from peer_agent.machine.sanitize import SanitizingFormatter, sanitize
from peer_agent.protocol.errors import Fault
from tests.agent.program import complaint, http_site, known_at


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("A small model", "A small model"),
        ("Ọ̀rọ̀ Yorùbá · 诗 · شعر", "Ọ̀rọ̀ Yorùbá · 诗 · شعر"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\x1b]0;owned\x07\x1b[2Jgone", "]0;owned[2Jgone"),
        ("one\r\ntwo\tthree", "one  two three"),
        ("good\u202elive\u2066", "goodlive"),
    ],
)
def test_words_stay_and_what_acts_goes(given: str, shown: str) -> None:
    assert sanitize(given) == shown


def test_a_line_of_the_agent_is_one_line() -> None:
    stream = io.StringIO()
    View(stream).say("Joining “A\x1b[2J\nrun”.")
    assert stream.getvalue().endswith("  Joining “A[2J run”.\n")
    assert stream.getvalue().count("\n") == 1


ACTS = "\x1b]0;owned\x07\x1b[2J\u202eback\r"


def test_an_error_of_somebody_elses_words_acts_no_more_and_its_own_lines_stay() -> None:
    shown = sanitize_fault(Fault(f"E999{ACTS}", f"one{ACTS}\ntwo"))
    assert (shown.code, shown.text) == ("E999]0;owned[2Jback ", "one]0;owned[2Jback \ntwo")


def test_a_line_of_the_log_acts_no_more() -> None:
    said = SanitizingFormatter().format(
        logging.makeLogRecord({"msg": "%s", "args": (ACTS,), "name": "peer_agent.trainer.agent"})
    )
    assert said.endswith("peer_agent.trainer.agent: ]0;owned[2Jback ")


@pytest.mark.parametrize("command", ["join", "login", "relay"])
def test_a_sites_error_ends_a_command_without_acting(tmp_path: Path, command: str) -> None:
    with http_site(lambda _: (409, {"code": "E306", "text": f"The run {ACTS} is finished."})) as url:
        known_at(tmp_path, url)
        said = complaint(tmp_path, command, f"{url}/runs/a/")
    assert said == "E306: The run ]0;owned[2Jback  is finished."

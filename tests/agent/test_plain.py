"""A title of a run stands in other people's terminals: it may look odd, it may not act."""

import io

import pytest

from peer_agent.plain import plain
from peer_agent.view import View


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
    assert plain(given) == shown


def test_a_line_of_the_agent_is_one_line() -> None:
    stream = io.StringIO()
    View(stream).say("Joining “A\x1b[2J\nrun”.")
    assert stream.getvalue().endswith("  Joining “A[2J run”.\n")
    assert stream.getvalue().count("\n") == 1

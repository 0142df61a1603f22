"""Names in messages: whatever they are made of, they are seen as they are and stay on their line."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notices.models import Event
from notices.words import LONGEST, MOST_MARKS, NAMELESS, one_line, quoted, words_of

HARMFUL = (
    "\u202e\u202d\u2066\u2067\u2068\u2069\u200b\u200e\u200f\u2060\ufeff\u00ad\r\n\x00\x1b\x85\u2028\u2029\U000e0041"
)
NAMES = st.text(
    st.one_of(st.characters(), st.sampled_from(HARMFUL + "\u200c\u200d\u0301\u3164<>&@*_[]()`")), max_size=300
)


@given(NAMES)
def test_a_name_is_one_line_of_what_can_be_seen(name: str) -> None:
    line = one_line(name)
    assert 0 < len(line) <= LONGEST
    assert line == line.strip()
    for place, letter in enumerate(line):
        category = unicodedata.category(letter)
        if letter in "\u200c\u200d":
            assert unicodedata.category(line[place - 1]) in ("Lo", "Mn", "Mc"), "within a word of a joining script"
        else:
            assert category[0] != "C"
            assert category not in ("Zl", "Zp")
            assert letter == " " or not letter.isspace()
    marks = "".join("m" if unicodedata.category(letter) in ("Mn", "Me") else " " for letter in line)
    assert max(map(len, marks.split()), default=0) <= MOST_MARKS


@given(NAMES)
def test_a_name_in_quotes_turns_nothing_around_it(name: str) -> None:
    text = quoted(name)
    assert (text[0], text[-1]) == ("“", "”")
    inside = text[1:-1]
    turns = any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in inside)
    isolated = inside.startswith("\u2068") and inside.endswith("\u2069")
    assert isolated == turns
    assert not set(inside.strip("\u2068\u2069")) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@given(st.sampled_from(list(Event)), NAMES, NAMES)
def test_a_headline_is_one_line(event: Event, title: str, machine: str) -> None:
    headline, text = words_of(event, title=title, machine=machine)
    assert "\n" not in headline + text
    assert "\r" not in headline + text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("A model of proverbs", "A model of proverbs"),
        ("  two \t\n lines ", "two lines"),
        ("ক্‌ষ", "ক্‌ষ"),  # Bengali, with a joiner that is spelling
        ("می‌خواهم", "می‌خواهم"),  # Persian, the same
        ("Amina\u200dTeo", "AminaTeo"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\u3164\u2800\u200b", NAMELESS),
        ("", NAMELESS),
        ("e" + "\u0301" * 40, "é" + "\u0301" * MOST_MARKS),
        ("a" * 200, "a" * (LONGEST - 1) + "…"),
    ],
)
def test_what_stays_of_a_name(name: str, line: str) -> None:
    assert one_line(name) == line


def test_every_event_has_words_of_its_own() -> None:
    assert len({words_of(event, title="Proverbs", machine="kitchen") for event in Event}) == len(Event)

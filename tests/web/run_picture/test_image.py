"""Titles on preview images: which titles can be drawn, and how they fit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from web.run_picture.image import END, SIZES, drawable, fitted, width_of

ROOM = 1088.0


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("A model of proverbs", "A model of proverbs"),
        ("Zero\u200bwidth\u2060 \u202ejoiners\u200d", "Zerowidth joiners"),
        (" Two\u00a0lines\n of it ", "Two lines of it"),
        ("“Quoted” … 40 ±", "“Quoted” … 40 ±"),
        ("বাংলা প্রবাদ", ""),
        ("ক্\u200dষ", ""),
        ("نموذج", ""),
        ("Proverbs in বাংলা", ""),
        ("T\u00eate", ""),
        ("Te\u0302te", ""),
        ("\U0001f525 Fire", ""),
        ("\ufffd\u25a1", ""),
        ("\u200b\u2060", ""),
        ("untitled", "untitled"),
    ],
)
def test_a_title_is_drawn_where_the_font_has_all_its_letters(title: str, shown: str) -> None:
    assert drawable(title) == shown


def test_short_titles_are_larger() -> None:
    assert fitted("Proverbs", ROOM) == (60, ["Proverbs"])
    size, lines = fitted("A model of all the proverbs and sayings of our village in the hills", ROOM)
    assert (size, len(lines)) == (46, 2)


@settings(max_examples=40)
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126) | st.just(" "), min_size=1, max_size=120))
def test_whatever_it_says_it_fits(text: str) -> None:
    size, lines = fitted(text, ROOM)
    assert len(lines) <= dict(SIZES)[size]
    assert all(width_of(line, size) <= ROOM for line in lines)
    said, whole = "".join(lines).replace(" ", ""), "".join(text.split())
    assert said == whole or (said.endswith(END) and whole.startswith(said.removesuffix(END)))

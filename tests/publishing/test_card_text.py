"""Whatever people call themselves and their runs: the card keeps its shape, in YAML, Markdown and direction."""

from collections import Counter
from typing import Any

import msgspec
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from peer_agent.publishing.card import END_ISOLATE, ISOLATE, CardFacts, Person, paragraph, plain, write_card
from tests.training.commits import small_recipe

TAME = CardFacts(
    slug="a-run",
    title="Title",
    purpose="Purpose",
    steps=3,
    loss=3.0,
    people=(Person("Ann", 0.5, 10), Person("Bob", 0.25, 5)),
    unnamed=2,
    unnamed_share=0.25,
    unnamed_samples=5,
    data_title="Text",
    data_licence="CC0",
    points=((1, 5.0), (3, 3.0)),
)
READER = MarkdownIt("gfm-like", {"linkify": False})
NASTY = st.text() | st.sampled_from(
    [
        "---\nfoo: bar\n---",
        "<script>alert(1)</script>",
        "| a | b |",
        "[x](javascript:alert(1))",
        "![x](http://a/b.png)",
        "1. one",
        "- one",
        "+ one",
        "    code",
        "```",
        "# head",
        "===",
        "***",
        "&lt;b&gt;",
        "$x$",
        "\u202eevil",
        "שלום | עולם",
        "\\",
        "`",
        "http://x.example/a_b_c",
    ]
)


def card(title: str, purpose: str, names: tuple[str, str], data: str) -> str:
    people = tuple(msgspec.structs.replace(person, name=name) for person, name in zip(TAME.people, names, strict=True))
    facts = msgspec.structs.replace(
        TAME, title=title, purpose=purpose, people=people, data_title=data, data_licence=data
    )
    return write_card(small_recipe(), facts, parameters=36_000)


def shape(text: str) -> Counter[str]:
    """How often which kind of thing stands in it; words and how they are cut do not count."""
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == yaml.safe_load(write_card(small_recipe(), TAME, parameters=1).split("---\n", 2)[1])
    found: Counter[str] = Counter()
    for token in READER.parse(body):
        found[token.type] += token.type != "inline"
        found.update(child.type for child in token.children or () if child.type not in ("text", "text_special"))
    return found


def tame(words: str) -> str:
    """Where nothing is left of a text, its paragraph is left out too."""
    return "Purpose" if paragraph(words) else ""


@given(NASTY, NASTY, st.tuples(NASTY, NASTY), NASTY)
@example("T", "1) a", ("|", "\\|"), "`")
def test_nobodys_words_change_the_shape(title: str, purpose: str, names: tuple[str, str], data: str) -> None:
    assert shape(card(title, purpose, names, data)) == shape(card("Title", tame(purpose), ("Ann", "Bob"), "Text"))


@given(NASTY)
def test_direction_stays_with_its_words(words: str) -> None:
    inside = plain(words)
    assert inside.count(ISOLATE) == inside.count(END_ISOLATE) <= 1
    assert not set(inside) & set("\u202a\u202b\u202c\u202d\u202e\u200e\u200f\u061c\u2066\u2067")
    assert "\n" not in inside


def test_text_from_right_to_left_is_kept_to_itself() -> None:
    assert plain("שלום") == f"{ISOLATE}שלום{END_ISOLATE}"
    assert plain("\u202eabc") == "abc"


def test_those_who_did_not_agree_are_counted() -> None:
    text = card("T", "", ("Ann", "Bob"), "x")
    assert "| Ann | 10 | 50.0% |" in text
    assert "| and 2 more people | 5 | 25.0% |" in text
    assert "by 4 people" in text
    alone: Any = msgspec.structs.replace(TAME, people=(), unnamed=1)
    assert "| 1 person | 5 | 25.0% |" in write_card(small_recipe(), alone, parameters=1)


def test_the_curve_and_the_recipe_are_there() -> None:
    text = card("T", "", ("Ann", "Bob"), "x")
    assert "![Loss from 5.00 at step 1 to 3.00 at step 3](loss-curve.svg)" in text
    assert '"target_batch": 24' in text

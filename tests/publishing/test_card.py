"""The model card gives known facts, and text from users cannot break it."""

from collections import Counter
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.card import (
    END_ISOLATE,
    ISOLATE,
    CardFacts,
    Person,
    paragraph,
    parse_facts,
    plain,
    write_card,
)
from tests.training.commits import small_recipe

FACTS = CardFacts(
    slug="welsh-stories",
    title="Welsh stories",
    steps=1200,
    loss=3.21049,
    heldout_loss=3.4,
    unigram_entropy=6.0,
    samples=57_600,
    tokens=3_628_800,
    people=(Person("Ann", 0.7512, 43_200), Person("Bob", 0.2488, 14_400)),
    data_title="Stories",
    data_licence="CC0",
    address="https://site.example/runs/welsh-stories/",
    state_digest="0123456789abcdef",
)


def card(**changes: object) -> str:
    return write_card(small_recipe(), msgspec.structs.replace(FACTS, **changes), parameters=36_000)


def test_the_facts_are_there() -> None:
    text = card()
    for fact in ("# Welsh stories", "1,200", "3.210 nats", "3.400 nats", "6.000 nats", "57,600", "CC0", "36,000"):
        assert fact in text
    assert "| Ann | 43,200 | 75.1% |" in text
    assert "`0123456789abcdef`" in text
    assert "2 people" in text


def test_a_held_out_loss_of_an_earlier_step_says_so() -> None:
    assert "| Held-out loss | 3.400 nats per token, at step 1,100 |" in card(heldout_step=1100)
    assert "| Held-out loss | 3.400 nats per token |" in card(heldout_step=1200)


def test_card_says_that_the_model_or_the_later_run_overfitted() -> None:
    best = {"best_heldout_loss": 3.1, "best_heldout_step": 800}
    said = card(heldout_step=1200, is_overfitting=True, **best)
    assert "**This model is overfitting.** Its held-out loss rose after step 800 while" in said
    later = card(heldout_step=1200, later_heldout_loss=4.25, later_heldout_step=2000)
    assert (
        "**The run overfitted after this model.** Held-out loss rose from 3.400 at step 1,200 to 4.250 at step" in later
    )
    assert "overfit" not in card()


def test_what_else_was_measured_is_said_beside_the_loss() -> None:
    text = card(heldout_figures={"masked accuracy": 0.51234, "perplexity": 1234.5})
    assert "| Held-out masked accuracy | 51.2% |\n| Held-out perplexity | 1,234.5 |" in text
    assert "accuracy" not in card()


def test_who_vouched_for_the_text_is_named() -> None:
    assert "| Sharing confirmed by | Ann, 2026-11-21 |" in card(data_vouched="Ann, 2026-11-21")
    assert "Sharing confirmed" not in card()


def test_what_is_not_known_is_not_said() -> None:
    text = card(heldout_loss=None, people=(), state_digest="", address="javascript:alert(1)")
    assert "not measured" in text
    assert "## People" not in text
    assert "State digest" not in text
    assert "javascript" not in text


def test_the_front_matter_is_yaml() -> None:
    meta = yaml.safe_load(card().split("---")[1])
    assert meta["library_name"] == "transformers"
    assert "manyhands" in meta["tags"]


def test_names_cannot_break_the_card() -> None:
    text = card(people=(Person("Eve | <script> \n\n# heading [x](y)", 1.0),), title="---\nfoo: bar")
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\n# heading" not in text
    assert text.count("\n---\n") == 1
    assert plain(" a\n b ") == "a b"


def test_facts_of_a_newer_site_are_read() -> None:
    facts = parse_facts(b'{"slug": "x", "title": "X", "steps": 1, "loss": 2.0, "unheard_of": []}')
    assert (facts.slug, facts.people) == ("x", ())


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"slug": "../up", "title": "X", "steps": 1, "loss": 2.0}'])
def test_facts_that_are_none_have_a_number(data: bytes) -> None:
    with pytest.raises(Problem, match="E312"):
        parse_facts(data)


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


def card_of(title: str, purpose: str, names: tuple[str, str], data: str) -> str:
    people = tuple(msgspec.structs.replace(person, name=name) for person, name in zip(TAME.people, names, strict=True))
    facts = msgspec.structs.replace(
        TAME, title=title, purpose=purpose, people=people, data_title=data, data_licence=data
    )
    return write_card(small_recipe(), facts, parameters=36_000)


def shape(text: str) -> Counter[str]:
    """Count the Markdown tokens by kind, ignoring the text and how it is split."""
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == yaml.safe_load(write_card(small_recipe(), TAME, parameters=1).split("---\n", 2)[1])
    found: Counter[str] = Counter()
    for token in READER.parse(body):
        found[token.type] += token.type != "inline"
        found.update(child.type for child in token.children or () if child.type not in ("text", "text_special"))
    return found


def tame(words: str) -> str:
    """Return "Purpose", or an empty string if no text is left and the card therefore omits the paragraph."""
    return "Purpose" if paragraph(words) else ""


@given(NASTY, NASTY, st.tuples(NASTY, NASTY), NASTY)
@example("T", "1) a", ("|", "\\|"), "`")
def test_nobodys_words_change_the_shape(title: str, purpose: str, names: tuple[str, str], data: str) -> None:
    assert shape(card_of(title, purpose, names, data)) == shape(card_of("Title", tame(purpose), ("Ann", "Bob"), "Text"))


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
    text = card_of("T", "", ("Ann", "Bob"), "x")
    assert "| Ann | 10 | 50.0% |" in text
    assert "| and 2 more people | 5 | 25.0% |" in text
    assert "by 4 people" in text
    alone: Any = msgspec.structs.replace(TAME, people=(), unnamed=1)
    assert "| 1 person | 5 | 25.0% |" in write_card(small_recipe(), alone, parameters=1)


def test_the_curve_and_the_recipe_are_there() -> None:
    text = card_of("T", "", ("Ann", "Bob"), "x")
    assert "![Loss from 5.00 at step 1 to 3.00 at step 3](loss-curve.svg)" in text
    assert '"target_batch": 24' in text

"""Details are extracted from a finished sentence by the words around them."""

import pytest

from peer_agent.protocol.errors import Fault
from peer_agent.protocol.errors.translation import in_words, places_in, refilled


def marked(english: str) -> str:
    return f"⟦{english}⟧"


def test_places_are_found_in_one_look() -> None:
    assert places_in("{a} of {b}.", "1 of 2.") == ({"a": "1", "b": "2"}, "")
    assert places_in("{a} of {b}.", "1 of 2. More.") == ({"a": "1", "b": "2"}, " More.")
    assert places_in("{a} of {b}", "1 of 2 of 3") == ({"a": "1", "b": "2 of 3"}, "")
    assert places_in("It is {a}.", "Was it 1.") is None
    assert places_in("No.", "No.thing") is None
    long = "( " * 100_000
    assert places_in("{a} ( {b} ( {c} ) {d}", long) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3 of {names}", "⟦3 of {names}⟧"),
        ("none", "⟦none⟧"),
        ("none of them", "⟦none of them⟧"),
        ("3", "3"),
    ],
)
def test_text_is_refilled_only_by_the_template_that_made_it(text: str, told: str) -> None:
    assert refilled(("none", "{number} of {names}"), text, marked) == told


def test_an_error_is_told_part_by_part() -> None:
    told = in_words(Fault.of("E305", address="/runs/x/"), marked)
    assert (told.code, told.cause) == ("E305", "⟦There's no run at /runs/x/.⟧")
    assert told.remedy == "⟦Check the address you were given, or browse all runs.⟧"


@pytest.mark.parametrize("fault", [Fault("E999", "new"), Fault("E305", "of another version")])
def test_what_is_not_known_stays(fault: Fault) -> None:
    assert in_words(fault, marked) is fault

"""The form has a field for every value of the recipe that an organizer chooses."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Model, Optimizer, Recipe
from web.pages.runs.new_run_form import form_field
from web.pages.runs.recipe_fields import FIELDS, WORDS, recipe_from

NOT_CHOSEN = {"objective", "mode"}  # there is one of each so far


def values(kind: Any, path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        nested = {"model": Model, "optimizer": Optimizer}.get(field.name)
        yield from values(nested, f"{field.name}.") if nested else [f"{path}{field.name}"]


def test_every_value_has_its_words() -> None:
    worded = {path for _, path, *_ in WORDS}
    assert set(values(Recipe)) - worded - NOT_CHOSEN == set()


def test_a_choice_among_numbers_is_a_number() -> None:
    field = next(field for field in FIELDS if field.name == "staleness")
    chosen = [form_field(field).clean(choice) for choice in field.choices]
    assert [recipe_from({"staleness": value}).staleness for value in (*chosen, "", None)] == [0, 1, 0, 0]


def test_what_is_none_of_the_choices_is_refused() -> None:
    with pytest.raises(Problem) as caught:
        recipe_from({"staleness": "2"})
    assert caught.value.fault.code == "E301"

"""The form has a field for every value of the recipe that an organizer chooses."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes import KINDS
from peer_agent.recipes.causal_lm import CausalLM
from web.pages.runs.forms import recipe_fields
from web.pages.runs.forms.new_run import form_field
from web.pages.runs.forms.recipe_fields import COMMON, DETAILS, fields_of, recipe_from, values_of

NOT_CHOSEN = {"mix"}  # sources are named beside their texts


def values(kind: Any, path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        is_nested = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        yield from values(field.type, f"{field.name}.") if is_nested else [f"{path}{field.name}"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_value_has_its_words(kind: type[Recipe]) -> None:
    worded = {".".join(field.path) for field in fields_of(kind)}
    chosen = {value for value in values(kind) if value.partition(".")[0] not in kind.from_data}
    assert chosen - worded - NOT_CHOSEN == set()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_form_that_is_sent_as_it_came_gives_the_recipe_it_began_with(kind: type[Recipe]) -> None:
    for recipe in (kind(), *kind.presets.values()):
        assert recipe_from(kind, values_of(recipe)) == recipe


def test_a_choice_among_numbers_is_a_number() -> None:
    field = next(field for field in fields_of(CausalLM) if field.name == "staleness")
    chosen = [form_field(field, 0).clean(choice) for choice, _ in field.choices]
    assert [recipe_from(CausalLM, {"staleness": value}).staleness for value in (*chosen, "", None)] == [0, 1, 0, 0]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_choice_has_its_words(kind: type[Recipe]) -> None:
    for words in (*kind.words, *COMMON[DETAILS]):
        values = {value for value, _ in recipe_fields._described(kind, "", words._replace(choices=())).choices}
        assert not words.choices or set(dict(words.choices)) == values


def test_what_is_none_of_the_choices_is_refused() -> None:
    with pytest.raises(Problem) as caught:
        recipe_from(CausalLM, {"staleness": "2"})
    assert caught.value.fault.code == "E301"

"""The form has a field for every value of the recipe that an organizer chooses."""

from collections.abc import Iterator
from typing import Any

import msgspec

from peer_agent.protocol.recipe import Model, Optimizer, Recipe
from web.pages.runs.recipe_fields import WORDS

NOT_CHOSEN = {"objective", "mode", "staleness"}  # there is one of each so far


def values(kind: Any, path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        nested = {"model": Model, "optimizer": Optimizer}.get(field.name)
        yield from values(nested, f"{field.name}.") if nested else [f"{path}{field.name}"]


def test_every_value_has_its_words() -> None:
    worded = {path for _, path, *_ in WORDS}
    assert set(values(Recipe)) - worded - NOT_CHOSEN == set()

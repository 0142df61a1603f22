"""Long lists in parts: a page shows a hundred rows at a time."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.http import HttpRequest

ROWS = 100
MOST_DIGITS = 9
BEFORE = re.compile(r"[0-9]{1,18}")  # a row's primary key


class Part(NamedTuple):
    """One page of a list, with links to the previous and next pages. A link is empty if there is no such page."""

    rows: Sequence[Any]
    before: str
    after: str

    def __bool__(self) -> bool:
        return bool(self.rows)


class Older(NamedTuple):
    """The latest rows of a table, or the rows before a given one. `older` is the key at which the next part begins."""

    rows: list[Any]
    is_older: bool
    older: int | None


def rows_before(rows: QuerySet[Any], request: HttpRequest, size: int) -> Older:
    """Return up to `size` rows in one query, latest first. With `?before=`, return only rows before that key."""
    said = request.GET.get("before", "")
    is_older = BEFORE.fullmatch(said) is not None
    found = list((rows.filter(pk__lt=int(said)) if is_older else rows).order_by("-pk")[: size + 1])
    return Older(found[:size], is_older, found[size - 1].pk if len(found) > size else None)


def part_of(rows: QuerySet[Any] | Sequence[Any], request: HttpRequest, name: str, page: str) -> Part:
    """Return rows in one query, starting at the position in the query parameter `name`.

    `page` is the address for the links, since a form shown with errors has a different address.
    """
    said = request.GET.get(name, "")
    begin = int(said) if said.isascii() and said.isdigit() and len(said) <= MOST_DIGITS else 0
    found = list(rows[begin : begin + ROWS + 1])
    before = f"{page}?{name}={max(0, begin - ROWS)}#{name}" if begin else ""
    return Part(found[:ROWS], before, f"{page}?{name}={begin + ROWS}#{name}" if len(found) > ROWS else "")

"""Preparation of data: the description that the site stores and passes to its children, and the result."""

import functools
import operator
from typing import Any

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import KINDS, Preparation


class DataFile(Struct, frozen=True):
    """A written file: sha256 in hexadecimal, size in the recipe's unit of data, and number of its source."""

    digest: str
    size: int
    source: int = 0


class Prepared(Struct, frozen=True, kw_only=True):
    """The result of preparing a file. `size` is of all shards; `heldout` is None if there are too few data."""

    size: int
    shards: list[DataFile]
    heldout: DataFile | None
    pieces: list[str]  # a few samples, for people
    ready: str  # the line for a run's timeline


def parse_preparation(data: str) -> Preparation:
    """Decode a recipe's encoded `preparation`. Raises Problem E301."""
    known: Any = functools.reduce(operator.or_, dict.fromkeys(kind.prepares for kind in KINDS.values()))
    try:
        found: Preparation = msgspec.json.decode(data, type=known)
    except msgspec.DecodeError as error:
        raise Problem.of("E301", reason=error) from error
    return found

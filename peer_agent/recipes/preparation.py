"""The settings and the result of data preparation.

The site stores the settings, and passes them to the child processes that prepare data.
"""

import functools
import operator
from typing import Any

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import KINDS, Preparation


class DataFile(Struct, frozen=True):
    """A file written during preparation. `digest`: SHA-256 in hexadecimal. `size`: in the recipe's unit of data."""

    digest: str
    size: int
    source: int = 0


class Prepared(Struct, frozen=True, kw_only=True):
    """The result of preparing data. `size`: the total of all shards. `heldout`: None if there is too little data."""

    size: int
    shards: list[DataFile]
    heldout: DataFile | None
    ready: str  # a line for the run's timeline


def parse_preparation(data: str) -> Preparation:
    """Parse the settings of a preparation from JSON. Raises Problem E301 if they are invalid."""
    known: Any = functools.reduce(operator.or_, dict.fromkeys(kind.prepares for kind in KINDS.values()))
    try:
        found: Preparation = msgspec.json.decode(data, type=known)
    except msgspec.DecodeError as error:
        raise Problem.of("E301", reason=error) from error
    return found

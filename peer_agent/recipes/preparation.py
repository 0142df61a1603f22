"""How data are prepared, as the site has it in rows and its children are told; and what comes of it."""

import functools
import operator
from typing import Any

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import KINDS, Preparation


class DataFile(Struct, frozen=True):
    """A written file: sha256 in hexadecimal, how much it holds, in what its recipe counts, and its source's number."""

    digest: str
    size: int
    source: int = 0


class Prepared(Struct, frozen=True, kw_only=True):
    """What preparation made of a file. `size` is that of all shards; `heldout` is None where data are too few."""

    size: int
    shards: list[DataFile]
    heldout: DataFile | None
    pieces: list[str]  # a few of them, for people
    ready: str  # the line of a run's timeline


def parse_preparation(data: str) -> Preparation:
    """What a recipe's `preparation` was encoded to. Raises Problem E301."""
    known: Any = functools.reduce(operator.or_, dict.fromkeys(kind.prepares for kind in KINDS.values()))
    try:
        found: Preparation = msgspec.json.decode(data, type=known)
    except msgspec.DecodeError as error:
        raise Problem.of("E301", reason=error) from error
    return found

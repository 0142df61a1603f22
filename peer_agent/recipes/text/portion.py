"""A shard whose texts stay on the Hub: a description of row groups of a file there, and how to tokenize them.

The file is safetensors without tensors; its metadata hold the description as JSON. A machine builds the shard from it.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.errors import Problem

METADATA = "portion"
MOST_GROUPS = 10_000  # of one portion
MOST_PARTS = 1000  # into which row groups are dealt
MOST_TOKENS = 1 << 25  # of a portion's shard

Commit = Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
Count = Annotated[int, Meta(ge=0, le=1 << 48)]


class Cutting(Struct, frozen=True, forbid_unknown_fields=True):
    """How texts become tokens: the tokenizer's sha256, and the `end` token after each document, unless in sentences."""

    tokenizer: Digest
    end: Annotated[int, Meta(ge=0, lt=1 << 32)]
    sentences: bool


class Portion(Struct, frozen=True, forbid_unknown_fields=True):
    """One column of row groups `first` to `first + groups` of a file. They are dealt into `parts`; this is one of them.

    `size` is the file's bytes. `tokens` is the shard's length, however many the rows give.
    """

    repository: Name
    commit: Commit
    file: Name
    size: Count
    first: Count
    groups: Annotated[int, Meta(ge=1, le=MOST_GROUPS)]
    column: Name
    part: Count
    parts: Annotated[int, Meta(ge=1, le=MOST_PARTS)]
    tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    cutting: Cutting


def portion_in(path: Path) -> Portion | None:
    """Return a shard's description, or None if the file is a built shard or malformed. Raises Problem E414."""
    try:
        with safe_open(path, framework="numpy") as file:
            said = (file.metadata() or {}).get(METADATA)
    except SafetensorError:
        return None  # its reader reports the fault
    if said is None:
        return None
    try:
        return msgspec.json.decode(said, type=Portion)
    except msgspec.DecodeError as error:
        raise Problem.of("E414", repository="the Hub", name=path.name, reason=error) from error

"""Shards whose texts stay on the Hub.

A portion describes row groups of a file on the Hub, and how to tokenize their texts. It is stored as a safetensors file
without tensors, with the description as JSON in the metadata.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.errors import Problem

METADATA = "portion"
MOST_GROUPS = 10_000  # most row groups in a portion
MOST_PARTS = 1000  # most parts that row groups are divided into
MOST_TOKENS = 1 << 25  # most tokens in a portion's shard

Commit = Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
Count = Annotated[int, Meta(ge=0, le=1 << 48)]


class Cutting(Struct, frozen=True, forbid_unknown_fields=True):
    """Rules for tokenizing texts.

    `tokenizer`: SHA-256 of the tokenizer. `end`: the token appended to each document, unless `sentences` is set.
    """

    tokenizer: Digest
    end: Annotated[int, Meta(ge=0, lt=1 << 32)]
    sentences: bool


class Portion(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of the documents in `groups` row groups of a file, starting at row group `first`.

    The documents are taken from one column and divided into `parts` parts. `size`: the file's size in bytes. `tokens`:
    the shard's exact length. The text's tokens are cut or repeated to match it.
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
    """Return the portion that a shard's file contains.

    Return None if the file contains the tokens themselves or is malformed. Raises Problem E414 if the portion's
    description is invalid.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            said = (file.metadata() or {}).get(METADATA)
    except SafetensorError:
        return None  # the shard's reader reports malformed files
    if said is None:
        return None
    try:
        return msgspec.json.decode(said, type=Portion)
    except msgspec.DecodeError as error:
        raise Problem.of("E414", repository="the Hub", name=path.name, reason=error) from error

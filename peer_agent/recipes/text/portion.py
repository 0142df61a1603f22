"""What a shard's file says where its texts stay on the Hub: some row groups of a file there, and how they are cut.

Such a file is safetensors without tensors, whose metadata have this as JSON. A machine makes the shard of it itself.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.errors import Problem

METADATA = "portion"
MOST_GROUPS = 10_000  # of one portion
MOST_PARTS = 1000  # that row groups are dealt into
MOST_TOKENS = 1 << 25  # of a portion's shard

Commit = Annotated[str, Meta(pattern="^[0-9a-f]{40}$")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
Count = Annotated[int, Meta(ge=0, le=1 << 48)]


class Cutting(Struct, frozen=True, forbid_unknown_fields=True):
    """How texts become tokens: by the tokenizer.json of this sha256, `end` after each document that is no sentences."""

    tokenizer: Digest
    end: Annotated[int, Meta(ge=0, lt=1 << 32)]
    sentences: bool


class Portion(Struct, frozen=True, forbid_unknown_fields=True):
    """Row groups `first` to `first + groups` of a file, one column of them, dealt into `parts` of which this is one.

    `size`: bytes of the file; `tokens`: how many the shard has, whatever the rows give.
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
    """What a shard is to be made of; None where it is made, or is none. Raises Problem E414."""
    try:
        with safe_open(path, framework="numpy") as file:
            said = (file.metadata() or {}).get(METADATA)
    except SafetensorError:
        return None  # whoever reads it says what is wrong
    if said is None:
        return None
    try:
        return msgspec.json.decode(said, type=Portion)
    except msgspec.DecodeError as error:
        raise Problem.of("E414", repository="the Hub", name=path.name, reason=error) from error

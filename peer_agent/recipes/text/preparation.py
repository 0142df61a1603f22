"""How a text is prepared: what its tokenizer is like."""

from typing import Literal

from msgspec import Struct


class TextPreparation(Struct, frozen=True, forbid_unknown_fields=True, tag="text", tag_field="data"):
    """Shards of tokens, cut by a tokenizer that learns from the text itself: `vocab` tokens at most."""

    vocab: int
    tokenizer: Literal["bpe"] = "bpe"

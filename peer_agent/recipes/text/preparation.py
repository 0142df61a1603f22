"""How a text is prepared: what its tokenizer is like, and what shards hold beside tokens."""

from typing import Literal

from msgspec import Struct

TokenizerName = Literal["bpe", "unigram"]
Language = Literal["any", "bengali"]


class TextPreparation(
    Struct, frozen=True, forbid_unknown_fields=True, tag="text", tag_field="data", omit_defaults=True
):
    """Shards of tokens, cut by a tokenizer that learns from the text itself: `vocab` tokens at most.

    `bpe` cuts bytes and gives every text back; `unigram` is for models that only read, and normalizes its text as is
    usual for the language. `sentences`: shards also say where sentences begin.
    """

    vocab: int
    tokenizer: TokenizerName = "bpe"
    language: Language = "any"
    lowercase: bool = False
    sentences: bool = False

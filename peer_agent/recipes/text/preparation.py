"""How a text is prepared: what its tokenizer is like, and what shards hold beside tokens."""

from typing import ClassVar, Literal

from peer_agent.protocol.recipe import Material, Preparation

TokenizerName = Literal["bpe", "unigram"]
Language = Literal["any", "bengali"]


class TextPreparation(Preparation, frozen=True, tag="text"):
    """Shards of tokens, cut by a tokenizer that learns from the text itself: `vocab` tokens at most.

    `bpe` cuts bytes and gives every text back; `unigram` is for models that only read, and normalizes its text as is
    usual for the language. `sentences`: shards also say where sentences begin.
    """

    material: ClassVar[Material] = Material(
        "text",
        "tokens",
        "a plain-text file (UTF-8), JSON Lines or Parquet",
        (
            "Three random pieces",
            "This is what the model sees. Strange characters? Your file may use a different encoding.",
        ),
        (".jsonl", ".ndjson", ".parquet"),
        or_text=True,
        more="another text",
        hub="dataset",
        takes=Material(
            "tokenizer",
            "tokens",
            "a tokenizer.json",
            ("The tokenizer", "Learned from the text, unless you add one."),
            (".json",),
            hub="tokenizer",
        ),
    )
    beside: ClassVar[Literal["tokenizer", "shards"]] = "tokenizer"
    module: ClassVar[str] = "peer_agent.site_work.prepare_text"

    vocab: int
    tokenizer: TokenizerName = "bpe"
    language: Language = "any"
    lowercase: bool = False
    sentences: bool = False

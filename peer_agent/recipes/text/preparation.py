"""Settings for preparing a text: the tokenizer to train, and what shards contain besides tokens."""

from typing import ClassVar, Literal

from peer_agent.protocol.recipe import Material, Preparation

PACKED = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".gz", ".bz2", ".xz", ".zst")
TokenizerName = Literal["bpe", "unigram"]
Language = Literal["any", "bengali"]


class TextPreparation(Preparation, frozen=True, tag="text"):
    """Shards of tokens.

    Unless the organizer provides a tokenizer, one with at most `vocab` tokens is trained on the text itself. `bpe`
    works on bytes and is lossless. `unigram` normalizes text for the language, and suits models that do not generate
    text.
    """

    material: ClassVar[Material] = Material(
        "text",
        "tokens",
        "a text file, CSV, JSON, JSON Lines, Parquet or Arrow, alone or packed (zip, tar, gzip, zstd)",
        (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".zip", *PACKED),
        or_text=True,
        more="another text",
        hub="dataset",
        takes=Material(
            "tokenizer",
            "tokens",
            "a tokenizer.json",
            (".json",),
            hub="tokenizer",
            shown=("The tokenizer", "Learned from the text, unless you add one."),
        ),
    )
    beside: ClassVar[Literal["tokenizer", "shards"]] = "tokenizer"
    module: ClassVar[str] = "peer_agent.site_work.prepare_text"

    vocab: int
    tokenizer: TokenizerName = "bpe"
    language: Language = "any"
    lowercase: bool = False
    sentences: bool = False

"""From an uploaded text to a tokenizer, shards and a held-out part. Streams: memory does not grow with the text."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.errors.disk import disk_errors
from peer_agent.publishing.text.documents import Documents, open_documents
from peer_agent.publishing.text.shards import entropy_of, in_shards, write_heldout, write_shard
from peer_agent.publishing.text.tokenizer import Encoded, encode_documents, save_tokenizer, train_tokenizer
from peer_agent.recipes.preparation import DataFile, Prepared
from peer_agent.recipes.text.preparation import TextPreparation

SMALLEST_VOCAB, LARGEST_VOCAB = 257, 65_536  # 256 bytes and the end of a text; what uint16 holds
TRAINED_ON = 64 << 20  # bytes of text from which the tokenizer learns, at most
HELD_OUT, HELD_OUT_TOKENS = 0.02, 2000  # share of the text, and at least so many tokens …
HELD_OUT_AT_MOST = 0.2  # … if that is no more than this share
PIECE = 200  # characters shown of a random place


class PreparedText(Prepared, frozen=True, kw_only=True):
    """Sizes are in tokens."""

    vocab: int
    characters: int
    unigram_entropy: float | None  # nats per token of the shards; None where no loss is of tokens alone


def prepare(text: Path, out: Path, preparation: TextPreparation) -> PreparedText:
    """Write `out`/tokenizer, `out`/shards and `out`/heldout.safetensors. Raises Problem E106, E30x, E381, E382."""
    vocab = preparation.vocab
    if not SMALLEST_VOCAB <= vocab <= LARGEST_VOCAB:
        raise Problem.of("E301", reason=f"vocabulary {vocab} is not within {SMALLEST_VOCAB} and {LARGEST_VOCAB}")
    with disk_errors(out), open_documents(text, out / "rows") as documents:
        return _prepare(documents, out, preparation)


def _prepare(documents: Documents, out: Path, preparation: TextPreparation) -> PreparedText:
    order, sentences = documents.order(), preparation.sentences
    tokenizer = train_tokenizer(_learned_from(documents, order), preparation)
    save_tokenizer(tokenizer, out / "tokenizer", sentences=sentences)
    encoded = encode_documents(tokenizer, (documents[number] for number in order), sentences=sentences)
    held = _set_aside(documents, order, encoded)
    heldout = write_heldout(held, out / "heldout.safetensors") if held else None
    shards, entropy = _write_shards(encoded, out / "shards", tokenizer.get_vocab_size())
    tokens, pieces = sum(shard.size for shard in shards), tokenizer.get_vocab_size()
    return PreparedText(
        vocab=pieces,
        size=tokens,
        ready=f"The text is ready: {tokens:,} tokens, {pieces:,} pieces.{documents.note}",
        characters=documents.characters,
        shards=shards,
        heldout=heldout,
        unigram_entropy=None if sentences else entropy,
        pieces=[_piece(documents[number]) for number in order[-3:]],
    )


def _learned_from(documents: Documents, order: list[int]) -> Iterator[str]:
    """A fair sample, from the end of the order: what is held out lies at its beginning."""
    left = TRAINED_ON
    for number in reversed(order):
        left -= documents.size(number)
        if left < 0:
            return
        yield documents[number]


def _set_aside(documents: Documents, order: list[int], encoded: Iterator[Encoded]) -> list[Encoded]:
    """Take the held-out documents off the front; the rest stays in the iterator."""
    held: list[Encoded] = []
    size = tokens = 0
    for number in order:
        enough = size >= HELD_OUT * documents.bytes and tokens >= HELD_OUT_TOKENS
        size += documents.size(number)
        if enough or size > HELD_OUT_AT_MOST * documents.bytes:
            break
        held.append(next(encoded))
        tokens += len(held[-1].tokens)
    return held


def _write_shards(encoded: Iterator[Encoded], folder: Path, vocab: int) -> tuple[list[DataFile], float]:
    folder.mkdir(parents=True, exist_ok=True)
    counts = np.zeros(vocab, dtype=np.int64)
    shards = []
    for shard in in_shards(encoded):
        shards.append(write_shard(shard, folder))
        counts += np.bincount(shard.tokens, minlength=vocab)
    return shards, entropy_of(counts)


def _piece(document: str) -> str:
    """The beginning of a document, to its last whole word."""
    words = " ".join(document.split())
    if len(words) <= PIECE:
        return words
    return words[: max(words.rfind(" ", 0, PIECE), 0) or PIECE]

"""Preparation of texts: from uploads to a tokenizer, shards and a held-out part, in constant memory."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from tokenizers import Tokenizer, processors

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.publishing.documents import Documents, open_documents
from peer_agent.publishing.portions import MOST_PORTIONS, listing_of, portions_of, write_portion
from peer_agent.publishing.tokenizer import (
    END_OF_TEXT_ID,
    Encoded,
    encode_documents,
    entropy_of,
    in_shards,
    pieces_of,
    save_tokenizer,
    shard_tokens,
    text_of,
    train_tokenizer,
    write_heldout,
    write_shard,
)
from peer_agent.recipes.preparation import DataFile, Prepared
from peer_agent.recipes.text.portion import Cutting, Portion
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.tokens import Sentences
from peer_agent.recipes.training import write_json
from peer_agent.site_work.fetching import SPECIAL, TOKENIZER, TOKENIZER_CONFIG

# An uploaded tokenizer, with which a model is trained from scratch.
#
# It tokenizes as before, but adds no special tokens, truncation or padding, because recipes make the samples.

SMALLEST_VOCAB, LARGEST_VOCAB = 257, 65_536  # 256 bytes and an end-of-text token; the range of uint16
MOST_BYTES = 64 << 20  # limit for the tokenizer's file
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # usual names of the end-of-text token
# The roles of special tokens in a masked language model, in the recipes' order, and usual names of these tokens.
ROLES = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


class Brought(NamedTuple):
    """An uploaded tokenizer. `end`: its end-of-text token. `special`: for sentences, the tokens of `ROLES`, else ()."""

    tokenizer: Tokenizer
    end: int
    special: tuple[int, ...]


def take_tokenizer(brought: Path, out: Path, *, sentences: bool) -> Brought:
    """Read a tokenizer.json, alone or in a folder with settings, and write it to `out`. Raises Problem E372."""
    path = brought / TOKENIZER if brought.is_dir() else brought
    values = _values(path)
    values |= {"truncation": None, "padding": None, "post_processor": None}
    try:
        tokenizer = Tokenizer.from_str(json.dumps(values))
    except Exception as error:
        raise Problem.of("E372", reason=f"it cannot be read: {error}") from error
    vocab = pieces_of(tokenizer)
    if not SMALLEST_VOCAB <= vocab <= LARGEST_VOCAB:
        reason = f"it has {vocab:,} tokens, and a recipe takes {SMALLEST_VOCAB:,} to {LARGEST_VOCAB:,}"
        raise Problem.of("E372", reason=reason)
    named = _named(brought)
    found = _roles(tokenizer, named) if sentences else _end(tokenizer, named)
    if sentences:
        _join_by(tokenizer, found)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / TOKENIZER))
    write_json(out / SPECIAL, found)
    write_json(out / TOKENIZER_CONFIG, {"tokenizer_class": "PreTrainedTokenizerFast", **found})
    ids = tokenizer.get_vocab()
    if sentences:
        return Brought(tokenizer, 0, tuple(ids[found[role]] for role in ROLES))
    return Brought(tokenizer, ids[found["eos_token"]], ())


def _values(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Problem.of("E372", reason=f"its file is larger than {MOST_BYTES >> 20} MB")
        values = json.loads(path.read_bytes())
    except (FileNotFoundError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Problem.of("E372", reason=f"there is no {TOKENIZER} that can be read") from error
    if not isinstance(values, dict):
        raise Problem.of("E372", reason=f"there is no {TOKENIZER} that can be read")
    return values


def _named(brought: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (SPECIAL, TOKENIZER_CONFIG) if brought.is_dir() else ():
        if (brought / name).is_file():
            said = _values(brought / name)
            texts = {role: text_of(part) for role, part in said.items()}
            found |= {role: text for role, text in texts.items() if isinstance(text, str)}
    return found


def _end(tokenizer: Tokenizer, named: Mapping[str, str]) -> dict[str, str]:
    """Return the special tokens by role. The end-of-text token also begins a text, so it alone separates two texts."""
    end = _first(tokenizer, (named.get("eos_token", ""), *ENDS))
    if end is None:
        raise Problem.of("E372", reason=f"no token of it ends a text, as {ENDS[0]} does")
    unknown = _first(tokenizer, (named.get("unk_token", ""), *ROLES["unk_token"])) or end
    return {"bos_token": end, "eos_token": end, "unk_token": unknown}


def _roles(tokenizer: Tokenizer, named: Mapping[str, str]) -> dict[str, str]:
    found = {role: _first(tokenizer, (named.get(role, ""), *usual)) for role, usual in ROLES.items()}
    if missing := [ROLES[role][-1] for role, token in found.items() if token is None]:
        raise Problem.of("E372", reason=f"a model that reads needs tokens such as {', '.join(missing)}")
    known = {role: token for role, token in found.items() if token is not None}
    if len(set(known.values())) < len(ROLES):
        raise Problem.of("E372", reason="one token has two roles")
    return known


def _first(tokenizer: Tokenizer, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name and tokenizer.token_to_id(name) is not None), None)


def _join_by(tokenizer: Tokenizer, found: Mapping[str, str]) -> None:
    """Make the tokenizer join text as recipes do: `[CLS] A [SEP] B [SEP]`."""
    cls, sep = found["cls_token"], found["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[cls, "$A", sep],
        pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[(cls, tokenizer.token_to_id(cls)), (sep, tokenizer.token_to_id(sep))],
    )


TRAINED_ON = 64 << 20  # bytes of text on which a tokenizer trains, at most
HELD_OUT, HELD_OUT_TOKENS = 0.02, 2000  # fraction of the text that is held out, and the least number of its tokens ...
HELD_OUT_AT_MOST = 0.2  # ... unless these are more than this fraction
PIECE = 200  # characters that are shown of a document
SHOWN = 3  # random documents that are shown
UNREAD = " {count:,} rows there are left out: their row groups are too large."
UNLISTED = " Another {count:,} tokens there are left out: a run lists no more shards."
STREAMED = " Some {count:,} of these tokens stay on the Hub, where machines read them."


class PreparedText(Prepared, frozen=True, kw_only=True):
    """A prepared text. Sizes are in tokens."""

    vocab: int
    characters: int
    unigram_entropy: float | None  # in nats per token; None if the loss is not per token
    end: int = END_OF_TEXT_ID  # the end-of-text token ...
    special: tuple[int, ...] = ()  # ... and, of an uploaded tokenizer for sentences, the special tokens by role


def prepare(
    text: Path, out: Path, preparation: TextPreparation, further: Sequence[Path] = (), *, base: Path | None = None
) -> PreparedText:
    """Write `out`/tokenizer, `out`/shards and `out`/heldout.safetensors. Raises Problem E106, E30x, E372, E381, E382.
    Texts in `further` get their own shards and held-out parts. `base`: an uploaded tokenizer, or None to train one on
    all texts. If part of a source stays on the Hub, its shards are portions, which describe where the texts are.
    """
    vocab = preparation.vocab
    if base is None and not SMALLEST_VOCAB <= vocab <= LARGEST_VOCAB:
        raise Problem.of("E301", reason=f"vocabulary {vocab} is not within {SMALLEST_VOCAB} and {LARGEST_VOCAB}")
    with disk_errors(out), ExitStack() as stack:
        files = enumerate((text, *further))
        texts = [stack.enter_context(open_documents(path, out / f"rows-{number}")) for number, path in files]
        return _prepare(texts, out, preparation) if base is None else _prepare_by(base, texts, out, preparation)


def _prepare(texts: Sequence[Documents], out: Path, preparation: TextPreparation) -> PreparedText:
    orders, sentences = [documents.order() for documents in texts], preparation.sentences
    learned = [_learned_from(*each, TRAINED_ON // len(texts)) for each in zip(texts, orders, strict=True)]
    tokenizer = train_tokenizer(chain.from_iterable(learned), preparation)
    save_tokenizer(tokenizer, out / "tokenizer", sentences=sentences)
    return cut(texts, out, tokenizer, sentences=sentences)


def _prepare_by(base: Path, texts: Sequence[Documents], out: Path, preparation: TextPreparation) -> PreparedText:
    sentences = preparation.sentences
    brought = take_tokenizer(base, out / "tokenizer", sentences=sentences)
    made = cut(texts, out, brought.tokenizer, sentences=sentences, end=brought.end)
    return replace(made, end=brought.end, special=brought.special)


def cut(
    texts: Sequence[Documents], out: Path, tokenizer: Tokenizer, *, sentences: bool = False, end: int = END_OF_TEXT_ID
) -> PreparedText:
    """Write shards and the held-out part. `end`: appended to each document unless `sentences`. Raises Problem E415."""
    orders = [documents.order() for documents in texts]
    tokenizer.no_truncation()  # some tokenizer files request truncation
    tokenizer.no_padding()
    pieces, held = pieces_of(tokenizer), list[Encoded]()
    counts, shards, notes = np.zeros(pieces, dtype=np.int64), list[DataFile](), [each.note for each in texts]
    for source, (documents, order) in enumerate(zip(texts, orders, strict=True)):
        encoded = encode_documents(tokenizer, (documents[number] for number in order), sentences=sentences, end=end)
        aside = _set_aside(documents, order, encoded)
        held += aside
        here = [*_write_shards(in_shards(encoded, shard_tokens(documents.bytes)), out / "shards", counts, source)]
        found = sum(len(each.tokens) for each in aside) + sum(shard.size for shard in here)
        tokenizer_file = out / "tokenizer" / "tokenizer.json"
        portions, note = _portions_of(documents, found, tokenizer_file, end, sentences=sentences)
        notes.append(note)
        shards += here + [write_portion(portion, out / "shards", source) for portion in portions]
    tokens = sum(shard.size for shard in shards)
    shown = chain.from_iterable(zip(*(_shown(*each) for each in zip(texts, orders, strict=True)), strict=False))
    return PreparedText(
        vocab=pieces,
        size=tokens,
        ready=f"{_ready(texts)}: {tokens:,} tokens, vocabulary {pieces:,}.{''.join(notes)}",
        characters=sum(documents.characters for documents in texts),
        shards=shards,
        heldout=write_heldout(held, out / "heldout.safetensors") if held else None,
        unigram_entropy=None if sentences else entropy_of(counts),
        pieces=list(shown)[:SHOWN],
    )


def _portions_of(
    documents: Documents, found: int, tokenizer: Path, end: int, *, sentences: bool
) -> tuple[list[Portion], str]:
    """Return the portions of a source on the Hub, and a note to display. `found`: tokens in the local part."""
    listing = listing_of(documents.source)
    if listing is None:
        return [], ""
    if documents.are_conversations:
        raise Problem.of("E415", repository=listing.repository)
    cutting = Cutting(hashlib.sha256(tokenizer.read_bytes()).hexdigest(), end, sentences)
    portions = portions_of(listing, documents.field, found, cutting)
    taken, left = (sum(each.tokens for each in part) for part in (portions[:MOST_PORTIONS], portions[MOST_PORTIONS:]))
    unread = listing.unread_rows(documents.field)
    told = ((STREAMED, taken), (UNLISTED, left), (UNREAD, unread))
    return portions[:MOST_PORTIONS], "".join(words.format(count=count) for words, count in told if count)


def _ready(texts: Sequence[Documents]) -> str:
    return "The dataset is ready" if len(texts) == 1 else f"The dataset of {len(texts)} texts is ready"


def _shown(documents: Documents, order: list[int]) -> list[str]:
    return [_piece(documents[number]) for number in order[-SHOWN:]]


def _learned_from(documents: Documents, order: list[int], most_bytes: int) -> Iterator[str]:
    """Yield random documents to train the tokenizer, from the end of `order`. Held-out documents are at its start."""
    left = most_bytes
    for number in reversed(order):
        left -= documents.size(number)
        if left < 0:
            return
        yield documents[number]


def _set_aside(documents: Documents, order: list[int], encoded: Iterator[Encoded]) -> list[Encoded]:
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


def _write_shards(
    shards: Iterable[Sentences], folder: Path, counts: NDArray[np.int64], source: int
) -> Iterator[DataFile]:
    """Write shards, and add their token counts to `counts`. Yield each shard's file."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        yield write_shard(shard, folder, source)
        counts += np.bincount(shard.tokens, minlength=len(counts))


def _piece(document: str) -> str:
    words = " ".join(document.split())
    if len(words) <= PIECE:
        return words
    return words[: max(words.rfind(" ", 0, PIECE), 0) or PIECE]

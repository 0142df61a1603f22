"""Prepares texts: turns uploads into a tokenizer, shards and a held-out part, in constant memory."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from tokenizers import Tokenizer, processors

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.publishing.documents import Documents
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
from peer_agent.site_work.intake import overlap
from peer_agent.site_work.intake.chat import Writer
from peer_agent.site_work.intake.texts import Opened, Source, open_texts
from peer_agent.site_work.intake.unpack import parts_of
from peer_agent.site_work.intake.verdict import Verdict, shown, together

# A tokenizer that the organizer uploads, with which a model is trained from scratch.
#
# Its own truncation, padding and post-processing are removed, because the recipes make the samples.

SMALLEST_VOCAB, LARGEST_VOCAB = 257, 65_536  # minimum: 256 bytes and an end-of-text token; maximum: the range of uint16
MOST_BYTES = 64 << 20  # size limit on the tokenizer's file
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # usual names of the end-of-text token
# The roles of a masked language model's special tokens, in the recipes' order, and the tokens' usual names
ROLES = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


class Brought(NamedTuple):
    """An uploaded tokenizer.

    `end`: the number of its end-of-text token, or 0 if sentences are used. `special`: the numbers of its tokens for
    `ROLES` if sentences are used, otherwise empty.
    """

    tokenizer: Tokenizer
    end: int
    special: tuple[int, ...]


def take_tokenizer(brought: Path, out: Path, *, sentences: bool) -> Brought:
    """Read a tokenizer.json, alone or in a folder with settings, and write it to `out`.

    Raises Problem E372 if the tokenizer cannot be read or does not fit the recipes.
    """
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
    """Return the names of a tokenizer's special tokens by role. Raises Problem E372 if no token ends a text.

    The end-of-text token also serves as the token that begins a text, so that a single token separates two texts.
    """
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


TRAINED_ON = 64 << 20  # most bytes of text that a tokenizer is trained on
HELD_OUT, HELD_OUT_BYTES = 0.02, 8192  # fraction of the text to hold out, but at least this many bytes ...
HELD_OUT_AT_MOST = 0.2  # ... and at most this fraction
# If more than this share of the held-out part is also in the training part, the organizer is asked about it.
SMALL_OVERLAP = 0.01
MUCH_OVERLAP = 0.25  # the same for a part chosen by the site, which may contain passages common to all documents
FEWEST_DOCUMENTS = 10  # with fewer documents, no held-out part is expected
PIECE = 200  # most characters shown of a document
SHOWN = 5  # random documents shown
FIELD_NAME = 60  # most characters shown of a field's name
UNREAD = " {count:,} rows there are left out: their row groups are too large."
UNLISTED = " Another {count:,} tokens there are left out: a run lists no more shards."
STREAMED = " Some {count:,} of these tokens stay on the Hub, where machines read them."


class PreparedText(Prepared, frozen=True, kw_only=True):
    """A prepared text dataset. All sizes are in tokens."""

    vocab: int
    characters: int
    unigram_entropy: float | None  # in nats per token; None if the loss is not per token
    end: int = END_OF_TEXT_ID  # number of the end-of-text token ...
    special: tuple[int, ...] = ()  # ... and an uploaded sentence tokenizer's special tokens, in the order of `ROLES`
    verdict: Verdict


def prepare(
    text: Path,
    out: Path,
    preparation: TextPreparation,
    further: Sequence[Path] = (),
    *,
    base: Path | None = None,
    names: Sequence[str] = (),
    fields: Sequence[str] = (),
) -> PreparedText:
    """Write `out`/tokenizer, `out`/shards and `out`/heldout.safetensors.

    Texts in `further` get their own shards and held-out parts. `base`: an uploaded tokenizer, or None to train one on
    all texts. `names`, `fields`: for each text, in order, its file's name and the field to read. If part of a source
    stays on the Hub, the shards include portions, which record where machines find its texts.

    Raises the errors of `open_texts`, and Problem E301 if the vocabulary's size is out of bounds. Also raises Problem
    E372 if `base` cannot be used, E415 if conversations stay on the Hub, or E106 if the disk fails.
    """
    vocab = preparation.vocab
    if base is None and not SMALLEST_VOCAB <= vocab <= LARGEST_VOCAB:
        raise Problem.of("E301", reason=f"vocabulary {vocab} is not within {SMALLEST_VOCAB} and {LARGEST_VOCAB}")
    sources = sources_of((text, *further), names, fields)
    with disk_errors(out), ExitStack() as stack:
        opened = open_all(sources, out, stack)
        return _prepare(opened, out, preparation) if base is None else _prepare_by(base, opened, out, preparation)


def sources_of(paths: Sequence[Path], names: Sequence[str], fields: Sequence[str]) -> list[Source]:
    """Return a source for each path, with its name and field. A name or field that is not given is empty."""
    return [
        Source(path, *(given[number] if number < len(given) else "" for given in (names, fields)))
        for number, path in enumerate(paths)
    ]


def open_all(sources: Sequence[Source], out: Path, stack: ExitStack, writer: Writer | None = None) -> list["Texts"]:
    """Open the sources until `stack` closes, and choose the documents to hold out from each source.

    If one source is named as training data and others are named as set aside, such as `val.csv`, hold out those
    instead.
    """
    named = Verdict()
    splits = parts_of([source.name for source in sources], named)
    part = next((split for split in ("validation", "test") if split in splits), "")
    beside = [source for source, split in zip(sources, splits, strict=True) if part and split == part]
    numbers = [number for number, split in enumerate(splits) if split in ("", "train")]
    opened = []
    for number in numbers:
        aside = beside if number == numbers[0] else ()
        opened.append(stack.enter_context(open_texts(sources[number], out / f"rows-{number}", writer, aside)))
    first = opened[0]
    first.verdict.findings += named.findings
    for source, split in zip(sources, splits, strict=True):
        if split not in ("", "train", part):
            first.verdict.leave_out("set aside as a test", source.name)
    is_brought = bool(beside) and first.heldout is not None  # if so, none of the other sources' documents are held out
    choices = [overlap.Choice([], 0.0) if is_brought else _chosen(each) for each in opened]
    texts = [
        Texts(number, sources[number].path, each, choice.held)
        for number, each, choice in zip(numbers, opened, choices, strict=True)
    ]
    if len(texts) > 1:
        texts = _apart(texts)
    is_chosen = any(choice.held for choice in choices)
    share = choices[0].overlap if is_chosen and len(texts) == 1 else _overlap(texts)
    for each in opened:
        each.verdict.heldout_overlap = share
    if share > (MUCH_OVERLAP if is_chosen else SMALL_OVERLAP):
        first.verdict.ask("E439", percent=f"{100 * share:.0f}")
    return texts


def _apart(texts: Sequence["Texts"]) -> list["Texts"]:
    """Exclude documents from training if another source holds out equal ones."""
    held = {overlap.digest_of(text) for each in texts for text in each.held_texts()}
    apart = []
    for each in texts:
        copies = [number for number in each.trained() if overlap.digest_of(each.documents[number]) in held]
        apart.append(each._replace(copies=copies))
        if copies:
            each.opened.verdict.leave_out("held out of another text", each.documents[copies[0]], len(copies))
    return apart


def _overlap(texts: Sequence["Texts"]) -> float:
    """Return the share of the held-out passages contained in the training part."""
    held = [text for each in texts for text in each.held_texts()]
    return overlap.overlap_of(held, (each.documents[number] for each in texts for number in each.trained()))


class Texts(NamedTuple):
    """A source with its documents. `number`: its index among the sources.

    `held`: the numbers of the held-out documents, unless the organizer provided a held-out part. `copies`: the numbers
    of documents that are not used because another source holds out equal ones.
    """

    number: int
    path: Path
    opened: Opened
    held: list[int]
    copies: Sequence[int] = ()

    @property
    def documents(self) -> Documents:
        return self.opened.documents

    def trained(self) -> list[int]:
        """Return the numbers of the documents to train on, shuffled by a fixed key."""
        held = {*self.held, *self.copies}
        return [number for number in self.documents.order() if number not in held]

    def held_texts(self) -> Iterator[str]:
        """Yield the held-out documents."""
        if self.opened.heldout is None:
            yield from (self.documents[number] for number in self.held)
        else:
            yield from (self.opened.heldout[number] for number in range(len(self.opened.heldout)))


def _chosen(opened: Opened) -> overlap.Choice:
    """Choose the documents to hold out, unless the organizer provided a held-out part.

    If there are at least `FEWEST_DOCUMENTS` documents but none can be held out, ask the organizer about it.
    """
    if opened.heldout is not None:
        return overlap.Choice([], 0.0)
    documents = opened.documents
    wanted = max(int(HELD_OUT * documents.bytes), HELD_OUT_BYTES)
    most = int(HELD_OUT_AT_MOST * documents.bytes)
    choice = overlap.choose(documents, wanted=min(wanted, most), most=most)
    if not choice.held and len(documents) >= FEWEST_DOCUMENTS:
        opened.verdict.ask("E440")
    return choice


def _prepare(texts: Sequence[Texts], out: Path, preparation: TextPreparation) -> PreparedText:
    sentences = preparation.sentences
    learned = [_learned_from(each, TRAINED_ON // len(texts)) for each in texts]
    tokenizer = train_tokenizer(chain.from_iterable(learned), preparation)
    save_tokenizer(tokenizer, out / "tokenizer", sentences=sentences)
    return cut(texts, out, tokenizer, sentences=sentences)


def _prepare_by(base: Path, texts: Sequence[Texts], out: Path, preparation: TextPreparation) -> PreparedText:
    sentences = preparation.sentences
    brought = take_tokenizer(base, out / "tokenizer", sentences=sentences)
    made = cut(texts, out, brought.tokenizer, sentences=sentences, end=brought.end)
    return replace(made, end=brought.end, special=brought.special)


def cut(
    texts: Sequence[Texts], out: Path, tokenizer: Tokenizer, *, sentences: bool = False, end: int = END_OF_TEXT_ID
) -> PreparedText:
    """Write shards and the held-out part.

    `end`: the number of the token that is appended to each document unless `sentences` is set. Raises Problem E415 if
    the part of a source that stays on the Hub contains conversations.
    """
    tokenizer.no_truncation()  # some tokenizer files request truncation
    tokenizer.no_padding()
    pieces, held = pieces_of(tokenizer), list[Encoded]()
    counts, shards, notes = np.zeros(pieces, dtype=np.int64), list[DataFile](), list[str]()
    seen: list[list[str]] = []
    for each in texts:
        documents, order = each.documents, each.trained()
        aside = [*encode_documents(tokenizer, each.held_texts(), sentences=sentences, end=end)]
        held += aside
        encoded = encode_documents(tokenizer, (documents[number] for number in order), sentences=sentences, end=end)
        here = [*_write_shards(in_shards(encoded, shard_tokens(documents.bytes)), out / "shards", counts, each.number)]
        found = sum(len(part.tokens) for part in aside) + sum(shard.size for shard in here)
        tokenizer_file = out / "tokenizer" / "tokenizer.json"
        portions, note = _portions_of(each, found, tokenizer_file, end, sentences=sentences)
        notes += [_told(each.opened.verdict), note]
        shards += here + [write_portion(portion, out / "shards", each.number) for portion in portions]
        seen.append([_as_seen(tokenizer, documents[number], sentences=sentences) for number in order[-SHOWN:]])
    tokens = sum(shard.size for shard in shards)
    verdict = together([each.opened.verdict for each in texts])
    verdict.tokens = tokens
    verdict.pieces = [piece for piece in chain.from_iterable(zip_longest(*seen)) if piece is not None][:SHOWN]
    return PreparedText(
        vocab=pieces,
        size=tokens,
        ready=f"{_ready(texts)}: {tokens:,} tokens, vocabulary {pieces:,}.{''.join(notes)}",
        characters=sum(each.documents.characters for each in texts),
        shards=shards,
        heldout=write_heldout(held, out / "heldout.safetensors") if held else None,
        unigram_entropy=None if sentences else entropy_of(counts),
        verdict=verdict,
    )


def _told(verdict: Verdict) -> str:
    """Return sentences that tell people which field was read and how many rows were left out, and why.

    Return an empty string if neither applies.
    """
    left = sum(verdict.left_out.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in verdict.left_out.items())
    field = (
        f" They are the field {shown(verdict.field, FIELD_NAME)!r} of {verdict.rows:,} rows." if verdict.field else ""
    )
    return field + (f" {left:,} are left out: {reasons}." if left else "")


def _as_seen(tokenizer: Tokenizer, document: str, *, sentences: bool) -> str:
    """Return the start of a document as the tokenizer passes it to the model."""
    (encoded,) = encode_documents(tokenizer, [document[: 4 * PIECE]], sentences=sentences)
    tokens = encoded.tokens if sentences else encoded.tokens[:-1]
    return _piece(tokenizer.decode(tokens, skip_special_tokens=False))


def _portions_of(texts: Texts, found: int, tokenizer: Path, end: int, *, sentences: bool) -> tuple[list[Portion], str]:
    """Return portions for the part of a source that stays on the Hub, and a note to display.

    `found`: the number of tokens in the source's local part. Raises Problem E415 if the source contains conversations.
    """
    listing, documents = listing_of(texts.path), texts.documents
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


def _ready(texts: Sequence[Texts]) -> str:
    return "The dataset is ready" if len(texts) == 1 else f"The dataset of {len(texts)} texts is ready"


def _learned_from(texts: Texts, most_bytes: int) -> Iterator[str]:
    """Yield documents to train the tokenizer on, in random order, up to `most_bytes`. Skip held-out documents."""
    left = most_bytes
    for number in texts.trained():
        left -= texts.documents.size(number)
        if left < 0:
            return
        yield texts.documents[number]


def _write_shards(
    shards: Iterable[Sentences], folder: Path, counts: NDArray[np.int64], source: int
) -> Iterator[DataFile]:
    """Write shards, adding their token counts to `counts`. Yield each shard's file."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        yield write_shard(shard, folder, source)
        counts += np.bincount(shard.tokens, minlength=len(counts))


def _piece(document: str) -> str:
    words = " ".join(document.split())
    if len(words) <= PIECE:
        return words
    return words[: max(words.rfind(" ", 0, PIECE), 0) or PIECE]

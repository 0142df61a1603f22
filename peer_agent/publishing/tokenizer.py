"""Train and use tokenizers: lossless byte-level BPE, and Unigram for models that do not write text."""

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from peer_agent.recipes.preparation import DataFile
from peer_agent.recipes.text.preparation import Language, TextPreparation
from peer_agent.recipes.text.tokens import Sentences
from peer_agent.recipes.training import write_json

END_OF_TEXT = "<|endoftext|>"  # separates documents, and begins and ends a text
END_OF_TEXT_ID = 0  # special tokens come first; a recipe's `end` is this token
SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # a sentence tokenizer's special tokens, in order
BATCH = 256  # documents encoded together
# In any script, a sentence ends after one of these marks and a space, or at the end of its line.
SENTENCE_END = r"(?<=[.!?…।॥。！？؟۔])[\"'”’»)]*\s+|\n+"
PER_LANGUAGE: dict[Language, tuple[normalizers.Normalizer, ...]] = {
    "any": (),
    # As in sahajBERT, replace variants of the danda with a single form, and a colon after a letter with a visarga.
    "bengali": (
        normalizers.Replace(Regex("[\u09e4\u09e5\u09f7|]"), "\u0964"),
        normalizers.Replace(Regex("(?<=[\u0980-\u09ff]):"), "\u0983"),
    ),
}


class Encoded(NamedTuple):
    """A document's tokens, and the index at which each sentence begins (`starts`), if it was split."""

    tokens: list[int]
    starts: list[int]


def train_tokenizer(documents: Iterable[str], preparation: TextPreparation) -> Tokenizer:
    """Train a tokenizer with at most `preparation.vocab` tokens. A short text yields fewer."""
    return _sentence_tokenizer(documents, preparation) if preparation.sentences else _bpe(documents, preparation.vocab)


def _bpe(documents: Iterable[str], vocab: int, special: Iterable[str] = (END_OF_TEXT,)) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def _sentence_tokenizer(documents: Iterable[str], preparation: TextPreparation) -> Tokenizer:
    if preparation.tokenizer == "bpe":
        tokenizer = _bpe(documents, preparation.vocab, SPECIAL)
    else:
        tokenizer = _unigram(documents, preparation)
    cls, sep = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    return tokenizer


def _unigram(documents: Iterable[str], preparation: TextPreparation) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    lower = (normalizers.Lowercase(),) if preparation.lowercase else ()
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), spaces, *PER_LANGUAGE[preparation.language], *lower]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Punctuation(),
        ]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=preparation.vocab, special_tokens=list(SPECIAL), unk_token=SPECIAL[1], show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def pieces_of(tokenizer: Tokenizer) -> int:
    """Return the highest token number plus one. An embedding needs that many rows, even if some numbers are unused."""
    return 1 + max(tokenizer.get_vocab().values(), default=-1)


def text_of(setting: Any) -> Any:
    """Return, as text, a special token from a tokenizer's settings. Older files store an object instead of the text."""
    return setting.get("content") if isinstance(setting, dict) else setting


def encode_documents(
    tokenizer: Tokenizer, documents: Iterable[str], *, sentences: bool = False, end: int = END_OF_TEXT_ID
) -> Iterator[Encoded]:
    """Yield each document's tokens. With `sentences`, split it into sentences; otherwise, append the token `end`."""
    for batch in _batches(documents):
        if sentences:
            yield from _sentences(tokenizer, batch)
        else:
            for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield Encoded([*encoding.ids, end], [])


def _sentences(tokenizer: Tokenizer, documents: list[str]) -> Iterator[Encoded]:
    """Encode each sentence separately, to find the token that it starts at."""
    for document in documents:
        encoded = Encoded([], [])
        for encoding in tokenizer.encode_batch_fast(sentences_of(document), add_special_tokens=False):
            if encoding.ids:
                encoded.starts.append(len(encoded.tokens))
                encoded.tokens.extend(encoding.ids)
        yield encoded


def sentences_of(document: str) -> list[str]:
    """Split a document after each sentence. Drop pieces that contain only spaces."""
    ends = [match.end() for match in re.finditer(SENTENCE_END, document)]
    parts = [document[start:end] for start, end in pairwise([0, *ends, len(document)])]
    return [part for part in parts if part.strip()]


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for document in documents:
        batch.append(document)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, sentences: bool = False) -> None:
    """Write a tokenizer as files that transformers' AutoTokenizer can load offline."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    end = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "unk_token": END_OF_TEXT}
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = dict(zip(names, SPECIAL, strict=True)) if sentences else end
    write_json(folder / "special_tokens_map.json", special)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    write_json(folder / "tokenizer_config.json", config)


# A token file is safetensors, named after its SHA-256. It has `tokens`, and `starts` with the index of each sentence.
# Tokens are uint16, or uint32 if the tokenizer has more than 65,536 of them.


def write_content(content: bytes, folder: Path) -> str:
    """Write `<sha256>.safetensors` to a folder. Return the SHA-256 in hexadecimal."""
    digest = hashlib.sha256(content).hexdigest()
    (folder / f"{digest}.safetensors").write_bytes(content)
    return digest


# A shard ends once it has this many tokens; documents stay whole. Larger texts get larger shards, up to LARGEST.
SHARD_TOKENS, LARGEST = 1 << 17, 1 << 23
MANY = 4096  # if a text would have more shards than this, they get larger
TOKEN_BYTES = 4  # bytes of text per token, on average in most languages


def shard_tokens(text_bytes: int) -> int:
    """Return the number of tokens per shard. Larger texts get larger shards, so that a run can list them all."""
    size = SHARD_TOKENS
    while size < LARGEST and text_bytes > size * TOKEN_BYTES * MANY:
        size *= 2
    return size


def in_shards(documents: Iterable[Encoded], size: int) -> Iterator[Sentences]:
    """Yield shards of about `size` tokens, made up of whole documents. Every document must have at least two tokens."""
    tokens, starts = array("I"), array("I")
    for document in documents:
        starts.extend(len(tokens) + start for start in document.starts)
        tokens.extend(document.tokens)
        if len(tokens) >= size:
            yield _as_arrays(tokens, starts)
            tokens, starts = array("I"), array("I")
    if tokens:
        yield _as_arrays(tokens, starts)


def _as_arrays(tokens: "array[int]", starts: "array[int]") -> Sentences:
    laid = np.array(tokens, dtype=np.uint32)
    narrow = laid.max() <= np.iinfo(np.uint16).max
    return Sentences(laid.astype(np.uint16) if narrow else laid, np.array(starts, dtype=np.uint32))


def write_shard(shard: Sentences, folder: Path, source: int = 0) -> DataFile:
    """Write a shard to `<sha256>.safetensors` in a folder, with its sentence starts if they are known."""
    return DataFile(write_content(content_of(shard), folder), shard.tokens.size, source)


def write_heldout(documents: Iterable[Encoded], path: Path) -> DataFile:
    laid = [*in_shards(documents, SHARD_TOKENS)]
    tokens = np.concatenate([shard.tokens for shard in laid])
    ends = np.cumsum([0, *(len(shard.tokens) for shard in laid)])
    starts = [shard.starts + np.uint32(end) for shard, end in zip(laid, ends, strict=False)]
    content = content_of(Sentences(tokens, np.concatenate(starts)))
    path.write_bytes(content)
    return DataFile(hashlib.sha256(content).hexdigest(), tokens.size)


def content_of(shard: Sentences) -> bytes:
    tensors: dict[str, NDArray[Any]] = {"tokens": shard.tokens}
    return save(tensors | ({"starts": shard.starts} if shard.starts.size else {}))


def entropy_of(counts: NDArray[np.int64]) -> float:
    """Return the entropy of token counts in nats per token: the loss of a model that knows only token frequencies."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum()) + 0.0

"""A tokenizer that somebody brings, for a model that is trained with it from the first parameters on.

It cuts a text as it always did, but adds nothing around a text, cuts none short and pads none: samples are made here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, processors

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.hub.choosing import SPECIAL, TOKENIZER, TOKENIZER_CONFIG
from peer_agent.publishing.text.tokenizer import pieces_of, text_of
from peer_agent.recipes.json_files import write_json

SMALLEST_VOCAB, LARGEST_VOCAB = 257, 65_536  # 256 bytes and the end of a text; what uint16 holds
MOST_BYTES = 64 << 20  # of its file
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")  # usual names of what ends a text
# Roles in a model that reads, in the order in which recipes have them, and their usual names.
ROLES = {
    "pad_token": ("<pad>", "[PAD]"),
    "unk_token": ("<unk>", "[UNK]"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


class Brought(NamedTuple):
    """`end` ends a text; `special` are those of `ROLES`, for sentences."""

    tokenizer: Tokenizer
    end: int
    special: tuple[int, ...]


def take_tokenizer(brought: Path, out: Path, *, sentences: bool) -> Brought:
    """Read tokenizer.json, alone or in a folder with its settings, and write its files to `out`.

    Raises Problem E372.
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
    """Tokens by their roles, as its settings say, where it has some."""
    found: dict[str, str] = {}
    for name in (SPECIAL, TOKENIZER_CONFIG) if brought.is_dir() else ():
        if (brought / name).is_file():
            said = _values(brought / name)
            texts = {role: text_of(part) for role, part in said.items()}
            found |= {role: text for role, text in texts.items() if isinstance(text, str)}
    return found


def _end(tokenizer: Tokenizer, named: Mapping[str, str]) -> dict[str, str]:
    """What ends a text also begins it: nothing else is ever between two texts."""
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
    """As samples are made: `[CLS] A [SEP] B [SEP]`."""
    cls, sep = found["cls_token"], found["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[cls, "$A", sep],
        pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[(cls, tokenizer.token_to_id(cls)), (sep, tokenizer.token_to_id(sep))],
    )

"""Which files of a repository are a model's folder, or texts: decided by their names alone, the same way each time."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from peer_agent.protocol.errors import Problem

CONFIG_FILE, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
TOKENIZER, TOKENIZER_CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE = "chat_template.jinja"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
BESIDE = (CONFIG_FILE, TOKENIZER, TOKENIZER_CONFIG, SPECIAL, TEMPLATE)
PART = re.compile(r"model-\d+-of-\d+\.safetensors")

ROWS = ((".parquet",), (".jsonl", ".ndjson"), (".json",), (".txt",))  # what texts are read from, best first
NO_ROWS = {"dataset_info.json", "dataset_infos.json", "requirements.txt", "LICENSE.txt", "LICENCE.txt"}
TRAINING = re.compile(r"(^|[/._-])train([/._-]|$)")
MOST_FILES = 1000
NAMED = 3  # parts that a message names


def model_files(names: Collection[str]) -> list[str]:
    """Those of a model's folder, which is the repository itself. Raises Problem E388, E389."""
    for wanted in (CONFIG_FILE, TOKENIZER):
        if wanted not in names:
            raise Problem.of("E388", reason=f"there is no {wanted} in it")
    beside = [name for name in BESIDE if name in names]
    if WEIGHTS in names:
        return [*beside, WEIGHTS]
    parts = sorted(name for name in names if PART.fullmatch(name))
    if parts and INDEX in names and len(parts) <= MOST_FILES:
        return [*beside, INDEX, *parts]
    if any(name.endswith(PICKLED) for name in names):
        raise Problem.of("E389")
    raise Problem.of("E388", reason=f"there is no {WEIGHTS} in it")


def tokenizer_files(names: Collection[str]) -> list[str]:
    """Those of a model's tokenizer. Raises Problem E372."""
    if TOKENIZER not in names:
        raise Problem.of("E372", reason=f"there is no {TOKENIZER} in it")
    return [name for name in (TOKENIZER, TOKENIZER_CONFIG, SPECIAL) if name in names]


def text_files(names: Collection[str], pattern: str, repository: str) -> list[str]:
    """Those with rows or texts: of one sort, and where nobody said which, of the training part.

    `pattern`: a folder, or as in `data/train-*`; empty for all. Raises Problem E396 where it must be said which, E398.
    """
    found = sorted(name for name in names if name.rpartition("/")[2] not in NO_ROWS)
    folder = pattern.rstrip("/") + "/"
    asked = [name for name in found if not pattern or name.startswith(folder) or fnmatchcase(name, pattern)]
    of_sorts = ([name for name in asked if name.lower().endswith(suffixes)] for suffixes in ROWS)
    readable = next(filter(None, of_sorts), [])
    if not readable:
        raise Problem.of("E398", repository=repository, looked_for=pattern or "Parquet, JSON lines or text")
    if not pattern:
        readable = [name for name in readable if TRAINING.search(name)] or readable
        _require_one_part(readable, repository)
    if len(readable) > MOST_FILES:
        raise Problem.of(
            "E396", repository=repository, parts=f"{len(readable):,} files", example=f"{repository}/{readable[0]}"
        )
    return readable


def is_parquet(name: str) -> bool:
    """Whether machines can read some rows of it where it lies."""
    return name.lower().endswith(ROWS[0])


def _require_one_part(names: Sequence[str], repository: str) -> None:
    """Raises Problem E396 where they lie in several folders, as of several languages."""
    folders = Counter(name.rpartition("/")[0] for name in names)
    if len(folders) > 1:
        first = [folder or "its own folder" for folder in list(folders)[:NAMED]]
        more = f" and {len(folders) - NAMED:,} more" if len(folders) > NAMED else ""
        example = f"{repository}/{next(folder for folder in folders if folder)}"
        raise Problem.of("E396", repository=repository, parts=", ".join(first) + more, example=example)

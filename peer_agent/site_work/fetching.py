"""Inspect a model, tokenizer or dataset on the Hub, then fetch it into a folder.

Code from the Hub never runs. A fetch resumes an earlier one, even if that one was killed. Files are checked against the
digests listed by the Hub.
"""

import hashlib
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from msgspec import Struct

from peer_agent.protocol.errors import Problem, codes, disk_errors
from peer_agent.publishing.hub_client import (
    PAUSE_S,
    TRIES,
    Kind,
    api_of,
    check_name,
    held_files,
    in_words,
    is_same,
    opened,
    type_of,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Files are chosen by name alone, so the choice is the same each time.

CONFIG_FILE, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
TOKENIZER, TOKENIZER_CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE = "chat_template.jinja"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
BESIDE = (CONFIG_FILE, TOKENIZER, TOKENIZER_CONFIG, SPECIAL, TEMPLATE)
PART = re.compile(r"model-\d+-of-\d+\.safetensors")

ROWS = ((".parquet",), (".jsonl", ".ndjson"), (".json",), (".txt",))  # suffixes of text formats, best format first
NO_ROWS = {"dataset_info.json", "dataset_infos.json", "requirements.txt", "LICENSE.txt", "LICENCE.txt"}
TRAINING = re.compile(r"(^|[/._-])train([/._-]|$)")
MOST_FILES = 1000
NAMED = 3  # most folders named in an error message


def model_files(names: Collection[str]) -> list[str]:
    """Return a model's files at the top level of a repository.

    Raises Problem E389 if the parameters are pickled, or E388 if a required file is missing.
    """
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
    """Return a tokenizer's files. Raises Problem E372 if the repository has none."""
    if TOKENIZER not in names:
        raise Problem.of("E372", reason=f"there is no {TOKENIZER} in it")
    return [name for name in (TOKENIZER, TOKENIZER_CONFIG, SPECIAL) if name in names]


def text_files(names: Collection[str], pattern: str, repository: str) -> list[str]:
    """Return a dataset's files with rows or texts, all in one format.

    `pattern`: a folder, or a pattern like `data/train-*`. Without a pattern, prefer files meant for training. Raises
    Problem E396 if the user must choose among several parts or too many files, or E398 if no file has a readable
    format.
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
    """Return True if a file is Parquet, so that machines can read individual row groups of it on the Hub."""
    return name.lower().endswith(ROWS[0])


def _require_one_part(names: Sequence[str], repository: str) -> None:
    """Raise Problem E396 if the files are in several folders, such as one folder per language."""
    folders = Counter(name.rpartition("/")[0] for name in names)
    if len(folders) > 1:
        first = [folder or "its own folder" for folder in list(folders)[:NAMED]]
        more = f" and {len(folders) - NAMED:,} more" if len(folders) > NAMED else ""
        example = f"{repository}/{next(folder for folder in folders if folder)}"
        raise Problem.of("E396", repository=repository, parts=", ".join(first) + more, example=example)


MOST_LISTED = 20_000  # most files considered in a repository
CONVERTED = "refs/convert/parquet"  # the revision with the Hub's Parquet conversion of data in other formats
MEGABYTE = 1_000_000
# Unpacked bytes in a streamed dataset's sample: enough to train a tokenizer and to hold some data out
SAMPLE_BYTES = 256 << 20
LICENCE = 200  # most characters of the license to store


class Wanted(Struct, frozen=True, kw_only=True):
    """A repository on the Hub. `files`: a pattern such as `data/train-*`; empty means the default files."""

    repository: str
    endpoint: str
    kind: Kind
    files: str = ""


class Found(Struct, frozen=True, kw_only=True):
    """The content of a repository at `commit`.

    `size`: in bytes. `licence`: from the repository's card, or "". `streamed`: True if the dataset is too large to
    fetch. The site then fetches only a sample, and machines read the rest on the Hub.
    """

    commit: str
    size: int
    count: int
    licence: str
    streamed: bool = False


class Fetched(Struct, frozen=True, kw_only=True):
    """The result of a fetch.

    `sha256`: the file's digest. For several files, it is the digest of their list as printed by `sha256sum`.
    """

    sha256: str
    size: int


def look(wanted: Wanted, token: str, *, most: int) -> Found:
    """Return facts about the files that `fetch` would download.

    Raises Problem E304 if they are too large, E348 if the repository's name is invalid, and the errors of
    `model_files`, `tokenizer_files`, `text_files` and `in_words`.
    """
    check_name(wanted.repository)
    api = api_of(token, wanted.endpoint)
    with _told(wanted):
        info = api.repo_info(wanted.repository, repo_type=type_of(wanted.kind))
        if getattr(info, "gated", False):
            api.auth_check(wanted.repository, repo_type=type_of(wanted.kind))
        commit, files = _chosen(api, wanted, info.sha or "")
    size = sum(file.size for file in files.values())
    streamed = size > most and wanted.kind == "dataset" and _is_for_all(info) and all(map(is_parquet, files))
    if size > most and not streamed:
        raise Problem.of("E304", size=f"{-(-size // MEGABYTE):,}", limit=f"{most // MEGABYTE:,}")
    return Found(commit=commit, size=size, count=len(files), licence=_licence_of(info), streamed=streamed)


def _is_for_all(info: Any) -> bool:
    return not getattr(info, "gated", False) and not getattr(info, "private", False)


def fetch(wanted: Wanted, commit: str, folder: Path, token: str, *, most: int) -> Fetched:
    """Fetch a commit's chosen files into a folder, keeping files from an earlier fetch.

    Raises Problem E106 if the disk fails, E399 if a file differs from the one that the Hub listed, and the errors of
    `look`.
    """
    check_name(wanted.repository)
    api = api_of(token, wanted.endpoint)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # A task may run twice. The second one waits, then finds all files.
    with FileLock(folder.with_name(f"{folder.name}.lock")), _told(wanted):
        _, files = _chosen(api, wanted, commit)
        if sum(file.size for file in files.values()) > most:
            raise Problem.of("E399", repository=wanted.repository, name="its list of files")
        paths = {folder / _name_of(number, name, wanted): file for number, (name, file) in enumerate(files.items())}
        for path, file in paths.items():
            _fetch(api, wanted, commit, file, path)
    return Fetched(sha256=_digest(sorted(paths)), size=sum(file.size for file in files.values()))


def chosen_files(wanted: Wanted, commit: str) -> dict[str, Any]:
    """Return the chosen files of a public dataset, by name. Raises the errors of `look`."""
    check_name(wanted.repository)
    with _told(wanted):
        return _chosen(api_of("", wanted.endpoint), wanted, commit)[1]


def _told(wanted: Wanted) -> Any:
    return in_words(wanted.endpoint, wanted.repository, reading=wanted.kind)


def _chosen(api: "HfApi", wanted: Wanted, commit: str) -> tuple[str, dict[str, Any]]:
    """Return the commit and its chosen files, by name.

    If a dataset's own files are unreadable, choose from the Hub's Parquet conversion.
    """
    held = held_files(api, wanted.repository, commit, kind=wanted.kind, most=MOST_LISTED)
    if wanted.kind != "dataset":
        return commit, _files(held, (model_files if wanted.kind == "model" else tokenizer_files)(held))
    try:
        return commit, _files(held, text_files(held, wanted.files, wanted.repository))
    except Problem as problem:
        converted = _converted(api, wanted) if problem.fault.code == codes.NO_FILES else None
        if converted is None or converted == commit:
            raise
    held = held_files(api, wanted.repository, converted, kind=wanted.kind, most=MOST_LISTED)
    return converted, _files(held, text_files(held, wanted.files, wanted.repository))


def _files(held: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: held[name] for name in names}


def _converted(api: "HfApi", wanted: Wanted) -> str | None:
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return api.repo_info(wanted.repository, repo_type=type_of(wanted.kind), revision=CONVERTED).sha
    except RevisionNotFoundError:
        return None


def _licence_of(info: Any) -> str:
    said = getattr(info.card_data, "license", None) if getattr(info, "card_data", None) is not None else None
    names = said if isinstance(said, list) else [said]
    return ", ".join(name for name in names if isinstance(name, str))[:LICENCE]


def _name_of(number: int, name: str, wanted: Wanted) -> str:
    return f"{number:05}" if wanted.kind == "dataset" else name


def _fetch(api: "HfApi", wanted: Wanted, commit: str, file: Any, path: Path) -> None:
    """Fetch one file, resuming after lost connections.

    Raises Problem E346 if the Hub sends no more data, E399 if the file differs from the one listed, and the Hub
    client's errors.
    """
    import httpx2

    failed = 0
    while (size := _size_of(path)) < file.size:
        try:
            _go_on(api, wanted, commit, file, path)
        except httpx2.TransportError:
            if failed >= TRIES:
                raise
        failed = 0 if _size_of(path) > size else failed + 1
        if failed > TRIES:
            raise Problem.of("E346", endpoint=wanted.endpoint, reason="it sends no data")
        if failed:
            time.sleep(PAUSE_S)
    path.touch()  # an empty file needs no request
    if not is_same(path, file):
        path.unlink()
        raise Problem.of("E399", repository=wanted.repository, name=file.path)


def _go_on(api: "HfApi", wanted: Wanted, commit: str, file: Any, path: Path) -> None:
    """Fetch the rest of a file over one connection. Raises the Hub client's errors."""
    begin = _size_of(path)
    about: dict[str, Any] = {"kind": wanted.kind, "commit": commit, "bytes_": f"{begin}-" if begin else ""}
    with opened(api, wanted.repository, file.path, **about) as response:
        is_rest = response.status_code == 206
        left = file.size - (begin if is_rest else 0)
        with disk_errors(path), path.open("ab" if is_rest else "wb") as target:
            for block in response.iter_bytes():  # blocks as they arrive; a lost connection would lose larger ones
                target.write(block)
                left -= len(block)
                if left < 0:
                    break  # longer than the Hub listed, so this is another file


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(paths: list[Path]) -> str:
    lines = [f"{_sha256(path)}  {path.name}\n" for path in paths]
    return lines[0][:64] if len(lines) == 1 else hashlib.sha256("".join(lines).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

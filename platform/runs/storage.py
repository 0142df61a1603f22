"""Large files, and their paths under the data folder.

A path says where a file belongs, even if only the bucket has the file. Call `local` before reading a file, and `put` or
`keep` after writing one.
"""

import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from django.conf import settings

from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem, codes
from runs import bucket
from runs.models import Dataset, Release, Run, Upload

MEGABYTE = 1_000_000
MODEL = "model"
JOB_KEY = 64  # longest key of a job


class Stored(NamedTuple):
    """A stored file's size in bytes, and the time `at` when it was stored or last requested, as a Unix timestamp."""

    size: int
    at: float


def root() -> Path:
    return Path(settings.DATA) / "storage"


def text_path(dataset: Dataset) -> Path:
    return root() / "datasets" / dataset.id.hex / "text"


def upload_path(upload: Upload) -> Path:
    return root() / "uploads" / upload.id.hex


def prepared_folder(dataset: Dataset) -> Path:
    return root() / dataset.folder


def shard_path(dataset: Dataset, digest: str) -> Path:
    return prepared_folder(dataset) / "shards" / f"{digest}.safetensors"


def model_folder(dataset: Dataset) -> Path:
    return prepared_folder(dataset) / MODEL


def pictures_of(dataset: Dataset) -> list[tuple[int, str, Path]]:
    """Return the number, class and path of each sample image, which shows how the site read a dataset's images."""
    classes = sorted((dataset.verdict or {}).get("classes", {}))
    folder, found = prepared_folder(dataset) / "pictures", []
    with suppress(Problem):  # if the bucket does not respond, the page shows no images
        local(folder)
    for path in folder.glob("*.png") if classes else ():
        number, _, label = path.stem.partition("-")
        found.append((int(number), classes[int(label)], path))
    return sorted(found)


def heldout_path(dataset: Dataset) -> Path:
    return prepared_folder(dataset) / "heldout.safetensors"


def tokenizer_folder(dataset: Dataset) -> Path:
    return prepared_folder(dataset) / "tokenizer"


def snapshots_folder(run: Run) -> Path:
    return root() / "runs" / run.id.hex / "snapshots"


def snapshot_path(run: Run, file: str) -> Path:
    return snapshots_folder(run) / f"{file}.safetensors"


def archive_folder(run: Run) -> Path:
    return root() / "runs" / run.id.hex / "log"


def release_path(release: Release, name: str) -> Path:
    return root() / release.folder / name


def relative(path: Path) -> str:
    return path.relative_to(root()).as_posix()


def put(source: Path, target: Path) -> None:
    """Move a finished file or folder into storage. A target that already exists has the same content and is kept.

    Raises Problem E472 if the bucket cannot be used.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _upload(source, target)
    if target.exists():
        os.utime(target)
    else:
        source.rename(target)
    _trim()


def keep(path: Path) -> None:
    """Upload a file or folder that was written at its final path, if the site has a bucket.

    Call this before writing the database row that refers to it. Raises Problem E472 if the bucket cannot be used.
    """
    _upload(path, path)


def local(path: Path, wanted: Callable[[str], bool] = lambda _: True) -> Path:
    """Return the path of a stored file or folder. Files that are not on this disk are first fetched from the bucket.

    `wanted` selects the files of a folder by name. Raises Problem E472 if the bucket cannot be used.
    """
    if bucket.is_on() and not _touched(path):
        for each in bucket.found(relative(path)):
            if wanted(each.key.rpartition("/")[2]) and not _touched(root() / each.key):
                _fetch(each.key)
        _trim()
    return path


def local_data(dataset: Dataset) -> Path:
    """Return the folder with a dataset's prepared data, for a program that makes or tries a model.

    Such a program reads no shards of text. For text, only the model and the tokenizer are fetched from the bucket.
    """
    folder = prepared_folder(dataset)
    for name in (MODEL, "tokenizer"):
        local(folder / name)
    return folder if (folder / "tokenizer").is_dir() else local(folder)


def has(path: Path) -> bool:
    """Return False if a file is known to be missing.

    If the site has a bucket, only the bucket's server could tell, so the result is always True.
    """
    return bucket.is_on() or path.is_file()


def files(folder: Path) -> dict[str, Stored]:
    """Return the stored files of a folder, by name. Raises Problem E472 if the bucket cannot be used."""
    if bucket.is_on():
        return {each.key.rpartition("/")[2]: Stored(each.size, each.at) for each in bucket.found(relative(folder))}
    facts = {path.name: path.stat() for path in folder.iterdir()} if folder.is_dir() else {}
    return {name: Stored(fact.st_size, fact.st_mtime) for name, fact in facts.items()}


def address(path: Path, method: str | None) -> str | None:
    """Return a URL for requesting a file from the bucket, or None if the site has no bucket. It expires in minutes."""
    return bucket.address(relative(path), method or "GET") if bucket.is_on() else None


def link(source: Path, target: Path) -> None:
    """Store a file under a second name, as a hard link if the disk supports these, so that it takes no extra space.

    Raises Problem E472 if the bucket cannot be used.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # this disk does not support hard links
        shutil.copyfile(source, target)
    keep(target)


def remove(path: Path) -> None:
    """Delete a file or a folder to which no row refers. Raises Problem E472 if the bucket cannot be used."""
    _remove_here(path)
    if bucket.is_on():
        bucket.delete(relative(path))


def discard(path: Path) -> None:
    """Delete a file or a folder like `remove`, but do not wait for the bucket: a job deletes it there.

    The path must never be used again. If it is too long for a job's key, the bucket is asked at once.
    """
    _remove_here(path)
    if bucket.is_on() and len(relative(path)) <= JOB_KEY:
        queue.put(Kind.DELETE_FILES, relative(path))
    elif bucket.is_on():
        with suppress(Problem):  # if this fails for a snapshot, the next thinning deletes it
            bucket.delete(relative(path))


def _remove_here(path: Path) -> None:
    """Delete a file or a folder from this disk. If deleting a folder leaves its parent empty, delete that too."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.parent.rmdir()
    else:
        path.unlink(missing_ok=True)


# The data folder of a site with a bucket: copies of the bucket's files

USED_S = 6 * 3600  # a child process may take this long to read a file
TRIM_S = 60.0
_trimmed_at = [-math.inf]


def _upload(source: Path, target: Path) -> None:
    if bucket.is_on():
        for path in (each for each in source.rglob("*") if each.is_file()) if source.is_dir() else (source,):
            bucket.upload(path, relative(target / path.relative_to(source)))


def _touched(path: Path) -> bool:
    """Record in a file's access time that it is being used now. Return False if it is not on this disk."""
    with suppress(FileNotFoundError):
        if path.is_file():
            os.utime(path, (time.time(), path.stat().st_mtime))
            return True
    return False


def _fetch(key: str) -> None:
    """Copy a file from the bucket to this disk.

    Raises Problem E472 if the bucket cannot be used, or if the file does not match the SHA-256 that is its name.
    """
    with workspace() as work:
        digest, target = bucket.download(key, work / "file"), root() / key
        if len(target.stem) == len(digest) and target.stem != digest:
            raise Problem.of(codes.BUCKET_AWAY, reason="a file in it is damaged")
        target.parent.mkdir(parents=True, exist_ok=True)
        (work / "file").replace(target)


def _trim() -> None:
    """Keep this disk's copies of the bucket's files within the cache's limit, at most once a minute.

    First, delete datasets and uploads that another host has deleted. Then delete the least recently used files. Files
    used within six hours stay, and so do files that the bucket does not have.
    """
    if not bucket.is_on() or time.monotonic() - _trimmed_at[0] < TRIM_S:
        return
    _trimmed_at[0] = time.monotonic()
    for name, rows in (("datasets", Dataset.objects), ("uploads", Upload.objects)):
        for folder in (root() / name).glob("*"):
            if folder.stat().st_mtime < time.time() - USED_S and not rows.filter(pk=folder.name).exists():
                shutil.rmtree(folder, ignore_errors=True)
    here = [(path, path.stat()) for path in root().rglob("*") if path.is_file() and _workspaces() not in path.parents]
    total = sum(fact.st_size for _, fact in here)
    for path, fact in sorted(here, key=lambda each: each[1].st_atime):
        if total <= settings.CACHE_BYTES or fact.st_atime > time.time() - USED_S:
            break
        if [each.size for each in bucket.found(relative(path))] == [fact.st_size]:
            path.unlink(missing_ok=True)
            total -= fact.st_size


@contextmanager
def workspace() -> Iterator[Path]:
    """Yield a temporary folder on the same disk as the storage, so that moving a file there is just a rename."""
    folder = _workspaces() / uuid.uuid4().hex[:12]  # jobs reuse this name for the folders that they store
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_workspaces() -> None:
    """Delete workspaces left behind by a killed process. Call this only if no other process uses the data folder."""
    shutil.rmtree(_workspaces(), ignore_errors=True)


def _workspaces() -> Path:
    return root() / "work"


def model_files(run: Run) -> list[str]:
    return ["--files", str(local(model_folder(run.dataset)))] if run.parsed_recipe.files() else []


def recipe_file(run: Run, work: Path) -> Path:
    path = work / "recipe.json"
    path.write_text(run.recipe)
    return path

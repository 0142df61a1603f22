"""Large files, and their paths under the data folder.

A path says where a file belongs. Read it through `local`, and finish writing it with `put` or `keep`.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from django.conf import settings

from runs.models import Dataset, Release, Run, Upload

MEGABYTE = 1_000_000


class Stored(NamedTuple):
    """Facts about a stored file. `at`: when it was stored or last requested, as a timestamp."""

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
    return prepared_folder(dataset) / "model"


def pictures_of(dataset: Dataset) -> list[tuple[int, str, Path]]:
    """Return the number, class and path of each image that shows how the site read a dataset's images."""
    classes = sorted((dataset.verdict or {}).get("classes", {}))
    found = []
    for path in local(prepared_folder(dataset) / "pictures").glob("*.png") if classes else ():
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
    """Move a finished file or folder into storage. A target that already exists has the same content and is kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        os.utime(target)
    else:
        source.rename(target)


def local(path: Path) -> Path:
    """Return the path of a stored file or folder for a program to read."""
    return path


def local_data(dataset: Dataset) -> Path:
    """Return the folder of the prepared data for a program that makes or tries a model."""
    return local(prepared_folder(dataset))


def has(path: Path) -> bool:
    return path.is_file()


def files(folder: Path) -> dict[str, Stored]:
    """Return the stored files of a folder, by name."""
    facts = {path.name: path.stat() for path in folder.iterdir()} if folder.is_dir() else {}
    return {name: Stored(fact.st_size, fact.st_mtime) for name, fact in facts.items()}


def link(source: Path, target: Path) -> None:
    """Give a file a second name as a hard link, which takes no extra space."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # this disk does not support hard links
        shutil.copyfile(source, target)


def remove(path: Path) -> None:
    """Delete a file or a folder to which no row refers. Delete the folder around a folder too if that is then empty."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.parent.rmdir()
    else:
        path.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Delete a file or a folder to which no row refers, without waiting for a server."""
    remove(path)


@contextmanager
def workspace() -> Iterator[Path]:
    """Yield a temporary folder on the same disk as the storage, so that moving a file there is just a rename."""
    folder = _workspaces() / uuid.uuid4().hex[:12]  # its name also names folders that jobs make in it
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_workspaces() -> None:
    """Delete workspaces left behind by a killed site. Call this only if no other process uses the data folder."""
    shutil.rmtree(_workspaces(), ignore_errors=True)


def _workspaces() -> Path:
    return root() / "work"


def model_files(run: Run) -> list[str]:
    return ["--files", str(local(model_folder(run.dataset)))] if run.parsed_recipe.files() else []


def recipe_file(run: Run, work: Path) -> Path:
    path = work / "recipe.json"
    path.write_text(run.recipe)
    return path

"""For a Hub dataset that is too large to fetch, list all of its row groups and fetch a random sample of them. The site
prepares the sample like any other text. The rest stays on the Hub, where machines read it (`publishing.portions`).
"""

import hashlib
import shutil
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from filelock import FileLock

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.publishing.documents import ORDER_KEY
from peer_agent.publishing.portions import LISTING, Listing, RangeFile, RemoteFile
from peer_agent.publishing.row_groups import GROUP_BYTES, Groups, faults_of_this_machine
from peer_agent.publishing.rows import CONVERSATIONS
from peer_agent.site_work.fetching import SAMPLE_BYTES, Fetched, Wanted, chosen_files

FOOTER_BYTES = 256 << 20  # limit on bytes read from one file to find its row groups ...
FOOTERS_BYTES = 4 << 30  # ... and from all files
MOST_LISTED = 2_000_000  # limit on row groups in a dataset
MOST_SAMPLED = 1000
PARTS = ".parts"  # suffix of the name of the folder for unfinished files


def fetch_sample(wanted: Wanted, commit: str, folder: Path, *, most: int) -> Fetched:
    """Fetch a sample into a folder, one file per row group. Write a list of all row groups next to the folder. `most`:
    the sample's maximum size in bytes. Resumes an earlier attempt. Raises the errors of `fetching.chosen_files`. Raises
    Problem E382 if no column has text, E396 if there are too many row groups, or E417 if all of them are too large.
    Raises Problem E414 if the dataset has changed, E416 if this machine cannot read its rows, or E106 if the disk
    fails.
    """
    parts = folder.with_name(folder.name + PARTS)
    with disk_errors(folder):
        for each in (folder, parts):
            each.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        files = _listed(wanted, commit, parts)
        sampled = _sampled(files, min(SAMPLE_BYTES, most))
        if not sampled:
            raise _without_texts(wanted, files)
        numbered = [(place, folder / f"{number:05}") for number, place in enumerate(sampled)]
        for number, places in groupby(numbered, lambda each: each[0][0]):
            missing = [(group, path) for (_, group), path in places if not path.exists()]
            if missing:
                _copy(wanted, commit, files[number], missing, parts)
        content = msgspec.json.encode(Listing(wanted.repository, commit, files, sampled))
        with disk_errors(folder):
            folder.with_name(folder.name + LISTING).write_bytes(content)
        shutil.rmtree(parts, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return Fetched(sha256=hashlib.sha256(content).hexdigest(), size=size)


def _listed(wanted: Wanted, commit: str, parts: Path) -> list[RemoteFile]:
    """Return each file's row groups. Raises Problem E396 if the dataset has too many.

    Save each file's list, so that a retry need not read up to a thousand files again.
    """
    held: Mapping[str, Any] = chosen_files(wanted, commit)
    found, read = list[RemoteFile](), 0
    for number, (name, file) in enumerate(held.items()):
        path = parts / f"groups-{number:05}"
        if not path.exists():
            with _remote(wanted, commit, name, file.size, FOOTER_BYTES) as remote:
                groups = Groups(remote)
                listed = RemoteFile(name, file.size, [*groups.texts, *groups.conversations], groups.all())
                read += remote.taken
            _write(path, msgspec.json.encode(listed))
        found.append(msgspec.json.decode(path.read_bytes(), type=RemoteFile))
        if sum(len(each.groups) for each in found) > MOST_LISTED or read > FOOTERS_BYTES:
            parted = f"{len(held):,} files with more than {MOST_LISTED:,} row groups"
            raise Problem.of("E396", repository=wanted.repository, parts=parted, example=f"{wanted.repository}/{name}")
    return found


def _sampled(files: list[RemoteFile], most: int) -> list[tuple[int, int]]:
    """Return a fixed random choice of row groups that total at most `most` bytes. If every row group is larger than
    that, return only the smallest.
    """
    sizes = {
        (number, at): sum(group.sizes.values())
        for number, file in enumerate(files)
        for at, group in enumerate(file.groups)
        if group.sizes
    }
    draws = np.random.Philox(key=ORDER_KEY).random_raw(len(sizes))
    places, found, left = list(sizes), list[tuple[int, int]](), most
    for place in (places[at] for at in np.argsort(draws, kind="stable")):
        if sizes[place] <= left:
            found.append(place)
            left -= max(sizes[place], most // MOST_SAMPLED)
        if left <= 0:
            break
    smallest = min(sizes, key=lambda place: (sizes[place], place), default=None)
    return sorted(found) or ([smallest] if smallest is not None else [])


def _without_texts(wanted: Wanted, files: list[RemoteFile]) -> Problem:
    if any(file.columns for file in files):
        return Problem.of("E417", repository=wanted.repository, most=f"{GROUP_BYTES >> 20:,}")
    rows = sum(group.rows for file in files for group in file.groups)
    return Problem.of("E382", rows=f"{rows:,}", fields="no text")


def _copy(wanted: Wanted, commit: str, file: RemoteFile, missing: list[tuple[int, Path]], parts: Path) -> None:
    most = FOOTER_BYTES + len(missing) * GROUP_BYTES
    with (
        disk_errors(parts),
        faults_of_this_machine(wanted.repository, file.name),
        _remote(wanted, commit, file.name, file.size, most) as remote,
    ):
        groups = Groups(remote)
        for number, path in missing:
            sizes = file.groups[number].sizes
            columns = [name for name in file.columns if name in sizes or name in CONVERSATIONS]
            groups.copy([number], columns, parts / path.name)
            (parts / path.name).replace(path)


def _remote(wanted: Wanted, commit: str, name: str, size: int, most: int) -> Any:
    return RangeFile(wanted.repository, commit, name, size=size, endpoint=wanted.endpoint, most=most)


def _write(path: Path, content: bytes) -> None:
    part = path.with_name("part")
    with disk_errors(path):
        part.write_bytes(content)
        part.replace(path)

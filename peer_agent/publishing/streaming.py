"""Texts of the Hub that are too many to be fetched: what there is of them is listed, and a fair sample is fetched.

Footers say where row groups lie and how large they are. The sample is learned from as any text is; what is left stays
on the Hub, where machines read it (`text.portions`).
"""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from filelock import FileLock

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.errors.disk import disk_errors
from peer_agent.publishing.hub.fetching import SAMPLE_BYTES, Fetched, Wanted, chosen_files
from peer_agent.publishing.hub.ranges import RangeFile
from peer_agent.publishing.text.documents import ORDER_KEY
from peer_agent.publishing.text.portions import LISTING, Listing, RemoteFile
from peer_agent.publishing.text.row_groups import GROUP_BYTES, copy_groups, groups_in

FOOTER_BYTES = 256 << 20  # that are read of a file to find its row groups
PARTS = ".parts"  # behind the name of a folder: what is not whole yet


def fetch_sample(wanted: Wanted, commit: str, folder: Path, *, most: int) -> Fetched:
    """Put a sample into a folder, a file for each row group, and a list of all row groups beside it.

    `most`: bytes of the sample. Goes on where an earlier try has ended. Raises Problem E106 where the disk is full,
    E382 where no column has texts, E414, and as `fetching.fetch`.
    """
    parts = folder.with_name(folder.name + PARTS)
    with disk_errors(folder):
        for each in (folder, parts):
            each.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        files = _listed(wanted, commit, parts)
        sampled = _sampled(files, min(SAMPLE_BYTES, most))
        if not sampled:
            raise Problem.of("E382", rows=f"{sum(group.rows for file in files for group in file.groups):,}")
        for number, (file, group) in enumerate(sampled):
            path = folder / f"{number:05}"
            if not path.exists():
                _copy(wanted, commit, files[file], group, parts / path.name)
                with disk_errors(path):
                    (parts / path.name).replace(path)
        listing = Listing(wanted.repository, commit, files, sampled)
        content = msgspec.json.encode(listing)
        with disk_errors(folder):
            folder.with_name(folder.name + LISTING).write_bytes(content)
        shutil.rmtree(parts, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return Fetched(sha256=hashlib.sha256(content).hexdigest(), size=size)


def _listed(wanted: Wanted, commit: str, parts: Path) -> list[RemoteFile]:
    """Row groups by file. What was listed is kept: there may be a thousand files."""
    held: Mapping[str, Any] = chosen_files(wanted, commit)
    found = []
    for number, (name, file) in enumerate(held.items()):
        path = parts / f"groups-{number:05}"
        if not path.exists():
            with _remote(wanted, commit, name, file.size, FOOTER_BYTES) as remote:
                listed = RemoteFile(name, file.size, groups_in(remote))
            _write(path, msgspec.json.encode(listed))
        found.append(msgspec.json.decode(path.read_bytes(), type=RemoteFile))
    return found


def _sampled(files: list[RemoteFile], most: int) -> list[tuple[int, int]]:
    """Row groups from everywhere, in an order that is always the same, until there are so many bytes."""
    places = [(number, at) for number, file in enumerate(files) for at, group in enumerate(file.groups) if group.sizes]
    draws = np.random.Philox(key=ORDER_KEY).random_raw(len(places))
    found, left = list[tuple[int, int]](), most
    for place in (places[at] for at in np.argsort(draws, kind="stable")):
        size = sum(files[place[0]].groups[place[1]].sizes.values())
        if size <= left or not found:
            found.append(place)
            left -= size
        if left <= 0:
            break
    return sorted(found)


def _copy(wanted: Wanted, commit: str, file: RemoteFile, group: int, path: Path) -> None:
    most = FOOTER_BYTES + 2 * GROUP_BYTES
    with disk_errors(path), _remote(wanted, commit, file.name, file.size, most) as remote:
        copy_groups(remote, [group], file.groups[group].sizes, path)


def _remote(wanted: Wanted, commit: str, name: str, size: int, most: int) -> Any:
    return RangeFile(wanted.repository, commit, name, size=size, endpoint=wanted.endpoint, most=most)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    part = path.with_name("part")
    with disk_errors(path):
        part.write_bytes(content)
        part.replace(path)

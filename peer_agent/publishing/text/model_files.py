"""The files of a model's folder, as it is or in a zip. What is read of them is bounded."""

import json
import shutil
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.hub.choosing import CONFIG_FILE

MOST_JSON = 4 << 20  # bytes
MOST_SHRUNK = 4  # times, by compression: parameters hardly shrink, and what is unpacked follows from what was uploaded
# What zipfile raises; RuntimeError where there is a password, or a way of packing that it does not know.
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


class ModelFiles(ABC):
    """Those that lie beside config.json, by name."""

    names: Collection[str]

    @abstractmethod
    def size_of(self, name: str) -> int:
        """Bytes of one of them."""

    @abstractmethod
    def bytes_of(self, name: str) -> bytes:
        """All of one of them."""

    @abstractmethod
    def paths(self, names: list[str], work: Path) -> Iterator[Path]:
        """Each of these files in its turn, for as long as it is the turn. Raises Problem E388 where one is missing."""

    def read(self, name: str, most: int = MOST_JSON) -> bytes | None:
        """A small file; None where there is none. Raises Problem E388 where it is no small one."""
        if name not in self.names:
            return None
        if self.size_of(name) > most:
            raise Problem.of("E388", reason=f"{name} is larger than {most >> 20} MB")
        return self.bytes_of(name)

    def values(self, name: str) -> dict[str, Any]:
        """Of a file of JSON; empty where there is none. Raises Problem E388 where it is something else."""
        try:
            found = json.loads(self.read(name) or b"{}")
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise Problem.of("E388", reason=f"{name} is not JSON") from error
        if not isinstance(found, dict):
            raise Problem.of("E388", reason=f"{name} is not an object")
        return found

    def held(self, name: str) -> str:
        """The name of a file that has to be there, whatever folder is said before it. Raises Problem E388."""
        last = PurePosixPath(name).name
        if last not in self.names:
            raise Problem.of("E388", reason=f"{name[:100]} is missing")
        return last


class _Folder(ModelFiles):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names = {path.name for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
        if CONFIG_FILE not in self.names:
            raise Problem.of("E388", reason=f"there is no {CONFIG_FILE} in it")

    def size_of(self, name: str) -> int:
        return (self._folder / name).stat().st_size

    def bytes_of(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def paths(self, names: list[str], work: Path) -> Iterator[Path]:  # noqa: ARG002 (nothing has to be unpacked)
        for name in names:
            yield self._folder / self.held(name)


class _Zipped(ModelFiles):
    """Wherever in the archive config.json lies."""

    def __init__(self, packed: zipfile.ZipFile) -> None:
        self._packed = packed
        known = {PurePosixPath(entry.filename): entry for entry in packed.infolist() if not entry.is_dir()}
        places = sorted((len(path.parts), path.parent) for path in known if path.name == CONFIG_FILE)
        if not places:
            raise Problem.of("E388", reason=f"there is no {CONFIG_FILE} in it")
        self._entries = {path.name: entry for path, entry in known.items() if path.parent == places[0][1]}
        self.names = self._entries.keys()

    def size_of(self, name: str) -> int:
        return self._entries[name].file_size

    def bytes_of(self, name: str) -> bytes:
        return self._packed.read(self._entries[name])

    def paths(self, names: list[str], work: Path) -> Iterator[Path]:
        for number, name in enumerate(names):
            entry = self._entries[self.held(name)]
            if entry.file_size > MOST_SHRUNK * entry.compress_size:
                raise Problem.of("E388", reason=f"{entry.filename[-100:]} is packed as parameters cannot be")
            path = work / f"part-{number}"
            with self._packed.open(entry) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            yield path
            path.unlink()


@contextmanager
def open_model(path: Path) -> Iterator[ModelFiles]:
    """Of a folder or a zip. Raises Problem E388 where it is neither, or no model's."""
    try:
        if path.is_dir():
            yield _Folder(path)
        else:
            with zipfile.ZipFile(path) as packed:
                yield _Zipped(packed)
    except UNREADABLE as error:
        raise Problem.of("E388", reason=error) from error

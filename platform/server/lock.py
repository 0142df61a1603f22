"""Each site process has a place of its own in the data folder: a lock, an announcement, a home for its relay.

SQLite and the in-memory queue belong to one process, so there the first place is the only one. A process that is
started again finds the first free place, and with it the key and the log of a relay. The lock ends with its process.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, NamedTuple

from django.conf import settings

from peer_agent.machine.home import read_holder, sign_lock, try_lock
from peer_agent.protocol.errors import Problem


class Place(NamedTuple):
    """Where one process keeps what is not shared. `number` counts from 1."""

    folder: Path
    number: int

    def path(self, name: str, ending: str = "") -> Path:
        """A file or folder of this place: `name` in the first one, `name-2` in the second."""
        return self.folder / (f"{name}{ending}" if self.number == 1 else f"{name}-{self.number}{ending}")

    @property
    def announcement(self) -> Path:
        """Tells other programs where this site is."""
        return self.path("serve", ".json")

    @property
    def relay_home(self) -> Path:
        """Where the relay keeps its key and its part of the log."""
        return self.path("relay")

    @property
    def relay_log(self) -> Path:
        """Where the relay's words go."""
        return self.path("relay", ".log")


@contextmanager
def own_place(folder: Path, *, alone: bool) -> Iterator[Place]:
    """Hold the first free place. Raises Problem E404 with the process that has it, if there can be one only; E106."""
    for number in count(1):
        place = Place(folder, number)
        with place.path("serve", ".lock").open("a+") as file:
            if _try_lock(file, place.folder):
                sign_lock(file)
                yield place
                return
            if alone:
                raise Problem.of("E404", pid=read_holder(file) or "unknown", folder=folder)


def _try_lock(file: IO[str], folder: Path) -> bool:
    try:
        return try_lock(file)
    except OSError as error:
        raise Problem.of("E106", path=folder, reason=error.strerror or error) from error


def announced_url() -> str:
    """The public address of the site process on this data folder; empty where none has announced itself."""
    for path in sorted(Path(settings.DATA).glob("serve*.json")):
        with suppress(OSError, ValueError, KeyError):  # it ends as we read
            return str(json.loads(path.read_text())["url"])
    return ""

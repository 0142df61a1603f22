"""A slot of its own for each site process: a lock, an announcement, and a home for its relay.

SQLite and the in-memory queue belong to one process, so they allow only the first slot. A restarted process takes the
first free slot, with its relay's key and log. The lock ends with its process.
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
    """A resource that one process keeps for itself. `number` counts from 1."""

    folder: Path
    number: int

    def path(self, name: str, ending: str = "") -> Path:
        """Return a path of this slot: `name` in the first one, `name-2` in the second."""
        return self.folder / (f"{name}{ending}" if self.number == 1 else f"{name}-{self.number}{ending}")

    @property
    def announcement(self) -> Path:
        """The file that tells other programs the site's address."""
        return self.path("serve", ".json")

    @property
    def relay_home(self) -> Path:
        """The folder of the relay's key and its part of the log."""
        return self.path("relay")

    @property
    def relay_log(self) -> Path:
        """The file of the relay's output."""
        return self.path("relay", ".log")


@contextmanager
def own_place(folder: Path, *, alone: bool) -> Iterator[Place]:
    """Lock the first free slot. Raises E106, and Problem E404 with the holder if there can be only one."""
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
    """Return the public address of a site process on this data folder; empty without one."""
    for path in sorted(Path(settings.DATA).glob("serve*.json")):
        with suppress(OSError, ValueError, KeyError):  # the process may end meanwhile
            return str(json.loads(path.read_text())["url"])
    return ""

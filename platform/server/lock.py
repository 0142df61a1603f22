"""A numbered place for each site process: a lock, an announcement file, and a home folder for its relay.

SQLite and the in-memory queue can each serve only one process, so a site that uses either has only the first place. A
restarted process takes the first free place, along with that place's relay key and log. The operating system releases
a lock when its process ends.
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
    """The files in the data folder that belong to one site process. `number` counts from 1."""

    folder: Path
    number: int

    def path(self, name: str, ending: str = "") -> Path:
        """Return the path of a file in this place: `name` for the first place, `name-2` for the second."""
        return self.folder / (f"{name}{ending}" if self.number == 1 else f"{name}-{self.number}{ending}")

    @property
    def announcement(self) -> Path:
        """The file in which this process announces the site's address to other programs."""
        return self.path("serve", ".json")

    @property
    def relay_home(self) -> Path:
        """The folder holding the relay's key and its part of the log."""
        return self.path("relay")

    @property
    def relay_log(self) -> Path:
        """The file that the relay's output is written to."""
        return self.path("relay", ".log")


@contextmanager
def own_place(folder: Path, *, alone: bool) -> Iterator[Place]:
    """Lock the first free place for this process and yield it.

    `alone` means that only one process may run; a second one raises Problem E404, which names the process holding the
    lock. Raises Problem E106 if the folder cannot be used.
    """
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
    """Return the public address of a site process using this data folder, or an empty string if none is running."""
    for path in sorted(Path(settings.DATA).glob("serve*.json")):
        with suppress(OSError, ValueError, KeyError):  # the process may have ended in the meantime
            return str(json.loads(path.read_text())["url"])
    return ""

"""How much this machine has moved in this month, over all runs and starts: one small file in its home."""

import contextlib
import time

import msgspec
from msgspec import Struct

from peer_agent.machine.home import Home
from peer_agent.protocol.errors import Problem

FILE = "traffic.json"
KEEP_S = 30.0  # between looks at the file: what is lost with a machine that dies


class Moved(Struct, frozen=True):
    """Bytes, up and down together, in a month of this machine's clock."""

    month: str
    bytes: int


class Month:
    """Counts on from what the file says."""

    def __init__(self, home: Home, *, since: int, month: str = "") -> None:
        """`since`: bytes that this process has moved before."""
        self.home, self._seen = home, since
        self._kept_at = time.monotonic()
        self.moved = self._read(month or this_month())

    def _read(self, month: str) -> Moved:
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            moved = msgspec.json.decode((self.home.folder / FILE).read_bytes(), type=Moved)
            if moved.month == month and moved.bytes >= 0:
                return moved
        return Moved(month, 0)

    def add(self, total: int, *, month: str = "") -> int:
        """This process has moved `total` bytes in all; those of this month."""
        month = month or this_month()
        more, self._seen = max(total - self._seen, 0), total
        before = self.moved.bytes if self.moved.month == month else 0
        self.moved = Moved(month, before + more)
        if time.monotonic() - self._kept_at >= KEEP_S:
            self.keep()
        return self.moved.bytes

    def keep(self) -> None:
        """Write it down. A disk that is full is told of by whatever needs it more."""
        self._kept_at = time.monotonic()
        with contextlib.suppress(Problem):
            self.home.write(FILE, msgspec.json.encode(self.moved))


def this_month() -> str:
    """As 2026-11."""
    return time.strftime("%Y-%m")

"""Bytes that a process sends and receives, by kind, in a file that others can read meanwhile.

They are counted at sessions, so each message is one of a link; a peer's link to itself has none. Framing is our frames'
header and that of WebSockets. TLS, TCP and IP belong to the kernel and are only in its counters.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.session import Event, Link, Session, Side
from peer_agent.protocol.wire import HEADER, LOGGED, Kind

NAME = "tally"
GRADIENT, AVERAGE, LOG, WORDS, PROBE, CONTROL = range(6)  # rows; words: messages of data links
FENCE = slice(25, 29)  # of a frame's header

Counts = NDArray[np.int64]  # [rows, 2]: sent, received


def row_of(link: Link, data: bytes | memoryview) -> int:
    """Return the row in which a message counts."""
    if link is Link.CONTROL:
        return CONTROL
    match data[0] if len(data) >= HEADER.size else Kind.MESSAGE:
        case Kind.GRADIENT:
            return GRADIENT
        case Kind.AVERAGE:
            return LOG if int.from_bytes(data[FENCE]) == LOGGED else AVERAGE
        case Kind.PROBE:
            return PROBE
    return WORDS


def framed(size: int, *, is_masked: bool) -> int:
    """Return the size with a WebSocket frame around it (RFC 6455, section 5.2); the dialler masks."""
    return size + 2 + (0 if size < 126 else 2 if size < 1 << 16 else 8) + (4 if is_masked else 0)


class CountedSession(Session):
    """A session that counts for all links of this process."""

    counts: Counts = np.zeros((6, 2), np.int64)

    def outgoing(self) -> list[bytes]:
        """Return the messages to send, and count them."""
        messages = super().outgoing()
        for data in messages:
            self.counts[row_of(self.link, data), 0] += framed(len(data), is_masked=self.side is Side.DIALLING)
        return messages

    def receive(self, data: bytes | memoryview, now: float) -> Event | None:
        self.counts[row_of(self.link, data), 1] += framed(len(data), is_masked=self.side is Side.LISTENING)
        return super().receive(data, now)


def count_into(folder: Path) -> None:
    """Count all sessions of this process in a file of this folder from now on."""
    from peer_agent.network import link, relay_server

    folder.mkdir(parents=True, exist_ok=True)
    CountedSession.counts = np.memmap(folder / NAME, np.int64, "w+", shape=(6, 2))
    for module in (link, relay_server):
        replaced: Any = module
        replaced.Session = CountedSession


def counted(folder: Path) -> Counts:
    """Return the counts so far; zeros if no process has begun to count."""
    path = folder / NAME
    if not path.exists() or path.stat().st_size < 96:
        return np.zeros((6, 2), np.int64)
    return np.fromfile(path, np.int64).reshape(6, 2)

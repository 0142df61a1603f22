"""Counts of the bytes that a process sends and receives, by kind, in a file that other processes can read at any time.

Link sessions count the bytes, including our frame headers and WebSocket framing. Data that a peer passes to itself is
not counted. TLS, TCP and IP overhead appears only in the kernel's counters.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.session import Event, Link, Session, Side
from peer_agent.protocol.wire import HEADER, LOGGED, Kind

NAME = "tally"
GRADIENT, AVERAGE, LOG, WORDS, PROBE, CONTROL = range(6)  # rows of the counts; WORDS are messages on data links
FENCE = slice(25, 29)  # where the fence lies in a frame's header

Counts = NDArray[np.int64]  # of shape [rows, 2]: sent, received


def row_of(link: Link, data: bytes | memoryview) -> int:
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
    """Return the size with its WebSocket frame included (RFC 6455, section 5.2). Only the dialling side masks its
    frames.
    """
    return size + 2 + (0 if size < 126 else 2 if size < 1 << 16 else 8) + (4 if is_masked else 0)


class CountedSession(Session):
    counts: Counts = np.zeros((6, 2), np.int64)

    def outgoing(self) -> list[bytes]:
        messages = super().outgoing()
        for data in messages:
            self.counts[row_of(self.link, data), 0] += framed(len(data), is_masked=self.side is Side.DIALLING)
        return messages

    def receive(self, data: bytes | memoryview, now: float) -> Event | None:
        self.counts[row_of(self.link, data), 1] += framed(len(data), is_masked=self.side is Side.LISTENING)
        return super().receive(data, now)


def count_into(folder: Path) -> None:
    """Start counting the bytes of all sessions of this process, in a file in this folder."""
    from peer_agent.network import link, relay_server

    folder.mkdir(parents=True, exist_ok=True)
    CountedSession.counts = np.memmap(folder / NAME, np.int64, "w+", shape=(6, 2))
    for module in (link, relay_server):
        replaced: Any = module
        replaced.Session = CountedSession


def counted(folder: Path) -> Counts:
    """Return the counts so far, or zeros if the process has not started counting."""
    path = folder / NAME
    if not path.exists() or path.stat().st_size < 96:
        return np.zeros((6, 2), np.int64)
    return np.fromfile(path, np.int64).reshape(6, 2)

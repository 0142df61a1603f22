"""Handover of connections from the site's port to the relays of this machine.

A connection for /relay/ is passed to the relay's process as a file descriptor (SCM_RIGHTS), together with the head of
its request. From then on, its bytes do not pass through the site's process. Several site processes may share a port or
an address, each with its own relay. Every relay has a path of its own, and a socket in the data folder at which each of
these processes reaches it.
"""

import asyncio
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.lock import Place

log = logging.getLogger(__name__)

RELAY = re.compile(rb"/relay(?:-([1-9][0-9]{0,3}))?/")
CAN_PASS = hasattr(socket, "send_fds")  # False on Windows
TRIES, AGAIN_S = 40, 0.05  # a relay's queue has room for 10 connections on many systems
SHORT = 100  # bytes; the system limits a socket's path to 104 or 108


def can_pass(place: Place) -> bool:
    """Return True if connections can be passed to this place's relay.

    Systems other than Linux also need a short path to the data folder.
    """
    return CAN_PASS and (sys.platform == "linux" or len(os.fsencode(_door(place))) <= SHORT)


def relay_path(place: Place) -> str:
    """Return the path at the site's address that leads to this place's relay."""
    return "/relay/" if place.number == 1 else f"/relay-{place.number}/"


def place_in(folder: Path, url: bytes) -> Place | None:
    """Return the place whose relay a request's path names, or None if the path names no relay."""
    found = RELAY.match(url)
    return Place(folder, int(found[1] or 1)) if found else None


def open_door(place: Place) -> socket.socket:
    """Return the socket at which this place's relay will receive connections. The caller must pass it to the relay."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    _door(place).unlink(missing_ok=True)
    with _name_of(place) as name:
        door.bind(name)
    return door


def close_door(place: Place) -> None:
    """Delete the socket's name, because copies of the data folder cannot contain a socket."""
    _door(place).unlink(missing_ok=True)


def hand_over(place: Place, transport: asyncio.BaseTransport, head: bytes, visitor: str, tries: int = TRIES) -> None:
    """Pass a connection to this place's relay, and close this process's end of it.

    While the relay's queue is full, try again for two seconds. If that fails or no relay is running, the connection is
    closed, and the agent retries.
    """
    assert isinstance(transport, asyncio.Transport)
    if transport.is_closing():
        return
    system: socket.socket = transport.get_extra_info("socket")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours, _name_of(place) as name:
            ours.settimeout(0.0)
            ours.connect(name)
            socket.send_fds(ours, [f"{visitor}\n".encode() + head], [system.fileno()])
    except FileNotFoundError:
        pass  # strangers may try any path, which must not fill the log
    except BlockingIOError:
        if tries > 1:
            transport.pause_reading()  # the bytes are for the relay
            loop = asyncio.get_running_loop()
            loop.call_later(AGAIN_S, hand_over, place, transport, head, visitor, tries - 1)
            return
        log.warning("relay %d is too busy to take a connection", place.number)
    except OSError as error:
        log.warning("relay %d takes no connection: %s", place.number, error)
    transport.abort()  # only closes this process's descriptor


def _door(place: Place) -> Path:
    return place.path("relay", ".sock")


@contextmanager
def _name_of(place: Place) -> Iterator[str]:
    """Yield a name of the socket that is short enough, however long the path of the data folder is."""
    if sys.platform != "linux":
        yield str(_door(place))
        return
    folder = os.open(place.folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{_door(place).name}"
    finally:
        os.close(folder)

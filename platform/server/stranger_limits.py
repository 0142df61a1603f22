"""Limits on bytes, seconds and connections for unauthenticated clients. Relays have similar limits."""

import resource
from collections.abc import Hashable
from typing import Protocol

from django.conf import settings
from msgspec import Struct

from config.proxies import is_trusted
from peer_agent.protocol.messages import MAX_HANDSHAKE
from web.http.requester import household

HEAD_BYTES = MAX_HANDSHAKE  # bytes in a request's first line and headers
STRANGER_BYTES = 64 * 1024  # bytes in a body that anyone may send; no form or message without a file is longer
MOST_PIPELINED = 8  # most requests on one connection waiting for an earlier response
MOST_FRAGMENTS = 1024  # most fragments per message; empty ones would escape a limit on its length
MOST_WAITING = 16  # most unread messages from a page
MOST_UNREAD = 64 * 1024  # bytes of pongs that the client has not read
PER_CREDENTIAL = 4  # control connections per machine and run; beyond that, the oldest is closed
RESERVED_FILES = 256  # open files reserved for the database, logs, storage and child processes
MOST_FILES = 65_536


class Limits(Struct, frozen=True):
    """Limits in seconds and connections. `body_s` covers an entire short body; `slowest` applies to longer ones."""

    head_s: float = 10.0  # from the connection, or a later request's first byte, to the end of the head
    proof_s: float = 10.0  # from the end of the head to the proof, for agents
    body_s: float = 30.0
    keep_alive_s: float = 5.0  # between requests
    unread_s: float = 60.0  # within which a client must read part of its response
    slowest: int = 1024  # minimum bytes per second for a long body
    strangers: int = 1024
    of_address: int = 300
    connections: int = 4096


def usual_limits() -> Limits:
    """Raise this process's limit on open files to the allowed maximum, and return connection limits that fit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    most = max(files - RESERVED_FILES, files // 2)
    return Limits(connections=most, strangers=min(1024, most // 2), of_address=settings.PEOPLE_PER_ADDRESS)


class Guest(Protocol, Hashable):
    """A connection that can be closed."""

    def turn_out(self) -> None:
        """Abort the connection at once, because closing it normally would take a long time."""
        ...


class Strangers:
    """Connections whose clients have not yet finished a request's head or authenticated.

    When there are too many, the oldest is closed. Sending a head or a proof takes only a moment, so the oldest is most
    likely idle. If new connections were rejected instead, a few idle clients could block the site.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._at: dict[Guest, str] = {}  # oldest first
        self._of: dict[str, dict[Guest, None]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def enter(self, guest: Guest, ip: str) -> None:
        """Add a connection. `ip` is the client's address, possibly as reported by a trusted proxy."""
        self.leave(guest)
        address = "" if is_trusted(ip) else household(ip)
        self._at[guest] = address
        self._of.setdefault(address, {})[guest] = None
        if address and len(self._of[address]) > self._limits.of_address:
            self._turn_out(next(iter(self._of[address])))
        elif len(self._at) > self._limits.strangers:
            self._turn_out(next(iter(self._at)))

    def leave(self, guest: Guest) -> None:
        address = self._at.pop(guest, None)
        if address is None:
            return
        del self._of[address][guest]
        if not self._of[address]:
            del self._of[address]

    def _turn_out(self, guest: Guest) -> None:
        self.leave(guest)
        guest.turn_out()


class Owners:
    """Authenticated connections by owner. Each machine may have a few; beyond that, its oldest one is closed."""

    def __init__(self) -> None:
        self._links: dict[str, dict[Guest, None]] = {}

    def enter(self, guest: Guest, owner: str) -> None:
        links = self._links.setdefault(owner, {})
        links[guest] = None
        if len(links) > PER_CREDENTIAL:
            oldest = next(iter(links))
            del links[oldest]
            oldest.turn_out()

    def leave(self, guest: Guest, owner: str) -> None:
        links = self._links.get(owner, {})
        links.pop(guest, None)
        if not links:
            self._links.pop(owner, None)

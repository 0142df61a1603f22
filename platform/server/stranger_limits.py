"""How much somebody may send who has not said who they are, for how long, and how many of them there are at once.

As at the relay: 8 KiB and seconds. Knows connections only as things that can be ended.
"""

import resource
from collections.abc import Hashable
from typing import Protocol

from django.conf import settings
from msgspec import Struct

from config.proxies import is_trusted
from peer_agent.protocol.messages import MAX_HANDSHAKE
from web.http.requester import household

HEAD_BYTES = MAX_HANDSHAKE  # of a request's first line and headers
STRANGER_BYTES = 64 * 1024  # of a body, from anybody; every form and message without a text is shorter
MOST_PIPELINED = 8  # requests that wait on one connection for the answer before them
MOST_FRAGMENTS = 1024  # of one message; empty ones count for nothing in its length
MOST_WAITING = 16  # messages of a page that nobody has looked at yet
MOST_UNREAD = 64 * 1024  # bytes of answers to pings that their sender does not read
PER_CREDENTIAL = 4  # control links of one machine in one run; the oldest goes
RESERVED_FILES = 256  # for the database, logs, storage and children
MOST_FILES = 65_536


class Limits(Struct, frozen=True):
    """Seconds, and numbers of connections. A body that is short has `body_s` in all; a longer one has to move."""

    head_s: float = 10.0  # from the first moment, or the first byte of a further request, to the end of its head
    proof_s: float = 10.0  # from the end of the head to the proof, on an agent's link
    body_s: float = 30.0
    keep_alive_s: float = 5.0  # between two requests
    unread_s: float = 60.0  # how long an answer may lie here before anything of it is taken
    slowest: int = 1024  # bytes a second of a long body
    strangers: int = 1024
    of_address: int = 300
    connections: int = 4096


def usual_limits() -> Limits:
    """As many connections as this process may hold open files, which is as many as the system lets it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    most = max(files - RESERVED_FILES, files // 2)
    return Limits(connections=most, strangers=min(1024, most // 2), of_address=settings.PEOPLE_PER_ADDRESS)


class Guest(Protocol, Hashable):
    """A connection."""

    def turn_out(self) -> None:
        """End it, without courtesies: they would take as long again."""
        ...


class Strangers:
    """Who has not finished the head of a request, or has to prove who they are. Where it is full the oldest goes.

    A head comes within a moment and a proof too, so whoever is oldest is most likely not going to say more; turning
    newcomers away would let a handful of silent ones close the site.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._at: dict[Guest, str] = {}  # the oldest first
        self._of: dict[str, dict[Guest, None]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def enter(self, guest: Guest, ip: str) -> None:
        """One more. `ip` is whom the connection is from, or whom a trusted proxy says it is from."""
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
    """Links by whose they are: one machine has few of them. The oldest goes, for it may be dead without our knowing."""

    def __init__(self) -> None:
        self._links: dict[str, dict[Guest, None]] = {}

    def enter(self, guest: Guest, owner: str) -> None:
        """One more link of `owner`."""
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

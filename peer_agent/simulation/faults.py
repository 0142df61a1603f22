"""Faults: each has a kind, is taken once, and is counted.

A fault is ordered for a peer and a round, or left to chance (`odds`). A test orders one and asserts that it was taken,
like torchft's `EventInjector`. The code that carries out a fault asks here for it.
"""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from peer_agent.protocol.identifiers import PeerId

# Faults of a message between a peer and the host. "notice": the site's message that a socket has closed; "unheard": a
# socket misses the announcement of a new host.
LetterFault = Literal[
    "lost up", "lost down", "twice up", "twice down", "late up", "late down", "lost notice", "unheard"
]
# Faults of a peer. "far": it cannot dial one of the relays.
PeerFault = Literal["killed", "reconnected", "frozen", "gave back", "hung", "far", "damaged", "differs", "slow", "full"]
# Faults of the site.
SiteFault = Literal["site killed", "host replaced", "host frozen", "host overtaken", "layer away", "database away"]
Kind = LetterFault | PeerFault | SiteFault | Literal["failed", "answer lost", "unknown and not written", "night"]

NOBODY = PeerId("")  # the peer of a fault of the site


class Ordered(Struct, frozen=True):
    """An ordered fault. `of` limits it to one kind of message. `lasts_s` is its duration, if it lasts."""

    kind: Kind
    peer: PeerId
    round: int
    of: str = ""
    lasts_s: float = 10.0


class Faults:
    """All faults of a world: ordered ones, the odds of others, and counts by kind."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"faults {seed}")
        self.odds: Mapping[Kind, float] = {}
        self.fired: Counter[Kind] = Counter()
        self.waiting: dict[int, list[Ordered]] = {}  # by round

    def order(self, fault: Ordered) -> None:
        self.waiting.setdefault(fault.round, []).append(fault)

    def strikes(self, kind: Kind, peer: PeerId, round_: int, of: str = "") -> bool:
        """Return True if the fault happens now: ordered, which takes it, or by chance."""
        if self.waiting and self._take(kind, peer, round_, of):
            self.fired[kind] += 1
            return True
        odds = self.odds.get(kind, 0.0)
        if not odds or self.chance.random() >= odds:
            return False
        self.fired[kind] += 1
        return True

    def _take(self, kind: Kind, peer: PeerId, round_: int, of: str) -> bool:
        for fault in self.waiting.get(round_, ()):
            if (fault.kind, fault.peer) == (kind, peer) and fault.of in ("", of):
                self._remove(fault)
                return True
        return False

    def due(self, kinds: frozenset[str], round_: int) -> list[Ordered]:
        """Take the faults of these kinds ordered for this round; the caller carries them out and counts them."""
        due = [fault for fault in self.waiting.get(round_, ()) if fault.kind in kinds]
        for fault in due:
            self._remove(fault)
        return due

    def _remove(self, fault: Ordered) -> None:
        self.waiting[fault.round].remove(fault)
        if not self.waiting[fault.round]:
            del self.waiting[fault.round]

    @property
    def untaken(self) -> list[Ordered]:
        return [fault for _, faults in sorted(self.waiting.items()) for fault in faults]

"""Faults in a simulation.

They are ordered for a peer and a round or happen by chance (`odds`), and are counted. A test can order a fault and
assert that it happened, as with torchft's `EventInjector`. Wherever a fault may occur, the simulator asks `Faults` if
it happens now.
"""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from peer_agent.protocol.identifiers import PeerId

# Faults in a message between a peer and the host. "lost notice": the host does not learn that a socket has closed.
# "unheard": a socket misses the announcement of a new host.
LetterFault = Literal[
    "lost up", "lost down", "twice up", "twice down", "late up", "late down", "lost notice", "unheard"
]
# Faults of a peer. "far": the peer cannot dial one of the relays.
PeerFault = Literal["killed", "reconnected", "frozen", "gave back", "hung", "far", "damaged", "differs", "slow", "full"]
# Faults of the site
SiteFault = Literal["site killed", "host replaced", "host frozen", "host overtaken", "layer away", "database away"]
Kind = LetterFault | PeerFault | SiteFault | Literal["failed", "answer lost", "unknown and not written", "night"]

NOBODY = PeerId("")  # stands for the site in a fault that affects no peer


class Ordered(Struct, frozen=True):
    """A fault ordered for a peer and a round. `of`: the only type of message affected, or "" for all types."""

    kind: Kind
    peer: PeerId
    round: int
    of: str = ""
    lasts_s: float = 10.0


class Faults:
    """All of a simulation's faults: the ordered ones, the odds of random ones, and counts by kind."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"faults {seed}")
        self.odds: Mapping[Kind, float] = {}
        self.fired: Counter[Kind] = Counter()
        self.waiting: dict[int, list[Ordered]] = {}  # ordered faults by round

    def order(self, fault: Ordered) -> None:
        self.waiting.setdefault(fault.round, []).append(fault)

    def strikes(self, kind: Kind, peer: PeerId, round_: int, of: str = "") -> bool:
        """Return True if a fault happens now, either as ordered or by chance. An ordered fault happens once."""
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
        """Remove and return the faults of these kinds ordered for this round. The caller injects and counts them."""
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

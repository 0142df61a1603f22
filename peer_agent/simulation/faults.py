"""What goes wrong: each fault has a kind, is taken once, and is counted.

A fault is ordered for a peer and a round, or left to chance (`odds`). A test orders one and asserts that it was taken;
torchft's `EventInjector` is the idea. Nothing here knows what a fault does: whoever does it asks.
"""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from peer_agent.protocol.identifiers import PeerId

# What befalls a letter between a peer and the host. "notice": the site's word that a socket has closed; "unheard": a
# socket misses the announcement of a new host.
LetterFault = Literal[
    "lost up", "lost down", "twice up", "twice down", "late up", "late down", "lost notice", "unheard"
]
# What befalls a peer. "far": it cannot dial one of the relays.
PeerFault = Literal["killed", "reconnected", "frozen", "gave back", "hung", "far", "damaged", "differs", "slow", "full"]
# What befalls the site.
SiteFault = Literal["site killed", "host replaced", "host frozen", "host overtaken", "layer away", "database away"]
Kind = LetterFault | PeerFault | SiteFault | Literal["failed", "answer lost", "unknown and not written", "night"]

NOBODY = PeerId("")  # the peer of a fault that befalls the site


class Ordered(Struct, frozen=True):
    """A fault that was asked for. `of`: only of this kind of message. `lasts_s`: for how long, where it lasts."""

    kind: Kind
    peer: PeerId
    round: int
    of: str = ""
    lasts_s: float = 10.0


class Faults:
    """All faults of a world: those that are ordered, the odds of the others, and how many of each kind there were."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(f"faults {seed}")
        self.odds: Mapping[Kind, float] = {}
        self.fired: Counter[Kind] = Counter()
        self.waiting: dict[int, list[Ordered]] = {}  # by round

    def order(self, fault: Ordered) -> None:
        """This will befall that peer in that round, once."""
        self.waiting.setdefault(fault.round, []).append(fault)

    def strikes(self, kind: Kind, peer: PeerId, round_: int, of: str = "") -> bool:
        """Whether this befalls now. An ordered fault is taken by it; of those left to chance each is another."""
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
        """Take what of these kinds was ordered for this round; whoever asks does it, and counts what was done."""
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
        """What was ordered and has not happened."""
        return [fault for _, faults in sorted(self.waiting.items()) for fault in faults]

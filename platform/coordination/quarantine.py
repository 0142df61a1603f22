"""Machines whose message broke a host: how long they are not heard. Kept by each process; nobody else is concerned."""

from collections import OrderedDict

from msgspec import Struct

from peer_agent.protocol.identifiers import PeerId

REST_S = (60.0, 240.0, 960.0)  # the first time, the second, and from then on
FORGET_S = 4 * 3600.0  # after so long without another, it is as if it had not been
MOST = 10_000  # machines that are remembered; the oldest are forgotten


class Sentence(Struct):
    """How often, and until when by the process's clock."""

    times: int
    until: float


class Quarantine:
    """Which machines are not heard now. `now` is in monotonic seconds."""

    def __init__(self) -> None:
        self._known: OrderedDict[PeerId, Sentence] = OrderedDict()

    def add(self, peer: PeerId, now: float) -> float:
        """A message of this machine broke a host; for how many seconds it is not heard."""
        before = self._known.pop(peer, None)
        times = before.times if before is not None and now - before.until < FORGET_S else 0
        rest_s = REST_S[min(times, len(REST_S) - 1)]
        self._known[peer] = Sentence(times + 1, now + rest_s)
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return rest_s

    def left_s(self, peer: PeerId, now: float) -> float:
        """Seconds until it is heard again; 0 where it is heard."""
        known = self._known.get(peer)
        return max(0.0, known.until - now) if known is not None else 0.0

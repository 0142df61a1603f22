"""Machines whose message broke a host: how long they are not heard.

Each process keeps them, and leaves them in the cache for the others: a run whose host broke may be claimed by any.
"""

import logging
import time
from collections import OrderedDict

from django.core.cache import cache
from msgspec import Struct
from redis.exceptions import RedisError

from peer_agent.protocol.identifiers import PeerId

REST_S = (60.0, 240.0, 960.0)  # the first time, the second, and from then on
FORGET_S = 4 * 3600.0  # after so long without another, it is as if it had not been
MOST = 10_000  # machines that are remembered; the oldest are forgotten
SHARED = 200  # of them that other processes learn of
KEY = "quarantine"

log = logging.getLogger(__name__)

Shared = dict[PeerId, tuple[int, float]]  # how often, and until when in seconds of UTC


class Sentence(Struct):
    """How often, and until when by the process's clock."""

    times: int
    until: float


class Quarantine:
    """Which machines are not heard now. `now` is in monotonic seconds."""

    def __init__(self) -> None:
        # `learn` and `share` run in threads, for which cachetools is not made.
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

    def learn(self, now: float) -> None:
        later = now - time.time()
        for peer, (times, until) in _read().items():
            before = self._known.get(peer)
            if before is None or before.until < until + later:
                self._known[peer] = Sentence(times, until + later)

    def share(self, peer: PeerId, now: float) -> None:
        """Leave for all what is known of this machine; where two processes do it at once, one of them is lost."""
        known = self._known[peer]
        others = {other: found for other, found in _read().items() if other != peer}
        while len(others) >= SHARED:
            del others[next(iter(others))]
        try:
            cache.set(KEY, {**others, peer: (known.times, known.until - now + time.time())}, FORGET_S)
        except RedisError as error:
            log.warning("other processes do not learn of %s: %s", peer, error)

    def left_s(self, peer: PeerId, now: float) -> float:
        """Seconds until it is heard again; 0 where it is heard."""
        known = self._known.get(peer)
        return max(0.0, known.until - now) if known is not None else 0.0


def _read() -> Shared:
    """Nothing where Redis is away."""
    try:
        found: Shared = cache.get(KEY, {})
    except RedisError as error:
        log.warning("what other processes know is not read: %s", error)
        return {}
    return found

"""Quarantine of machines whose messages broke a host.

It is shared between processes, because any process may provide the run's next host.
"""

import logging
import time
from collections import OrderedDict

from django.core.cache import cache
from msgspec import Struct
from redis.exceptions import RedisError

from peer_agent.protocol.identifiers import PeerId

REST_S = (60.0, 240.0, 960.0)  # length of the first quarantine, of the second, and of all later ones
FORGET_S = 4 * 3600.0  # counting starts over if a machine's last quarantine ended longer ago than this
MOST = 10_000  # most machines remembered; the oldest are dropped
SHARED = 200  # most machines shared with other processes
KEY = "quarantine"

log = logging.getLogger(__name__)

Shared = dict[PeerId, list[float]]  # count of quarantines, UTC end in seconds; a list, because the cache stores JSON


class Sentence(Struct):
    times: int
    until: float


class Quarantine:
    """The machines in quarantine. In all methods, `now` is a monotonic time in seconds."""

    def __init__(self) -> None:
        # An OrderedDict, because `learn` and `share` run in threads and cachetools is not thread-safe.
        self._known: OrderedDict[PeerId, Sentence] = OrderedDict()

    def add(self, peer: PeerId, now: float) -> float:
        """Quarantine a machine whose message broke a host. Return the length of the quarantine in seconds."""
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
                self._known[peer] = Sentence(int(times), until + later)

    def share(self, peer: PeerId, now: float) -> None:
        """Share a machine's quarantine with other processes. If calls run at the same time, an entry may be lost."""
        known = self._known[peer]
        others = {other: found for other, found in _read().items() if other != peer}
        while len(others) >= SHARED:
            del others[next(iter(others))]
        try:
            cache.set(KEY, {**others, peer: [known.times, known.until - now + time.time()]}, FORGET_S)
        except RedisError as error:
            log.warning("other processes do not learn of %s: %s", peer, error)

    def left_s(self, peer: PeerId, now: float) -> float:
        known = self._known.get(peer)
        return max(0.0, known.until - now) if known is not None else 0.0


def _read() -> Shared:
    try:
        found: Shared = cache.get(KEY, {})
    except (RedisError, ValueError) as error:
        log.warning("what other processes know is not read: %s", error)
        return {}
    return found

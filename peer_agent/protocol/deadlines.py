"""Deadlines of chunks (rule 8), relative to the plan and to the other slots, never to a fixed time.

All streams last about as long as the plan. So the k-th of a reducer's n chunks is planned after k/n of its time. The
chunks of a batch are planned with the last of them. A chunk closes a part of the plan's time, sigma, after that moment,
or after enough of the others have sent it, whichever is later. Sigma follows from the lateness of chunks in earlier
rounds. If all slots are late, because of a slow reducer or a wrong plan, none counts as late. Seconds count from when
the plan came.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import PlanHead
from peer_agent.protocol.plan import QUORUM_PERCENT
from peer_agent.protocol.recipe import Codec

AHEAD_OF_PLAN = 1.25  # times the plan's pace, at which gradients go: so links show whether they carry more
FAR_AHEAD = 4.0  # the same where the plan rests on links of which only a lower bound is known
LEAST_SIGMA = 0.15  # a flow between equal machines may pause this long by itself (decision 21)
MOST_SIGMA = 0.5  # also of the first round
DEVIATIONS = 4.0  # median absolute deviations above the median
SET_ASIDE = 10  # one machine in so many is left out of the statistics
GROWS, MOST_GROWN = 1.25, 0.25  # factor on sigma, and a part of the plan's time, where a slot was too late
SHORTEST_S = 2.0  # a shorter plan is over before a slot can be late
BATCH_BYTES = 128 * 1024  # of chunks that go to one reducer at once: two of the smallest in float32
LEAST_S = 0.75  # of waiting, at least: machines and home networks may pause this long

Seconds = NDArray[np.float64]


def round_latenesses(rounds: Sequence[Mapping[PeerId, float]]) -> list[float]:
    """Return each round's greatest lateness, without the tenth of machines (at least one) that are latest overall.

    A machine that is always late must not lengthen the waits. If each round's last machine were left out instead, one
    of several equal machines would be dropped every time.
    """
    of_each: dict[PeerId, list[float]] = defaultdict(list)
    for by in rounds:
        for peer, late in by.items():
            of_each[peer].append(late)
    by_lateness = sorted(of_each, key=lambda peer: (float(np.median(of_each[peer])), peer))
    aside = set(by_lateness[len(by_lateness) - max(1, len(by_lateness) // SET_ASIDE) :] if len(of_each) > 1 else ())
    return [max((late for peer, late in by.items() if peer not in aside), default=0.0) for by in rounds]


def unknown_lateness(sigma: float) -> float:
    """Return the lateness to record for a machine that missed its deadline: above sigma, so that waits can grow."""
    return max(sigma, min(GROWS * sigma, MOST_GROWN))


def sigma_of(latenesses: Collection[float], duration_s: float) -> float:
    """Return the part of the plan's time for which a chunk is waited for, from each round's lateness; 0: for ever."""
    if duration_s < SHORTEST_S:
        return 0.0
    if not latenesses:
        return MOST_SIGMA
    late = np.array(sorted(latenesses))
    usual = np.median(late)
    spread = np.median(np.abs(late - usual))
    return float(min(max(usual + DEVIATIONS * spread, LEAST_SIGMA), MOST_SIGMA))


def coming_s(plan: PlanHead) -> float:
    """Return the seconds in which this attempt's chunks are planned to come. Spans already held do not come again."""
    lengths = [(span.stop - span.first, bool(span.root)) for span in plan.spans]
    missing = sum(length for length, is_held in lengths if not is_held)
    return plan.duration_s * missing / max(sum(length for length, _ in lengths), 1)


def waiting_s(plan: PlanHead) -> float:
    """Return how long a plan with deadlines waits for a chunk, at least."""
    return max(LEAST_S, plan.sigma * plan.duration_s)


def batch_chunks(codecs: Iterable[Codec], chunk_elements: int) -> int:
    """Return how many chunks may go out at once, at most: the first of them arrives with the last."""
    return max((BATCH_BYTES // encoded_size(codec, chunk_elements) for codec in codecs), default=1) or 1


def planned_s(plan: PlanHead, places: NDArray[np.int64], count: int, batch: int = 1) -> Seconds:
    """Return when the chunks at `places`, of the `count` of a reducer, are planned to come."""
    planned: Seconds = coming_s(plan) * np.minimum((places // batch + 1) * batch, count) / count
    return planned


def due_s(plan: PlanHead, places: NDArray[np.int64], count: int, enough_s: Seconds, batch: int = 1) -> Seconds:
    """Return when the chunks at `places`, of the `count` of a reducer, close without the missing slots.

    `enough_s`: when enough slots had sent each chunk. Where that took longer than the plan, sigma is a part of that
    time.
    """
    waiting_s = np.maximum(LEAST_S, plan.sigma * np.maximum(plan.duration_s, enough_s))
    due: Seconds = np.maximum(planned_s(plan, places, count, batch), enough_s) + waiting_s
    return due


def lateness(plan: PlanHead, planned_s: float, came_s: Sequence[float], tokens: Sequence[int]) -> tuple[float, ...]:
    """Return each slot's lateness in parts of the plan's time: 0 on time, infinity if its chunk never came."""
    enough_s = _enough_s(came_s, tokens)
    since, scale = max(planned_s, enough_s), max(plan.duration_s, enough_s)
    if not np.isfinite(scale):
        return (0.0,) * len(came_s)
    return tuple(max(0.0, (at - since) / scale) for at in came_s)


def _enough_s(came_s: Sequence[float], tokens: Sequence[int]) -> float:
    """Return when enough tokens had come for the chunk to close; infinity if they never did."""
    so_far, whole = 0, sum(tokens)
    for at, weight in sorted(zip(came_s, tokens, strict=True)):
        so_far += weight
        if 100 * so_far >= QUORUM_PERCENT * whole:
            return at
    return float("inf")

"""Deadlines for chunks (rule 8), relative to the plan and the other slots. Times are seconds since the plan arrived.

Contributors send throughout the plan's duration T. The plan expects the k-th of a reducer's n chunks at time T * k/n,
and every chunk of a batch at the time of the batch's last chunk. A reducer waits until the expected time, or until
enough slots have sent the chunk, whichever is later. It waits for another sigma * T, then averages the slots that have
arrived. Sigma is computed from the lateness in earlier rounds. If all slots are late because a reducer is slow or the
plan is wrong, no slot counts as late.
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

AHEAD_OF_PLAN = 1.25  # gradients are sent at this multiple of the plan's pace, to find out whether links carry more
FAR_AHEAD = 4.0  # the same if only lower bounds on the links' speeds are known
LEAST_SIGMA = 0.15  # even a flow between equal machines may pause this long (decision 21)
MOST_SIGMA = 0.5  # also used for the first round
DEVIATIONS = 4.0  # sigma is this many median absolute deviations above the median
SET_ASIDE = 10  # one machine in ten is left out of the statistics
GROWS, MOST_GROWN = 1.25, 0.25  # used in `unknown_lateness`: a factor on sigma, and a fraction of the plan's duration
SHORTEST_S = 2.0  # seconds; shorter plans end before a slot can be late
BATCH_BYTES = 128 * 1024  # bytes sent to a reducer at once: two of the smallest chunks in float32
LEAST_S = 0.75  # shortest wait in seconds; machines and home networks may pause this long

Seconds = NDArray[np.float64]


def round_latenesses(rounds: Sequence[Mapping[PeerId, float]]) -> list[float]:
    """Return each round's greatest lateness, ignoring the tenth of the machines (at least one) that are latest overall.

    A machine that is always late must not lengthen the waits. Ignoring each round's latest machine instead would mean
    that one of several equal machines is dropped each time.
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
    """Return sigma: how long reducers wait for a late chunk, as a fraction of the planned time. 0 means forever."""
    if duration_s < SHORTEST_S:
        return 0.0
    if not latenesses:
        return MOST_SIGMA
    late = np.array(sorted(latenesses))
    usual = np.median(late)
    spread = np.median(np.abs(late - usual))
    return float(min(max(usual + DEVIATIONS * spread, LEAST_SIGMA), MOST_SIGMA))


def coming_s(plan: PlanHead) -> float:
    """Return how many seconds this attempt's chunks are planned to take to arrive. Kept spans take no time."""
    lengths = [(span.stop - span.first, bool(span.root)) for span in plan.spans]
    missing = sum(length for length, is_held in lengths if not is_held)
    return plan.duration_s * missing / max(sum(length for length, _ in lengths), 1)


def waiting_s(plan: PlanHead) -> float:
    """Return the minimum seconds that a reducer waits for a chunk under a plan with deadlines."""
    return max(LEAST_S, plan.sigma * plan.duration_s)


def batch_chunks(codecs: Iterable[Codec], chunk_elements: int) -> int:
    """Return how many chunks a contributor may send in one batch. A batch's chunks arrive almost together."""
    return max((BATCH_BYTES // encoded_size(codec, chunk_elements) for codec in codecs), default=1) or 1


def planned_s(plan: PlanHead, places: NDArray[np.int64], count: int, batch: int = 1) -> Seconds:
    """Return the planned arrival times of the chunks at `places` among one reducer's `count` chunks."""
    planned: Seconds = coming_s(plan) * np.minimum((places // batch + 1) * batch, count) / count
    return planned


def due_s(plan: PlanHead, places: NDArray[np.int64], count: int, enough_s: Seconds, batch: int = 1) -> Seconds:
    """Return when a reducer closes these chunks despite missing slots. `enough_s`: when enough slots had sent them."""
    waiting_s = np.maximum(LEAST_S, plan.sigma * np.maximum(plan.duration_s, enough_s))
    due: Seconds = np.maximum(planned_s(plan, places, count, batch), enough_s) + waiting_s
    return due


def lateness(plan: PlanHead, planned_s: float, came_s: Sequence[float], tokens: Sequence[int]) -> tuple[float, ...]:
    """Return each slot's lateness with a chunk as a fraction of the plan's time. `came_s`: when each slot's chunk came.

    The lateness is infinity if a slot's chunk never arrived. If too few chunks arrived for a quorum, no slot is late.
    """
    enough_s = _enough_s(came_s, tokens)
    since, scale = max(planned_s, enough_s), max(plan.duration_s, enough_s)
    if not np.isfinite(scale):
        return (0.0,) * len(came_s)
    return tuple(max(0.0, (at - since) / scale) for at in came_s)


def _enough_s(came_s: Sequence[float], tokens: Sequence[int]) -> float:
    """Return when enough tokens had arrived to close the chunk, or infinity if too few arrived."""
    so_far, whole = 0, sum(tokens)
    for at, weight in sorted(zip(came_s, tokens, strict=True)):
        so_far += weight
        if 100 * so_far >= QUORUM_PERCENT * whole:
            return at
    return float("inf")

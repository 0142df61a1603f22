"""Until when a chunk is waited for (rule 8): relative to the plan and to the other slots, never to a fixed time.

Everybody's streams last about as long as the plan does, so the k-th of a reducer's n chunks is planned to come after
k/n of its time, and the chunks of a batch with the last of them. From then on, or from when enough of the others have
sent that chunk, whichever is later, it is waited for during a part of the plan's time: sigma, which follows from how
late chunks came in the rounds before. Where all are late, by a slow reducer or a wrong plan, nobody is. Seconds are
counted from when the plan came.
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

AHEAD_OF_PLAN = 1.25  # times its pace, at which gradients go: so links show where they carry more than is known
FAR_AHEAD = 4.0  # the same where it rests on links of which only the least is known
LEAST_SIGMA = 0.15  # a flow between equal machines may pause for as long by itself (decision 21)
MOST_SIGMA = 0.5  # also of the first round, of which nothing is known yet
DEVIATIONS = 4.0  # medians of what differs from the median
SET_ASIDE = 10  # one of so many is not asked how late it was
GROWS, MOST_GROWN = 1.25, 0.25  # times sigma, and a part of the plan's time, where it was too short for somebody
SHORTEST_S = 2.0  # a plan of less is over before anybody could be called late
BATCH_BYTES = 128 * 1024  # of chunks that go to one reducer at once: two of the smallest in float32
LEAST_S = 0.75  # in which machines and home networks may pause

Seconds = NDArray[np.float64]


def round_latenesses(rounds: Sequence[Mapping[PeerId, float]]) -> list[float]:
    """The greatest lateness of each round, without the tenth of machines that are latest on the whole, one at least.

    Who is always late lets nobody wait. Somebody is the last in every round: were that one set aside, whoever it is,
    equal machines would lose one of them each time.
    """
    of_each: dict[PeerId, list[float]] = defaultdict(list)
    for by in rounds:
        for peer, late in by.items():
            of_each[peer].append(late)
    by_lateness = sorted(of_each, key=lambda peer: (float(np.median(of_each[peer])), peer))
    aside = set(by_lateness[len(by_lateness) - max(1, len(by_lateness) // SET_ASIDE) :] if len(of_each) > 1 else ())
    return [max((late for peer, late in by.items() if peer not in aside), default=0.0) for by in rounds]


def unknown_lateness(sigma: float) -> float:
    """What counts for a machine whose chunks were waited for in vain: more than that, or nobody would wait longer."""
    return max(sigma, min(GROWS * sigma, MOST_GROWN))


def sigma_of(latenesses: Collection[float], duration_s: float) -> float:
    """The part of the plan's time for which a chunk is waited for; 0 where the plan gives no deadlines.

    `latenesses`: one number for each round.
    """
    if duration_s < SHORTEST_S:
        return 0.0
    if not latenesses:
        return MOST_SIGMA
    late = np.array(sorted(latenesses))
    usual = np.median(late)
    spread = np.median(np.abs(late - usual))
    return float(min(max(usual + DEVIATIONS * spread, LEAST_SIGMA), MOST_SIGMA))


def coming_s(plan: PlanHead) -> float:
    """In how many seconds the chunks of this attempt are planned to come: what is held does not come again."""
    lengths = [(span.stop - span.first, bool(span.root)) for span in plan.spans]
    missing = sum(length for length, is_held in lengths if not is_held)
    return plan.duration_s * missing / max(sum(length for length, _ in lengths), 1)


def waiting_s(plan: PlanHead) -> float:
    """How long something of a plan in time is waited for, at least."""
    return max(LEAST_S, plan.sigma * plan.duration_s)


def batch_chunks(codecs: Iterable[Codec], chunk_elements: int) -> int:
    """How many chunks may go out at once, at most: the first of them comes when the last does."""
    return max((BATCH_BYTES // encoded_size(codec, chunk_elements) for codec in codecs), default=1) or 1


def planned_s(plan: PlanHead, places: NDArray[np.int64], count: int, batch: int = 1) -> Seconds:
    """When the chunks at these places, of the `count` of a reducer, are planned to come."""
    planned: Seconds = coming_s(plan) * np.minimum((places // batch + 1) * batch, count) / count
    return planned


def due_s(plan: PlanHead, places: NDArray[np.int64], count: int, enough_s: Seconds, batch: int = 1) -> Seconds:
    """When chunks close without whoever has not sent them: of the `count` of a reducer those at these places.

    `enough_s`: when enough of the others had sent each. Where that took longer than the plan, sigma is a part of that.
    """
    waiting_s = np.maximum(LEAST_S, plan.sigma * np.maximum(plan.duration_s, enough_s))
    due: Seconds = np.maximum(planned_s(plan, places, count, batch), enough_s) + waiting_s
    return due


def lateness(plan: PlanHead, planned_s: float, came_s: Sequence[float], tokens: Sequence[int]) -> tuple[float, ...]:
    """How late each slot's chunk came, in parts of the plan's time; 0 in time, infinity where it never came."""
    enough_s = _enough_s(came_s, tokens)
    since, scale = max(planned_s, enough_s), max(plan.duration_s, enough_s)
    if not np.isfinite(scale):
        return (0.0,) * len(came_s)
    return tuple(max(0.0, (at - since) / scale) for at in came_s)


def _enough_s(came_s: Sequence[float], tokens: Sequence[int]) -> float:
    """When so many tokens had come that a chunk may close."""
    so_far, whole = 0, sum(tokens)
    for at, weight in sorted(zip(came_s, tokens, strict=True)):
        so_far += weight
        if 100 * so_far >= QUORUM_PERCENT * whole:
            return at
    return float("inf")

"""How long to wait: every time limit of the coordinator, and the constants behind it. Times are in seconds.

Links and reducers have limits of their own, in `network.link` and `relay.reducing`.

Contributors send throughout the plan's duration T. The plan expects the k-th of a reducer's n chunks at time T * k/n,
and every chunk of a batch at the time of the batch's last chunk. A reducer waits until the expected time, or until
enough slots have sent the chunk, whichever is later. It waits for another sigma * T, then averages the slots that have
arrived (rule 8). Sigma is computed from the lateness in earlier rounds. If all slots are late because a reducer is slow
or the plan is wrong, no slot counts as late.

Shorter plans have no deadlines for chunks: a slot or a reducer in them is compared with the others.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import PlanHead
from peer_agent.protocol.recipe import Codec

# Messages
REPORT_S = 1.0  # seconds between two reports of a reducer; also the shortest time limit for an answer
MISSED_REPORTS = 3  # reports that a reducer may miss before it counts as silent
ROUND_TRIP_S = 5.0  # seconds for a message each way and a disk in between, if nothing has been measured
USUAL_S = 10.0  # longest usual time between two signs of life; the run says why it waits after this time
LONGEST_S = 60.0  # longest time limit for an answer
DOUBLINGS = 5  # a time limit doubles at most this many times while it keeps being exceeded

# Deadlines of chunks, relative to the plan
LEAST_SIGMA = 0.15  # of T: even a flow between equal machines may pause this long (decision 21)
MOST_SIGMA = 0.5  # of T: also used for the first round
DEVIATIONS = 4.0  # sigma is this many median absolute deviations above the median, as RFC 6298 has it for timeouts
SPREAD = 6.0  # the same for answers, which depend on more than one link
SET_ASIDE = 10  # one machine in ten is left out of the statistics, so that it cannot lengthen everyone's wait
GROWS, MOST_GROWN = 1.25, 0.25  # unknown lateness: a factor on sigma, and a fraction of T; so that sigma can grow
PACED_S = 2.0  # shorter plans have neither deadlines nor a pace: they end before a slot can be late
LEAST_S = 0.75  # shortest wait for a chunk: machines and home networks may pause this long
ROUNDS_KEPT = 20  # rounds whose times are remembered

# Slots and reducers that stop
PAUSE_S = 4.0  # without a new chunk before a slot is dropped or a reducer replaced, if nothing else is known
OTHERS = 4.0  # a slot or reducer may take this many times as long as the others
UNHEARD_S = 2.5  # a machine that sends no message for so long has stopped; it sends one every two seconds at least
STOPPED_S = 1.25  # a gradient has stopped if no reducer receives a chunk for so long; each reports every second
STILL_BATCHES = 2.0  # batches that a reducer may lack, by the plan, before it stands still
EXPIRY_S = 20.0  # without any progress before a round is void

# Machines that compute
FIRST_UNIT_S = 200.0  # usual time for a machine's first unit, because it may be compiling
SUSPECTED = 2.0  # usual times without a delivery before a machine's share shrinks, and it is asked for a hello
UNAVAILABLE = 3.0  # usual times without a delivery or a batch before others take over
SILENT_S = UNAVAILABLE * USUAL_S  # the same for a session, a first batch, or a vote without a majority
NEWCOMER_S = UNAVAILABLE * FIRST_UNIT_S  # the same for a machine's first unit
DELIVERIES = 9  # the rate is the median of this many recent deliveries
FASTEST_S = 1e-3  # shortest time counted for a delivery
QUARANTINES = ((1, 0.0), (4, 16.0), (16, 64.0))  # rounds and least seconds after the first, second and third failure
LONGEST_QUARANTINE_S = 3600.0  # counted from a machine's last failure
OVERRIDE_S = 2.0  # after a void round before quarantines may be overridden again

# The flow of bytes. These decide no time limit.
AHEAD_OF_PLAN = 1.25  # gradients are sent at this multiple of the plan's pace, to find out whether links carry more
FAR_AHEAD = 4.0  # the same if only lower bounds on the links' speeds are known
BATCH_BYTES = 128 * 1024  # bytes sent to a reducer at once: two of the smallest chunks in float32

Seconds = NDArray[np.float64]


def usual_wait_s(delays: Collection[float], least_s: float, *, failures: int = 0) -> float:
    """Return the time after which a peer that has not answered is unlikely to do so. It doubles with each failure."""
    return backoff_s(min(max(_above(delays), least_s), LONGEST_S) if delays else ROUND_TRIP_S, failures)


def _above(delays: Collection[float]) -> float:
    usual = median(delays)
    return usual + SPREAD * median(abs(delay - usual) for delay in delays) + REPORT_S / 2


def backoff_s(base_s: float, failures: int) -> float:
    """Return a time limit that was exceeded this many times in a row: twice as long each time, up to 32 times."""
    return base_s * 2.0 ** min(failures, DOUBLINGS)


# --- chunks


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
    if duration_s < PACED_S:
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

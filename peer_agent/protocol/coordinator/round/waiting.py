"""How long to wait for offers after a cut and for replicas after a commit, from earlier delays.

With staleness 1 a batch may be full before replicas have the update. The next round waits for the members of the last
one, but not for ever: work from before an update that they apply late would be too old.
"""

from collections.abc import Collection
from statistics import median

from peer_agent.protocol.coordinator.state import Member, Round, RunState

FIRST_S = 5.0  # without earlier delays
LONGEST_S = 60.0
LEAST_S = 1.0
SPREAD = 6  # median absolute deviations above the median
PLANNED = 1.5  # times the plan's time, until averages have reached every peer


def usual_wait_s(delays: Collection[float], least_s: float) -> float:
    """Return the delay beyond which a peer is usually not heard from any more."""
    if not delays:
        return FIRST_S
    usual = median(delays)
    spread = median(abs(delay - usual) for delay in delays)
    return min(max(usual + SPREAD * spread + 0.5, least_s), LONGEST_S)


def await_replicas(state: RunState, round_: Round) -> None:
    """Expect working trainers in the round after a commit, except those that the last round left out."""
    if not state.recipe.staleness:
        return
    kept = {slot.peer for number, slot in enumerate(round_.slots) if number not in round_.dropped}
    left_out = {peer for peer, offer in round_.offers.items() if offer.loss_tokens} - kept
    state.applying = {member.peer for member in state.awake() if member.done or member.conduct.pace} - left_out
    planned_s = PLANNED * round_.plan.duration_s if round_.plan is not None else 0.0
    wait_s = usual_wait_s(state.applied, LEAST_S)
    state.applying_since, state.applying_until = state.now, max(state.now + wait_s, round_.planned_at + planned_s)


def await_return(state: RunState) -> None:
    """Wait for the last update's members: they may hold two batches, so that some could begin without the others."""
    state.applying_until = state.now + FIRST_S if state.applying else 0.0


def take_replica(state: RunState, member: Member) -> None:
    """Record that an expected replica is at the head."""
    if member.step == state.step and member.peer in state.applying:
        state.applying.discard(member.peer)
        if state.applying_since:
            state.applied.append(state.now - state.applying_since)


def leave_behind(state: RunState) -> None:
    """Stop waiting when a round begins. A missing replica counts as having taken the whole wait."""
    if state.applying_since:
        state.applied.extend([state.now - state.applying_since] * len(state.applying))
    state.applying = set()


def awaits_replicas(state: RunState) -> bool:
    """Return True if a round that began now would leave out a replica that is about to arrive."""
    return bool(state.applying) and state.now < state.applying_until

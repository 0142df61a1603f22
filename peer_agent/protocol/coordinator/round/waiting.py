"""How long others are waited for, by how long they took: offers after a cut, replicas after a commit.

With staleness 1 a batch may be full before the update is in the replicas. The next round then waits for those who were
in the last one, but not for ever: what was computed before an update that they are late with would be too old after it.
"""

from collections.abc import Collection
from statistics import median

from peer_agent.protocol.coordinator.state import Member, Round, RunState

FIRST_S = 5.0  # before anything was seen
LONGEST_S = 60.0
LEAST_S = 1.0
SPREAD = 6  # median absolute deviations above the median
PLANNED = 1.5  # times the plan's time, until the averages have come to everybody


def usual_wait_s(delays: Collection[float], least_s: float) -> float:
    """Beyond which somebody is not usually heard of any more."""
    if not delays:
        return FIRST_S
    usual = median(delays)
    spread = median(abs(delay - usual) for delay in delays)
    return min(max(usual + SPREAD * spread + 0.5, least_s), LONGEST_S)


def await_replicas(state: RunState, round_: Round) -> None:
    """At the commit: who works is to be in the next round, but for those that this one was made without."""
    if not state.recipe.staleness:
        return
    kept = {slot.peer for number, slot in enumerate(round_.slots) if number not in round_.dropped}
    left_out = {peer for peer, offer in round_.offers.items() if offer.loss_tokens} - kept
    state.applying = {member.peer for member in state.awake() if member.done or member.conduct.pace} - left_out
    planned_s = PLANNED * round_.plan.duration_s if round_.plan is not None else 0.0
    wait_s = usual_wait_s(state.applied, LEAST_S)
    state.applying_since, state.applying_until = state.now, max(state.now + wait_s, round_.planned_at + planned_s)


def await_return(state: RunState) -> None:
    """A new host: those of the last update may hold two batches, so that some could begin without the others."""
    state.applying_until = state.now + FIRST_S if state.applying else 0.0


def take_replica(state: RunState, member: Member) -> None:
    """One of them says that it is at the head."""
    if member.step == state.step and member.peer in state.applying:
        state.applying.discard(member.peer)
        if state.applying_since:
            state.applied.append(state.now - state.applying_since)


def leave_behind(state: RunState) -> None:
    """A round begins; whoever has not come counts as having taken as long as was waited."""
    if state.applying_since:
        state.applied.extend([state.now - state.applying_since] * len(state.applying))
    state.applying = set()


def awaits_replicas(state: RunState) -> bool:
    """Whether a round that began now would leave out somebody who is about to be there."""
    return bool(state.applying) and state.now < state.applying_until

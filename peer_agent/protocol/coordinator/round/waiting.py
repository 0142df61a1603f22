"""Work out, from earlier delays, how long to wait for offers after a cut and for replicas after a commit.

With staleness 1, a batch may be full before all replicas have applied the update. The next round waits for slow
replicas, because their earlier work would otherwise become too old. It does not wait forever.
"""

from collections.abc import Collection
from statistics import median

from peer_agent.protocol.coordinator.state import Member, Round, RunState

FIRST_S = 5.0  # seconds to wait if no earlier delay is known
LONGEST_S = 60.0
LEAST_S = 1.0
SPREAD = 6  # the wait is this many median absolute deviations above the median
PLANNED = 1.5  # averages have reached every peer after this many times the plan's duration


def usual_wait_s(delays: Collection[float], least_s: float) -> float:
    """Return the time, in seconds, after which a peer that has not answered is unlikely to do so."""
    if not delays:
        return FIRST_S
    usual = median(delays)
    spread = median(abs(delay - usual) for delay in delays)
    return min(max(usual + SPREAD * spread + 0.5, least_s), LONGEST_S)


def await_replicas(state: RunState, round_: Round) -> None:
    """After a commit, make the next cut wait until the working trainers have applied the update.

    It does not wait for trainers whose offer the update left out. With staleness 0, it waits for none.
    """
    if not state.recipe.staleness:
        return
    kept = {slot.peer for number, slot in enumerate(round_.slots) if number not in round_.dropped}
    left_out = {peer for peer, offer in round_.offers.items() if offer.loss_tokens} - kept
    state.applying = {member.peer for member in state.awake() if member.done or member.reliability.rate} - left_out
    planned_s = PLANNED * round_.plan.duration_s if round_.plan is not None else 0.0
    wait_s = usual_wait_s(state.applied, LEAST_S)
    state.applying_since, state.applying_until = state.now, max(state.now + wait_s, round_.planned_at + planned_s)


def await_return(state: RunState) -> None:
    """Wait for the last update's trainers after the host restarts, so that no round begins with only some of them."""
    state.applying_until = state.now + FIRST_S if state.applying else 0.0


def take_replica(state: RunState, member: Member) -> None:
    if member.step == state.step and member.peer in state.applying:
        state.applying.discard(member.peer)
        if state.applying_since:
            state.applied.append(state.now - state.applying_since)


def leave_behind(state: RunState) -> None:
    """Stop waiting for replicas when a round begins. Record the whole wait as each missing replica's delay."""
    if state.applying_since:
        state.applied.extend([state.now - state.applying_since] * len(state.applying))
    state.applying = set()


def awaits_replicas(state: RunState) -> bool:
    """Return True if a round that began now would leave out a replica that is about to apply the update."""
    return bool(state.applying) and state.now < state.applying_until

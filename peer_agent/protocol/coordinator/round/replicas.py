"""The replicas that the next cut waits for, because they have not yet applied the last update.

With staleness 1, a batch may be full before all replicas have applied the update. The next round waits for slow
replicas, because their earlier work would otherwise become too old. It does not wait forever.
"""

from peer_agent.protocol.coordinator.state import Member, Round, RunState
from peer_agent.protocol.timing import MOST_SIGMA, REPORT_S, ROUND_TRIP_S, usual_wait_s


def await_replicas(state: RunState, round_: Round) -> None:
    """After a commit, make the next cut wait until the working trainers have applied the update.

    It does not wait for trainers whose offer the update left out. With staleness 0, it waits for none.
    """
    if not state.recipe.staleness:
        return
    kept = {slot.peer for number, slot in enumerate(round_.slots) if number not in round_.dropped}
    left_out = {peer for peer, offer in round_.offers.items() if offer.loss_tokens} - kept
    replicas, duration_s = state.replicas, round_.plan.duration_s if round_.plan is not None else 0.0
    replicas.peers = {member.peer for member in state.awake() if member.done or member.reliability.rate} - left_out
    usual_at = state.now + usual_wait_s(state.timings.replicas, REPORT_S)
    replicas.since, replicas.until = state.now, max(usual_at, round_.planned_at + (1 + MOST_SIGMA) * duration_s)


def await_return(state: RunState) -> None:
    """Wait for the last update's trainers after the host restarts, so that no round begins with only some of them."""
    state.replicas.until = state.now + ROUND_TRIP_S if state.replicas.peers else 0.0


def take_replica(state: RunState, member: Member) -> None:
    """Record that a trainer has applied the last update."""
    replicas = state.replicas
    if member.step == state.step and member.peer in replicas.peers:
        replicas.peers.discard(member.peer)
        if replicas.since:
            state.timings.replicas.append(state.now - replicas.since)


def leave_behind(state: RunState) -> None:
    """Stop waiting for replicas when a round begins. Record the whole wait as each missing replica's delay."""
    if state.replicas.since:
        state.timings.replicas.extend([state.now - state.replicas.since] * len(state.replicas.peers))
    state.replicas.peers = set()

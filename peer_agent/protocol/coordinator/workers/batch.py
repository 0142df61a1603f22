"""Judge whether the working machines will fill the batch in time, and what to do if they will not."""

import math
from collections.abc import Collection
from statistics import median

from peer_agent.protocol.coordinator.reliability import Reliability
from peer_agent.protocol.coordinator.state import Round, RunState
from peer_agent.protocol.coordinator.workers.counts import is_close, is_doubted
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import NEWCOMER_S, OVERRIDE_S, REPORT_S, SILENT_S, UNAVAILABLE


def usual_s(state: RunState) -> float:
    """Return how many seconds a batch usually takes, or 0 before the first one."""
    return median(state.timings.batches) if state.timings.batches else 0.0


def look_at_quarantines(state: RunState) -> None:
    """Override quarantines if the other machines cannot fill the batch within three times the usual time.

    After each void round with overridden quarantines, wait longer before the next time. A new machine reveals its rate
    only with its first unit, and a cut makes it lose that unit.
    """
    working = _working(state).values()
    doubted = [record.rate for record in working if is_doubted(state, record)]
    rates = [record.rate for record in working if not is_doubted(state, record)]
    others, fastest = sum(rates), max(rates, default=0.0)
    out = sum(min(rate, fastest) for rate in doubted)  # a rate may be only a claim
    is_too_soon = bool(rates) and state.now < state.override.not_before
    state.override.is_on = _takes_too_long(state, others, out + others) and not is_too_soon


def end_override(state: RunState) -> None:
    """End an override of quarantines that led to no update, and delay the next one."""
    override = state.override
    if override.is_on:
        override.failures += 1
        override.not_before = state.now + min(OVERRIDE_S * 2.0 ** min(override.failures, 10), NEWCOMER_S)
        override.is_on = False


def batch_limit_s(state: RunState) -> float:
    """Return how many seconds a batch may take before quotas are raised: three times as long as usual."""
    usual = usual_s(state)
    return max(UNAVAILABLE * usual, REPORT_S) if usual else SILENT_S


def remake_s(state: RunState, round_: Round, slots: Collection[int]) -> float:
    """Return how many seconds the other machines need to fill a batch without these slots' machines.

    Return infinity if that takes too long, so that the round has to wait for these slots.
    """
    slow = {round_.slots[slot].peer for slot in slots}
    rates = {peer: record.rate for peer, record in _working(state).items() if not is_doubted(state, record)}
    others = sum(rate for peer, rate in rates.items() if peer not in slow)
    if not others or _takes_too_long(state, others, sum(rates.values())):
        return math.inf
    held = sum(done.unit.samples for peer, offer in round_.offers.items() if peer not in slow for done in offer.units)
    return max(0.0, state.recipe.target_batch - held) / others


def _working(state: RunState) -> dict[PeerId, Reliability]:
    """Return the machines that deliver work and whose replicas are at most one step behind.

    Leave out a machine whose work has been proven false, as long as it is in quarantine.
    """
    near = (member for member in state.members.values() if member.trains and is_close(state, member))
    working = {member.peer: member.reliability for member in near if not member.reliability.is_silent}
    return {peer: r for peer, r in working.items() if not (r.is_proven_false and state.in_quarantine(r))}


def _takes_too_long(state: RunState, rate: float, whole: float) -> bool:
    """Return True if a batch at this rate takes over three times the usual time.

    Before the first batch, the usual time is the time at the rate `whole`.
    """
    batch = state.recipe.target_batch
    usual = usual_s(state) or (batch / whole if whole else 0.0)
    return batch > rate * UNAVAILABLE * usual

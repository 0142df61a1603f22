"""Machine reliability, judged by deliveries rather than claims: pace, silence, quarantine.

This module updates the totals in `RunState` one member at a time, so that no event has to visit every member.
"""

import math
from collections.abc import Collection
from statistics import median

from peer_agent.protocol.coordinator.events import Command, Note
from peer_agent.protocol.coordinator.state import Conduct, Member, Phase, Round, RunState
from peer_agent.protocol.identifiers import PeerId

SILENT_S = 30.0  # minimum seconds of work without a delivery before a machine is silent (or 3 usual unit times)
NEWCOMER_S = 600.0  # the same before a first delivery, because the machine may be compiling
AMNESTY_S = 2.0  # seconds after a void round before quarantines may be suspended again, doubling each time
PATIENCE = 3.0  # a unit or batch takes too long after this many times its usual time
FIRST_LIFT_S = 30.0  # seconds before quotas are suspended if no usual time is known
LATE_UNITS = 2.0  # usual unit times without a delivery before a machine's share shrinks
LATE_S = 1.0  # minimum seconds before a share shrinks, because a report may be on its way
DELIVERIES = 9  # the pace is the median of this many recent deliveries
FASTEST_S = 1e-3  # minimum seconds counted for a delivery
OUT = (1, 4, 16)  # rounds of quarantine after the first, second and any further refusal or failure
OUT_S = (0.0, 16.0, 64.0)  # minimum seconds of quarantine after the first, second and any further failure
CONDUCTS_KEPT = 10_000  # maximum number of machines remembered while they are away


def recount(state: RunState, member: Member) -> None:
    """Update the run's totals and the member's work clock after a change to the member."""
    ready = member.trains and member.reconciled and member.step == state.step
    awake = ready and is_counted(state, member.conduct)
    _put(state, member, (ready, awake, member.done_samples if awake else 0))
    _clock(state, member)


def discount(state: RunState, member: Member) -> None:
    """Subtract a departing member from the run's totals (ready machines, active machines, samples)."""
    _put(state, member, (False, False, 0))
    _pause(state, member.conduct)


def recount_all(state: RunState) -> None:
    """Recount all trainers after a round has started or ended, because this affects all of them."""
    for member in state.members.values():
        if member.trains:
            recount(state, member)


def _put(state: RunState, member: Member, counted: tuple[bool, bool, int]) -> None:
    before, member.counted = member.counted, counted
    if before != counted:
        state.ready_count += counted[0] - before[0]
        state.awake_count += counted[1] - before[1]
        state.awake_samples += counted[2] - before[2]


def is_counted(state: RunState, conduct: Conduct) -> bool:
    """Return True if the machine counts towards shares, majorities and rounds."""
    return not conduct.silent and (state.has_amnesty or not _is_out(state, conduct))


def is_asked(state: RunState, conduct: Conduct) -> bool:
    """Return True if the machine may take part in the next round and therefore gets leases."""
    return state.has_amnesty or not state.sits_out(conduct)


def _is_out(state: RunState, conduct: Conduct) -> bool:
    return conduct.owes or state.sits_out(conduct)


# --- the clock of each machine


def _clock(state: RunState, member: Member) -> None:
    """Run a machine's work clock, but only while it has leased units, is below its quota and may compute."""
    conduct = member.conduct
    left = state.leases.outstanding(member.accumulator) - len(member.done)
    may_work = state.goal == "running" and _may_compute(state, member)
    if may_work and left > 0 and for_later(state, member) < member.quota:
        if conduct.working_since is None:
            conduct.working_since = state.now
    else:
        _pause(state, conduct)


def _may_compute(state: RunState, member: Member) -> bool:
    """Return True if a trainer may compute. With staleness 0, it must be up to date and no round may be open.

    With staleness 1, it may be up to one step behind.
    """
    if not state.recipe.staleness:
        return state.phase is Phase.ACCUMULATE and member.counted[0]
    return member.trains and member.reconciled and is_close(state, member)


def for_later(state: RunState, member: Member) -> int:
    """Return how many of a trainer's finished samples the open round does not use: all of them with staleness 0."""
    offer = state.round.offers.get(member.peer) if state.round is not None and state.recipe.staleness else None
    if offer is None or offer.accumulator != member.accumulator:
        return member.done_samples
    return max(0, member.done_samples - sum(done.unit.samples for done in offer.units))


def _pause(state: RunState, conduct: Conduct) -> None:
    if conduct.working_since is not None:
        conduct.worked_s += state.now - conduct.working_since
        conduct.working_since = None


def delivered(state: RunState, member: Member, samples: int) -> None:
    conduct = member.conduct
    if conduct.working_since is not None:
        seconds = max(state.now - conduct.working_since, FASTEST_S)
        conduct.seconds = [*conduct.seconds[1 - DELIVERIES :], seconds / samples]
        look_soon(state, when=not conduct.pace)
        conduct.pace = 1 / median(conduct.seconds)
        conduct.working_since = state.now
    conduct.worked_s, conduct.nudge_s = 0.0, 0.0
    look_soon(state, when=conduct.silent or conduct.owes)
    conduct.silent = conduct.owes = False
    if state.round is None or not state.recipe.staleness:
        state.moved_at = state.now  # otherwise, deliveries during a round would hide its lack of progress
    state.voided_for.discard(member.peer)


def look_soon(state: RunState, *, when: bool = True) -> None:
    """Make the next tick update all shares and leases."""
    if when:
        state.is_dirty, state.sweep_at = True, state.now


def unit_s(state: RunState, conduct: Conduct) -> float:
    """Return how many seconds the machine usually takes per unit, or 0 before its first delivery."""
    return state.recipe.micro_batch / conduct.pace if conduct.pace else 0.0


def pace_now(state: RunState, conduct: Conduct) -> float:
    """Return the machine's pace in samples per second, reduced if its current unit is taking unusually long."""
    idle = idle_s(state, conduct)
    is_late = idle > max(LATE_UNITS * unit_s(state, conduct), LATE_S)
    return min(conduct.pace, state.recipe.micro_batch / idle) if is_late else conduct.pace


def idle_s(state: RunState, conduct: Conduct) -> float:
    """Return how long the machine has been able to compute leased units since its last delivery, in seconds."""
    running = state.now - conduct.working_since if conduct.working_since is not None else 0.0
    return conduct.worked_s + running


def hush(state: RunState, member: Member) -> list[Command]:
    """Stop counting on a machine that has been silent for too long."""
    conduct = member.conduct
    limit = max(SILENT_S, PATIENCE * unit_s(state, conduct)) if conduct.pace else NEWCOMER_S
    if conduct.silent or idle_s(state, conduct) <= limit:
        return []
    conduct.silent = True
    conduct.proven = 0
    look_soon(state)
    text = f"{member.name} is not responding; the others continue without it"
    return [Note("silent", text, (member.person,))]


# --- quarantine


def missed(state: RunState, conduct: Conduct) -> None:
    """Quarantine a machine that made no offer or was dropped: for one round, and until it delivers a unit.

    A delivery is only a claim. If the machine fails again before an update includes its work, the quarantine grows.
    """
    conduct.owes, conduct.proven, conduct.misses = True, 0, conduct.misses + 1
    _send_out(state, conduct, conduct.misses)


def was_late(state: RunState, conduct: Conduct, *, is_coming: bool) -> None:
    """Quarantine a machine for one round because its gradient was late. `is_coming`: the gradient is still arriving."""
    conduct.owes, conduct.is_slow = True, is_coming
    _send_out(state, conduct, 1)


def struck(state: RunState, conduct: Conduct) -> None:
    """Quarantine a machine whose work was refused or that kept a round from ending."""
    conduct.strikes, conduct.proven = conduct.strikes + 1, 0
    _send_out(state, conduct, conduct.strikes)


def lied(state: RunState, conduct: Conduct) -> None:
    """Quarantine a machine for the maximum time, because its report about averages has been proven false."""
    conduct.strikes = max(conduct.strikes, len(OUT) - 1)
    struck(state, conduct)


def did_well(conduct: Conduct, samples: int) -> None:
    conduct.strikes, conduct.misses, conduct.is_slow = max(0, conduct.strikes - 1), 0, False
    conduct.proven = max(samples, conduct.proven * 9 // 10)


def _send_out(state: RunState, conduct: Conduct, times: int) -> None:
    which = min(times, len(OUT)) - 1
    conduct.out_until = max(conduct.out_until, state.rounds + OUT[which])
    conduct.out_to = max(conduct.out_to, state.now + OUT_S[which])
    conduct.out_since = state.now
    look_soon(state)


def usual_s(state: RunState) -> float:
    """Return how many seconds a batch usually takes, or 0 before the first one."""
    return median(state.accumulated) if state.accumulated else 0.0


def weigh_absence(state: RunState) -> None:
    """Suspend quarantines if the other machines cannot fill the batch within three times the usual time.

    After each void round during a suspension, wait longer before the next one. A new machine reveals its pace only with
    its first unit, and a cut makes it lose that unit.
    """
    working = _working(state).values()
    paces = [conduct.pace for conduct in working if not _is_out(state, conduct)]
    others, fastest = sum(paces), max(paces, default=0.0)
    out = sum(min(conduct.pace, fastest) for conduct in working if _is_out(state, conduct))  # pace may be only a claim
    is_too_soon = bool(paces) and state.now < state.amnesty_from
    state.has_amnesty = _takes_too_long(state, others, out + others) and not is_too_soon


def _working(state: RunState) -> dict[PeerId, Conduct]:
    """Return the machines that deliver work and whose replicas are at most one step behind."""
    near = (member for member in state.members.values() if member.trains and is_close(state, member))
    return {member.peer: member.conduct for member in near if not member.conduct.silent}


def is_close(state: RunState, member: Member) -> bool:
    """Return True if the member's replica is at most one step behind."""
    return member.step >= max(state.step - 1, 0)


def _takes_too_long(state: RunState, pace: float, whole: float) -> bool:
    """Return True if a batch at this pace takes over three times the usual time.

    Before the first batch, the usual time is the time at pace `whole`.
    """
    batch = state.recipe.target_batch
    usual = usual_s(state) or (batch / whole if whole else 0.0)
    return batch > pace * PATIENCE * usual


def remake_s(state: RunState, round_: Round, slots: Collection[int]) -> float:
    """Return how many seconds the other machines need to fill a batch without these slots' machines.

    Return infinity if that takes too long, so that the round has to wait for these slots.
    """
    slow = {round_.slots[slot].peer for slot in slots}
    paces = {peer: conduct.pace for peer, conduct in _working(state).items() if not _is_out(state, conduct)}
    others = sum(pace for peer, pace in paces.items() if peer not in slow)
    if not others or _takes_too_long(state, others, sum(paces.values())):
        return math.inf
    held = sum(done.unit.samples for peer, offer in round_.offers.items() if peer not in slow for done in offer.units)
    return max(0.0, state.recipe.target_batch - held) / others


def spend_amnesty(state: RunState) -> None:
    """End a suspension of quarantines that led to no update, and delay the next suspension."""
    if state.has_amnesty:
        state.amnesties += 1
        state.amnesty_from = state.now + min(AMNESTY_S * 2.0**state.amnesties, NEWCOMER_S)
        state.has_amnesty = False


def lift(state: RunState) -> None:
    """Suspend quotas while a batch is taking more than three times the usual time."""
    usual = usual_s(state)
    limit = PATIENCE * usual if usual else FIRST_LIFT_S
    is_late = state.phase is Phase.ACCUMULATE and state.now - state.accumulating_since > max(limit, 1.0)
    look_soon(state, when=is_late and not state.is_lifted)
    state.is_lifted = is_late


def keep_conduct(state: RunState, member: Member) -> None:
    """Remember a departing machine's conduct in case it returns."""
    state.conducts[member.peer] = member.conduct
    while len(state.conducts) > CONDUCTS_KEPT:
        state.conducts.pop(next(iter(state.conducts)))

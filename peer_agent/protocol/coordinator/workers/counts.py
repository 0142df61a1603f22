"""Count working machines and their samples, and measure how long each machine works on a unit.

The totals in `RunState` are updated one member at a time, so that no event has to visit every member.
"""

from peer_agent.protocol.coordinator.events import Command, Note
from peer_agent.protocol.coordinator.reliability import Failure, Reliability
from peer_agent.protocol.coordinator.state import Member, Phase, RunState
from peer_agent.protocol.timing import NEWCOMER_S, REPORT_S, SILENT_S, SUSPECTED, UNAVAILABLE

RECORDS_KEPT = 10_000  # maximum number of machines remembered while they are away


def recount(state: RunState, member: Member) -> None:
    """Update the run's totals and the member's stopwatch after a change to the member."""
    ready = member.trains and member.reconciled and member.step == state.step
    awake = ready and is_counted(state, member.reliability)
    _put(state, member, (ready, awake, member.done_samples if awake else 0))
    _time(state, member)


def discount(state: RunState, member: Member) -> None:
    """Subtract a departing member from the run's totals (ready machines, active machines, samples)."""
    _put(state, member, (False, False, 0))
    member.reliability.unit.pause(state.now)


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


def is_counted(state: RunState, record: Reliability) -> bool:
    """Return True if the machine counts towards shares, majorities and rounds."""
    if record.is_silent or (record.probation and not state.override.is_on):
        return False
    return is_asked(state, record)


def is_asked(state: RunState, record: Reliability) -> bool:
    """Return True if the machine may take part in the next round and therefore gets leases.

    No override readmits a machine whose work has been proven false.
    """
    return not state.in_quarantine(record) or (state.override.is_on and not record.is_proven_false)


def is_doubted(state: RunState, record: Reliability) -> bool:
    """Return True if the machine is on probation or in quarantine."""
    return record.probation or state.in_quarantine(record)


def is_close(state: RunState, member: Member) -> bool:
    """Return True if the member's replica is at most one step behind."""
    return member.step >= max(state.step - 1, 0)


def blame(state: RunState, record: Reliability, kind: Failure, *, is_coming: bool = False) -> None:
    """Record a machine's failure, and update all shares soon. `is_coming`: the gradient was still arriving."""
    record.fail(kind, state.rounds, state.now, is_coming=is_coming)
    look_soon(state)


def look_soon(state: RunState, *, when: bool = True) -> None:
    """Make the next tick update all shares and leases."""
    if when:
        state.is_dirty, state.sweep_at = True, state.now


def keep_record(state: RunState, member: Member) -> None:
    """Remember a departing machine's record in case it returns."""
    state.reliabilities[member.peer] = member.reliability
    while len(state.reliabilities) > RECORDS_KEPT:
        state.reliabilities.pop(next(iter(state.reliabilities)))


# --- each machine's time for work


def _time(state: RunState, member: Member) -> None:
    """Run a machine's stopwatch, but only while it has leased units, is below its quota and may compute."""
    left = state.leases.outstanding(member.accumulator) - len(member.done)
    may_work = state.goal == "running" and _may_compute(state, member)
    if may_work and left > 0 and for_later(state, member) < member.quota:
        member.reliability.unit.start(state.now)
    else:
        member.reliability.unit.pause(state.now)


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


def delivered(state: RunState, member: Member, samples: int) -> None:
    """Record that a trainer has delivered a unit of `samples` samples."""
    record = member.reliability
    was_known, was_away = bool(record.rate), record.is_silent or record.probation
    record.deliver(samples, state.now)
    look_soon(state, when=was_away or (bool(record.rate) and not was_known))
    if state.round is None or not state.recipe.staleness:
        state.moved_at = state.now  # otherwise, deliveries during a round would hide its lack of progress


def rate_now(state: RunState, record: Reliability) -> float:
    """Return the machine's rate in samples per second, reduced if its current unit is taking unusually long."""
    idle_s, unit = record.unit.read(state.now), state.recipe.micro_batch
    is_late = idle_s > max(SUSPECTED * record.unit_s(unit), REPORT_S)
    return min(record.rate, unit / idle_s) if is_late else record.rate


def unit_limit_s(state: RunState, record: Reliability) -> float:
    """Return after how many seconds of work without a delivery a machine is no longer counted on."""
    return max(SILENT_S, UNAVAILABLE * record.unit_s(state.recipe.micro_batch)) if record.rate else NEWCOMER_S


def suspend(state: RunState, member: Member) -> list[Command]:
    """Stop counting on a machine that has delivered nothing for too long."""
    record = member.reliability
    record.is_silent, record.proven = True, 0
    look_soon(state)
    text = f"{member.name} is not responding; the others continue without it"
    return [Note("silent", text, (member.person,))]

"""Who works, by what is delivered: pace, silence, sitting out. What a peer says of its speed is not asked.

The sums over members in `RunState` are kept here, member by member, so that no event looks at all of them.
"""

import math
from collections.abc import Collection
from statistics import median

from peer_agent.protocol.coordinator.events import Command, Note
from peer_agent.protocol.coordinator.state import Conduct, Member, Phase, Round, RunState
from peer_agent.protocol.identifiers import PeerId

SILENT_S = 30.0  # of work without a delivery, at least, or three times what it usually needs for a unit
NEWCOMER_S = 600.0  # the same before the first delivery: compiling, a slow machine
AMNESTY_S = 2.0  # between rounds in which nobody sits out and which are void: twice as much after each
PATIENCE = 3.0  # times the usual: for a unit of one machine, for a batch of all
FIRST_LIFT_S = 30.0  # until quotas are lifted while no usual time is known
LATE_UNITS = 2.0  # of its usual units' time without a delivery: from there on its share shrinks
LATE_S = 1.0  # at least: a report may be under way
DELIVERIES = 9  # whose median is the pace
FASTEST_S = 1e-3  # for a delivery
OUT = (1, 4, 16)  # rounds to sit out for what was refused, or did not come: the first time, the second, any other
OUT_S = (0.0, 16.0, 64.0)  # and as long as that at least, where rounds are shorter than what a wait for it costs
CONDUCTS_KEPT = 10_000  # of machines that are away


def recount(state: RunState, member: Member) -> None:
    """After anything about a member has changed: the sums follow, and whether its clock runs."""
    ready = member.trains and member.reconciled and member.step == state.step
    awake = ready and is_counted(state, member.conduct)
    _put(state, member, (ready, awake, member.done_samples if awake else 0))
    _clock(state, member)


def discount(state: RunState, member: Member) -> None:
    """Take a member that goes out of the sums."""
    _put(state, member, (False, False, 0))
    _pause(state, member.conduct)


def recount_all(state: RunState) -> None:
    """After something that concerns everybody: a round begins or ends."""
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
    """Whether shares, majorities and rounds count on a machine that works like this."""
    return not conduct.silent and (state.has_amnesty or not _is_out(state, conduct))


def is_asked(state: RunState, conduct: Conduct) -> bool:
    """Whether it takes part in the next round, and is leased work for it."""
    return state.has_amnesty or not state.sits_out(conduct)


def _is_out(state: RunState, conduct: Conduct) -> bool:
    return conduct.owes or state.sits_out(conduct)


# --- the clock of each machine


def _clock(state: RunState, member: Member) -> None:
    """It runs while the machine has leased work, is below its quota, and may compute."""
    conduct = member.conduct
    left = state.leases.outstanding(member.accumulator) - len(member.done)
    may_work = state.goal == "running" and _may_compute(state, member)
    if may_work and left > 0 and for_later(state, member) < member.quota:
        if conduct.working_since is None:
            conduct.working_since = state.now
    else:
        _pause(state, conduct)


def _may_compute(state: RunState, member: Member) -> bool:
    """At the head while no round is open; with staleness 1 also in a round, until it has applied what came of it."""
    if not state.recipe.staleness:
        return state.phase is Phase.ACCUMULATE and member.counted[0]
    return member.trains and member.reconciled and is_close(state, member)


def for_later(state: RunState, member: Member) -> int:
    """Samples that it has done and that no open round takes. Only with staleness 1 there are any during a round."""
    offer = state.round.offers.get(member.peer) if state.round is not None and state.recipe.staleness else None
    if offer is None or offer.accumulator != member.accumulator:
        return member.done_samples
    return max(0, member.done_samples - sum(done.unit.samples for done in offer.units))


def _pause(state: RunState, conduct: Conduct) -> None:
    if conduct.working_since is not None:
        conduct.worked_s += state.now - conduct.working_since
        conduct.working_since = None


def delivered(state: RunState, member: Member, samples: int) -> None:
    """Its work has grown by so many samples."""
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
        state.moved_at = state.now  # else a round that stands still would not be seen to
    state.voided_for.discard(member.peer)


def look_soon(state: RunState, *, when: bool = True) -> None:
    """Shares and leases of everybody change: with the next tick."""
    if when:
        state.is_dirty, state.sweep_at = True, state.now


def unit_s(state: RunState, conduct: Conduct) -> float:
    """Seconds that it usually needs for a unit; 0 before its first delivery."""
    return state.recipe.micro_batch / conduct.pace if conduct.pace else 0.0


def pace_now(state: RunState, conduct: Conduct) -> float:
    """Samples a second: its pace, or less where it has worked on one unit for longer than it usually does."""
    idle = idle_s(state, conduct)
    is_late = idle > max(LATE_UNITS * unit_s(state, conduct), LATE_S)
    return min(conduct.pace, state.recipe.micro_batch / idle) if is_late else conduct.pace


def idle_s(state: RunState, conduct: Conduct) -> float:
    """How long it has worked without delivering anything."""
    running = state.now - conduct.working_since if conduct.working_since is not None else 0.0
    return conduct.worked_s + running


def hush(state: RunState, member: Member) -> list[Command]:
    """Whoever delivers nothing for too long is not counted on, until it does."""
    conduct = member.conduct
    limit = max(SILENT_S, PATIENCE * unit_s(state, conduct)) if conduct.pace else NEWCOMER_S
    if conduct.silent or idle_s(state, conduct) <= limit:
        return []
    conduct.silent = True
    conduct.proven = 0
    look_soon(state)
    return [Note("silent", f"{member.name} is not responding; the others continue without it")]


# --- sitting out


def missed(state: RunState, conduct: Conduct) -> None:
    """It did not offer, or was dropped in mid-round: one round without it, then until it delivers a unit.

    Delivering is no more than a word; whoever does so again without having been in an update sits out longer.
    """
    conduct.owes, conduct.proven, conduct.misses = True, 0, conduct.misses + 1
    _send_out(state, conduct, conduct.misses)


def was_late(state: RunState, conduct: Conduct, *, is_coming: bool) -> None:
    """Too much of its gradient came too late: one round without it, each time. What came in time is in the update.

    `is_coming`: nothing was in its way but its link.
    """
    conduct.owes, conduct.is_slow = True, is_coming
    _send_out(state, conduct, 1)


def struck(state: RunState, conduct: Conduct) -> None:
    """What it did was refused, or kept a round from its end."""
    conduct.strikes, conduct.proven = conduct.strikes + 1, 0
    _send_out(state, conduct, conduct.strikes)


def did_well(conduct: Conduct, samples: int) -> None:
    """Work of it is in an update."""
    conduct.strikes, conduct.misses, conduct.is_slow = max(0, conduct.strikes - 1), 0, False
    conduct.proven = max(samples, conduct.proven * 9 // 10)


def _send_out(state: RunState, conduct: Conduct, times: int) -> None:
    which = min(times, len(OUT)) - 1
    conduct.out_until = max(conduct.out_until, state.rounds + OUT[which])
    conduct.out_to = max(conduct.out_to, state.now + OUT_S[which])
    conduct.out_since = state.now
    look_soon(state)


def usual_s(state: RunState) -> float:
    """Seconds that accumulating a batch usually takes; 0 where none was made yet."""
    return median(state.accumulated) if state.accumulated else 0.0


def weigh_absence(state: RunState) -> None:
    """Nobody sits out where the others cannot fill the batch within three times the usual.

    Rounds that come to nothing with those who were called back leave the others longer and longer without them: a
    newcomer's pace shows after its first unit, and a cut costs it the one in hand.
    """
    working = _working(state).values()
    paces = [conduct.pace for conduct in working if not _is_out(state, conduct)]
    others, fastest = sum(paces), max(paces, default=0.0)
    out = sum(min(conduct.pace, fastest) for conduct in working if _is_out(state, conduct))  # pace may be a word alone
    is_too_soon = bool(paces) and state.now < state.amnesty_from
    state.has_amnesty = _takes_too_long(state, others, out + others) and not is_too_soon


def _working(state: RunState) -> dict[PeerId, Conduct]:
    """Of machines that deliver, those whose replica is at the head, or one step behind and about to be."""
    near = (member for member in state.members.values() if member.trains and is_close(state, member))
    return {member.peer: member.conduct for member in near if not member.conduct.silent}


def is_close(state: RunState, member: Member) -> bool:
    """Whether its replica is at the head, or one step behind and about to be."""
    return member.step >= max(state.step - 1, 0)


def _takes_too_long(state: RunState, pace: float, whole: float) -> bool:
    """Whether a batch takes three times the usual at this pace, or three times as long as with all of them."""
    batch = state.recipe.target_batch
    usual = usual_s(state) or (batch / whole if whole else 0.0)
    return batch > pace * PATIENCE * usual


def remake_s(state: RunState, round_: Round, slots: Collection[int]) -> float:
    """Until the others have made another batch, without these slots; infinite where nobody may sit it out."""
    slow = {round_.slots[slot].peer for slot in slots}
    paces = {peer: conduct.pace for peer, conduct in _working(state).items() if not _is_out(state, conduct)}
    others = sum(pace for peer, pace in paces.items() if peer not in slow)
    if not others or _takes_too_long(state, others, sum(paces.values())):
        return math.inf
    held = sum(done.unit.samples for peer, offer in round_.offers.items() if peer not in slow for done in offer.units)
    return max(0.0, state.recipe.target_batch - held) / others


def spend_amnesty(state: RunState) -> None:
    """A round made no update although nobody sat out."""
    if state.has_amnesty:
        state.amnesties += 1
        state.amnesty_from = state.now + min(AMNESTY_S * 2.0**state.amnesties, NEWCOMER_S)
        state.has_amnesty = False


def lift(state: RunState) -> None:
    """Everybody may go on where a batch takes three times as long as usual."""
    usual = usual_s(state)
    limit = PATIENCE * usual if usual else FIRST_LIFT_S
    is_late = state.phase is Phase.ACCUMULATE and state.now - state.accumulating_since > max(limit, 1.0)
    look_soon(state, when=is_late and not state.is_lifted)
    state.is_lifted = is_late


def keep_conduct(state: RunState, member: Member) -> None:
    """A machine goes; when it is back it is known."""
    state.conducts[member.peer] = member.conduct
    while len(state.conducts) > CONDUCTS_KEPT:
        state.conducts.pop(next(iter(state.conducts)))

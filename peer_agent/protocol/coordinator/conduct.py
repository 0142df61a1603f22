"""Who works, by what is delivered: pace, silence, sitting out. What a peer says of its speed is not asked.

The sums over members in `RunState` are kept here, member by member, so that no event looks at all of them.
"""

from statistics import median

from peer_agent.protocol.coordinator.events import Command, Note
from peer_agent.protocol.coordinator.state import Conduct, Member, Phase, RunState

SILENT_S = 30.0  # of work without a delivery, at least, or three times what it usually needs for a unit
NEWCOMER_S = 600.0  # the same before the first delivery: compiling, a slow machine
AMNESTY_S = 2.0  # between rounds in which nobody sits out and which are void: twice as much after each
PATIENCE = 3.0  # times the usual: for a unit of one machine, for a batch of all
FIRST_LIFT_S = 30.0  # until quotas are lifted while no usual time is known
DELIVERIES = 9  # whose median is the pace
FASTEST_S = 1e-3  # for a delivery
OUT = (1, 4, 16)  # rounds to sit out for what was refused, or did not come: the first time, the second, any other
CONDUCTS_KEPT = 10_000  # of machines that are away


def recount(state: RunState, member: Member) -> None:
    """After anything about a member has changed: the sums follow, and whether its clock runs."""
    ready = member.trains and member.reconciled and member.step == state.step
    awake = ready and is_counted(state, member.conduct)
    _put(state, member, (ready, awake, member.done_samples if awake else 0))
    _clock(state, member)


def discount(state: RunState, member: Member) -> None:
    """The member goes."""
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
    """It runs while the machine has leased work, is below its quota, and no round is open."""
    conduct = member.conduct
    left = state.leases.outstanding(member.accumulator) - len(member.done)
    may_work = state.phase is Phase.ACCUMULATE and state.goal == "running" and member.counted[0]
    if may_work and left > 0 and member.done_samples < member.quota:
        if conduct.working_since is None:
            conduct.working_since = state.now
    else:
        _pause(state, conduct)


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
    state.moved_at = state.now
    state.voided_for.discard(member.peer)


def look_soon(state: RunState, *, when: bool = True) -> None:
    """Shares and leases of everybody change: with the next tick."""
    if when:
        state.is_dirty, state.sweep_at = True, state.now


def unit_s(state: RunState, conduct: Conduct) -> float:
    """Seconds that it usually needs for a unit; 0 before its first delivery."""
    return state.recipe.micro_batch / conduct.pace if conduct.pace else 0.0


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
    return [Note("silent", f"{member.name} delivers nothing; the others go on without it")]


# --- sitting out


def missed(state: RunState, conduct: Conduct) -> None:
    """It did not offer, or was dropped in mid-round: one round without it, then until it delivers a unit.

    Delivering is no more than a word; whoever does so again without having been in an update sits out longer.
    """
    conduct.owes, conduct.proven, conduct.misses = True, 0, conduct.misses + 1
    _send_out(state, conduct, OUT[min(conduct.misses, len(OUT)) - 1])


def struck(state: RunState, conduct: Conduct) -> None:
    """What it did was refused, or kept a round from its end."""
    conduct.strikes, conduct.proven = conduct.strikes + 1, 0
    _send_out(state, conduct, OUT[min(conduct.strikes, len(OUT)) - 1])


def did_well(conduct: Conduct, samples: int) -> None:
    """Work of it is in an update."""
    conduct.strikes, conduct.misses = max(0, conduct.strikes - 1), 0
    conduct.proven = max(samples, conduct.proven * 9 // 10)


def _send_out(state: RunState, conduct: Conduct, rounds: int) -> None:
    conduct.out_until, conduct.out_since = max(conduct.out_until, state.rounds + rounds), state.now
    look_soon(state)


def usual_s(state: RunState) -> float:
    """Seconds that accumulating a batch usually takes; 0 where none was made yet."""
    return median(state.accumulated) if state.accumulated else 0.0


def weigh_absence(state: RunState) -> None:
    """Nobody sits out where the others cannot fill the batch within three times the usual.

    Rounds that come to nothing with those who were called back leave the others longer and longer without them: a
    newcomer's pace shows after its first unit, and a cut costs it the one in hand.
    """
    working = [m.conduct for m in state.members.values() if m.trains and not m.conduct.silent and is_close(state, m)]
    paces = [conduct.pace for conduct in working if not _is_out(state, conduct)]
    others, fastest = sum(paces), max(paces, default=0.0)
    out = sum(min(conduct.pace, fastest) for conduct in working if _is_out(state, conduct))  # pace may be a word alone
    batch = state.recipe.target_batch
    usual = usual_s(state) or (batch / (out + others) if out + others else 0.0)
    is_too_soon = bool(paces) and state.now < state.amnesty_from
    state.has_amnesty = batch > others * PATIENCE * usual and not is_too_soon


def spend_amnesty(state: RunState) -> None:
    """A round made no update although nobody sat out."""
    if state.has_amnesty:
        state.amnesties += 1
        state.amnesty_from = state.now + min(AMNESTY_S * 2.0**state.amnesties, NEWCOMER_S)
        state.has_amnesty = False


def is_close(state: RunState, member: Member) -> bool:
    """Whether its replica is at the head, or one step behind and about to be."""
    return member.step >= max(state.step - 1, 0)


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

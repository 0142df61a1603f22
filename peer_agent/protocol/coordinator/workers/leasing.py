"""Leasing: quotas, batch shares proportional to each machine's rate, and units leased two rounds ahead (rule 22)."""

import math
from collections.abc import Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Reserve, Send
from peer_agent.protocol.coordinator.state import DIVERGED, Member, RunState
from peer_agent.protocol.coordinator.workers.counts import for_later, is_asked, is_close, is_counted, rate_now, recount
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.timing import ROUND_TRIP_S

HEADROOM = 1.25  # a trainer pauses once its accumulator contains this many times its share
AHEAD = 2.0  # rounds for which units are leased in advance
GROWTH = 2.0  # a share is at most this many times the machine's largest part of an update, or an equal share
LOOKS = 4  # most checks of the marks per batch that change nothing, because each check visits all members
MARKED = 4  # rounds of units below the marks, which are raised at half of that


def deal(state: RunState) -> None:
    """Divide the batch among the working machines. A machine that has not delivered anything yet gets one unit.

    A machine left out of the next round gets a share matching its rate, for the round after that.
    """
    unit, batch = state.recipe.micro_batch, state.recipe.target_batch
    here = [p for p in state.members.values() if p.trains and is_close(state, p) and is_counted(state, p.reliability)]
    left_out = state.chosen.left_out if state.chosen is not None else {}
    present = [member for member in here if member.peer not in left_out]
    rated = [member for member in present if member.reliability.rate]
    for member in state.members.values():
        member.share = unit
    rest = float(max(batch - unit * (len(present) - len(rated)), unit))
    for member, share in _limited(state, rated, rest, GROWTH * batch / max(len(present), 1)):
        member.share = max(unit, math.ceil(share / unit) * unit)
    spared = [member for member in here if member.peer in left_out and member.reliability.rate]
    together = sum(member.reliability.rate for member in rated)
    for member in spared:
        share = min(batch * member.reliability.rate / together if together else batch, batch)
        member.share = max(unit, math.ceil(share / unit) * unit)


def _limited(state: RunState, rated: Sequence[Member], batch: float, equal: float) -> list[tuple[Member, float]]:
    """Return shares proportional to rate. Other machines take what exceeds a machine's limit.

    The limit is `GROWTH` times the most that the machine has contributed to an update, or `equal` if that is more.
    """
    limits = {member.peer: max(equal, GROWTH * member.reliability.proven) for member in rated}
    rates = {member.peer: rate_now(state, member.reliability) for member in rated}
    order = sorted(rated, key=lambda member: (limits[member.peer] / rates[member.peer], member.peer))
    together = sum(rates.values())
    shares = []
    for member in order:
        share = min(limits[member.peer], batch * rates[member.peer] / together)
        shares.append((member, share))
        batch, together = batch - share, together - rates[member.peer]
    return shares


def top_up_all(state: RunState) -> list[Command]:
    """Raise the lease marks, and lease units to all trainers."""
    commands = reserve(state)
    for member in state.members.values():
        if member.counted[0]:
            commands += top_up(state, member)
    return commands


def reserve(state: RunState) -> list[Command]:
    """Request higher lease marks if the current ones cover less than half of the units that the trainers may need."""
    if state.reserving or not _may_lease(state):
        return []
    unit = state.recipe.micro_batch
    here = [member for member in state.members.values() if member.counted[0] and member.accumulator]
    marks = state.leases.wanted_marks({member.accumulator: MARKED * max(member.share, unit) for member in here})
    state.reserving, state.until_look = bool(marks), 0 if marks else state.recipe.target_batch // LOOKS
    return [Reserve(marks)] if marks else []


def top_up(state: RunState, member: Member) -> list[Command]:
    """Lease one trainer enough units to continue, and send it its quota."""
    if not member.counted[0] or not member.accumulator or not _may_lease(state):
        return []
    if not is_asked(state, member.reliability) or _fails_alone(state, member):
        return []
    if member.hello_asked_at is not None and state.now - member.hello_asked_at < ROUND_TRIP_S:
        return []  # otherwise, the hello might or might not include a lease made after the request
    unit, reliability = state.recipe.micro_batch, member.reliability
    is_known = reliability.rate and is_counted(state, reliability)
    share = member.share if is_known else unit
    quota = _quota(state, member, share, is_known=bool(is_known))
    # A machine that claims more work than its quota earns no further leases by doing so.
    later = for_later(state, member)
    done = member.done_samples - later + min(later, quota)
    ahead = state.leases.held_samples.get(member.accumulator, 0) - done
    wanted = (int(AHEAD * share) if is_known else unit) - ahead if ahead < share else 0
    units = state.leases.grant(member.accumulator, wanted) if wanted > 0 else ()
    granted = sum(each.samples for each in units)
    state.until_look -= granted
    is_low = wanted and state.until_look <= 0 and state.leases.marked(member.accumulator) < AHEAD * share
    short = reserve(state) if granted < wanted or is_low else []
    return short + _tell(state, member, units, quota)


def _fails_alone(state: RunState, member: Member) -> bool:
    """Return True if a machine has returned many non-finite units since the last update, but another one has not."""
    if state.returned.get(member.peer, 0) < DIVERGED:
        return False
    others = (other for other in state.trainers() if not other.reliability.is_silent)
    return any(state.returned[other.peer] < DIVERGED for other in others if other.peer != member.peer)


def _may_lease(state: RunState) -> bool:
    return state.goal == "running" and not state.done and state.has_quorum and not state.has_diverged


def _quota(state: RunState, member: Member, share: int, *, is_known: bool) -> int:
    """Return a trainer's quota. While quotas are raised, a machine may fill the whole batch but no more."""
    unit, batch = state.recipe.micro_batch, state.recipe.target_batch
    if not is_known:
        return min(for_later(state, member) + unit, max(batch, unit))
    # The accumulator also contains work from rounds that left the machine out.
    rounds = 1 + member.reliability.skipped_updates
    quota = math.ceil(HEADROOM * share * rounds / unit) * unit
    return max(quota, batch) if state.quotas_raised else quota


def _tell(state: RunState, member: Member, units: tuple[Unit, ...], quota: int) -> list[Command]:
    is_near = abs(quota - member.quota) * 5 < member.quota and not member.quota <= for_later(state, member) < quota
    if not units and is_near:
        return []
    member.quota = quota
    if units:
        member.granted_at, member.granted, member.short_since = state.now, units, None
    recount(state, member)
    coming = state.leases.coming(member.accumulator, len(state.members))
    lease = m.Lease(run=state.run, fence=state.fence, units=units, quota=quota, coming=coming)
    return [Send((member.peer,), lease)]

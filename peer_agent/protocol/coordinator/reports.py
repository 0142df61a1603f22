"""Process messages from working peers, and detect lost ones."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Note, Paged, Resend
from peer_agent.protocol.coordinator.round.offers import revoke
from peer_agent.protocol.coordinator.round.repeating import repeat
from peer_agent.protocol.coordinator.round.replicas import take_replica
from peer_agent.protocol.coordinator.round.voiding import ask_for_hello
from peer_agent.protocol.coordinator.state import Member, Phase, RunState
from peer_agent.protocol.coordinator.workers.counts import delivered, recount
from peer_agent.protocol.coordinator.workers.leasing import top_up
from peer_agent.protocol.coordinator.workers.settlement import end_leases, fail_leases
from peer_agent.protocol.timing import ROUND_TRIP_S

PAGE = 64  # commits per page when resending
PAGE_AGAIN_S = ROUND_TRIP_S  # seconds to wait for a page to be acknowledged


def take_heartbeat(state: RunState, member: Member, heartbeat: m.Heartbeat) -> list[Command]:
    reduces = not member.trains
    return resend(state, member, heartbeat.index) + repeat(state, member, heartbeat.heard, reduces=reduces)


def resend(state: RunState, member: Member, index: int) -> list[Command]:
    """Send a peer the commits that it lacks, page by page. Each page follows once the one before is acknowledged."""
    if index > member.log_index:
        member.resent_at = state.now
    member.log_index = index
    if not 0 <= index < state.index:
        return []
    if index < member.resent_to and state.now - member.resent_at < PAGE_AGAIN_S:
        return []
    first = index + 1 if member.takes_all else max(index + 1, state.rolled_back)  # replicas skip undone records
    count = min(PAGE, state.index + 1 - first)
    member.resent_to, member.resent_at = first + count - 1, state.now
    return [Resend(member.peer, first, count, whole=member.takes_all)]


def take_paged(state: RunState, paged: Paged) -> list[Command]:
    """Record where the page that the host sent ends.

    If the host shortened the page, the next one begins with the omitted records.
    """
    member = state.members.get(paged.peer)
    if member is not None:
        member.resent_to = min(member.resent_to, paged.last)
    return []


def take_report(state: RunState, member: Member, report: m.Report) -> list[Command]:
    """Process a trainer's progress report. Detect any commits or leases that the trainer did not receive."""
    commands = resend(state, member, report.index) + repeat(state, member, report.heard)
    if report.accumulator != member.accumulator:
        return [*commands, *ask_once(state, member)]
    if state.is_undone(report.index):
        member.step = -1
        recount(state, member)
        return commands
    member.step = report.step if report.step <= state.step else member.step
    take_replica(state, member)
    if not member.reconciled or report.step != state.step or state.phase is Phase.COMMIT:
        recount(state, member)
        return commands  # the trainer does not know of the last commit, or a commit is about to settle its work
    if state.round is not None and member.peer in state.round.offers and not state.recipe.staleness:
        recount(state, member)
        return commands
    return [*commands, *_take_work(state, member, report)]


def _take_work(state: RunState, member: Member, report: m.Report) -> list[Command]:
    """Record the units that a trainer reports as computed.

    Revoke its leases if a unit is not leased to it or is too old (rule 10).
    """
    units = {done.unit: done.base for done in report.done}
    if not state.leases.holds(member.accumulator, units):
        return revoke(state, member, "it reported work that was not leased to it")
    if units and min(units.values()) < state.step - max(state.recipe.staleness, 1):
        return revoke(state, member, "its gradients were too old")
    new = sum(unit.samples for unit in units.keys() - member.done.keys())
    gone = sum(unit.samples for unit in member.done.keys() - units.keys())
    member.done, member.done_samples = units, member.done_samples + new - gone
    if new:
        state.non_finite.pop(member.peer, None)  # the trainer can still compute finite gradients
        delivered(state, member, new)
    recount(state, member)
    return [*_short(state, member, report), *top_up(state, member)]


def _short(state: RunState, member: Member, report: m.Report) -> list[Command]:
    """Ask a trainer for a hello if it keeps reporting fewer units than are leased to it.

    The message with a lease may have been lost.
    """
    if report.undone >= state.leases.outstanding(member.accumulator) - len(member.done):
        member.short_since = None
        return []
    if member.short_since is None:
        member.short_since = state.now
    if state.now - member.short_since < ROUND_TRIP_S:
        return []
    member.short_since = None
    return ask_once(state, member)


def ask_once(state: RunState, member: Member) -> list[Command]:
    """Ask the member for a hello, unless one was requested a moment ago."""
    is_asked = member.hello_asked_at is not None and state.now - member.hello_asked_at < ROUND_TRIP_S
    return [] if is_asked else [ask_for_hello(state, member.peer)]


def take_returned(state: RunState, member: Member, returned: m.UnitsReturned) -> list[Command]:
    """Take units back from a trainer. Lease new ones only at the next tick, so that returning units gains nothing."""
    begun = state.leases.held.get(member.accumulator, set()).intersection(returned.units).difference(member.done)
    for unit in returned.units:
        member.done.pop(unit, None)
    member.done_samples = sum(unit.samples for unit in member.done)
    notes: list[Command] = []
    if returned.reason == "non_finite":
        notes = fail_leases(state, member, returned.units)
        before = state.non_finite.get(member.peer, 0)
        state.non_finite[member.peer] = before + len(begun)
        state.returned[member.peer] += len(begun)
        text = f"a gradient of {member.person} was not finite and was thrown away"
        notes += [] if before else [Note("non-finite", text, (member.person,))]
    else:
        back = end_leases(state, member.accumulator, returned.units)
        if returned.reason == "stale" and back:
            text = f"{back} of {member.person}'s samples were returned to the pool (computed on an older model)"
            notes = [Note("returned", text, (member.person,))]
    recount(state, member)
    state.is_dirty = True
    return notes

"""The coordinator: `advance(state, event, now, seed) -> commands`, shared by site, simulator and property tests.

The function may change the given state: the contract is determinism, not immutability (rule 23). The host executes the
commands in order. `phases` contains the table of transitions. Frequent events (reports, heartbeats, offers) touch a
single member; only clock ticks and rounds visit all of them.
"""

from typing import assert_never

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.links import observe
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.acting import act, awaits_replicas
from peer_agent.protocol.coordinator.agreement.digests import look_at_votes, take_digest, take_replayed
from peer_agent.protocol.coordinator.agreement.snapshots import (
    finish,
    look_at_hashes,
    take_archived,
    take_hash,
    take_stored,
    take_verified,
)
from peer_agent.protocol.coordinator.awaited import of_member, of_round, of_run
from peer_agent.protocol.coordinator.loss_guard import forget_losses
from peer_agent.protocol.coordinator.membership import join, lose, reappoint
from peer_agent.protocol.coordinator.probing import probe, take_probed
from peer_agent.protocol.coordinator.reach import look_at_reach, take_reaches
from peer_agent.protocol.coordinator.recovery import WINDOW_S, look_at_recovery, take_adopted, take_records
from peer_agent.protocol.coordinator.reports import take_heartbeat, take_paged, take_report, take_returned
from peer_agent.protocol.coordinator.rollback import roll_back, take_rolled_back
from peer_agent.protocol.coordinator.round.audits import take_audited, take_findings
from peer_agent.protocol.coordinator.round.choosing import choose_anew, choose_at_cut
from peer_agent.protocol.coordinator.round.committing import take_persisted
from peer_agent.protocol.coordinator.round.lateness import take_lateness
from peer_agent.protocol.coordinator.round.offers import close_offers, cut, may_cut, repeat_cut, take_offer
from peer_agent.protocol.coordinator.round.planning import plan
from peer_agent.protocol.coordinator.round.reducing import (
    awaits,
    look_at_copies,
    replan,
    take_gathered,
    take_have,
    take_progress,
    take_refusal,
    take_span,
)
from peer_agent.protocol.coordinator.round.repeating import repeat
from peer_agent.protocol.coordinator.round.replicas import await_return
from peer_agent.protocol.coordinator.round.voiding import ask_for_hello
from peer_agent.protocol.coordinator.standing import explain, standing
from peer_agent.protocol.coordinator.state import Phase, RunState
from peer_agent.protocol.coordinator.workers.batch import look_at_quarantines
from peer_agent.protocol.coordinator.workers.counts import recount_all
from peer_agent.protocol.coordinator.workers.leasing import deal, top_up, top_up_all
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import encode_recipe

TICK_S = 0.25
SWEEP_S = 1.0  # seconds between visits to every member
GAP_TICKS = 3  # in ticks; after a longer gap between events, the host itself must have been suspended


def advance(state: RunState, event: e.Event, now: float, seed: int) -> list[e.Command]:
    """Process one event. Return the commands that the host must execute, in order.

    `now`: monotonic seconds. `seed`: an integer for random choices.
    """
    _tell_time(state, now)
    return _take(state, event, seed) + _move(state, seed)


def _tell_time(state: RunState, now: float) -> None:
    """Advance the state's time, except for the time during which the host was suspended.

    Otherwise, peers would count as late because of the host's suspension (rule 22).
    """
    if state.clock is None:
        state.clock = state.now = state.accumulating_since = state.batch_since = state.moved_at = now
        state.recover_until = now + WINDOW_S
        await_return(state)
        return
    gap = now - state.clock - GAP_TICKS * TICK_S
    state.slept_s += max(gap, 0.0)
    state.clock = max(now, state.clock)
    state.now = max(state.now, state.clock - state.slept_s)


def _take(state: RunState, event: e.Event, seed: int) -> list[e.Command]:  # noqa: C901, PLR0912 - one arm per event
    match event:
        case e.Joined():
            return _join(state, event)
        case e.Received():
            return _receive(state, event.peer, event.message)
        case e.Lost():
            return _lose(state, event.peer, final=event.banned)
        case e.Ticked():
            return _tick(state, seed)
        case e.Reserved():
            state.leases.raise_marks(event.marks)
            state.reserving = False
            return top_up_all(state)
        case e.Persisted():
            return take_rolled_back(state, event) if state.rolling is not None else take_persisted(state, event, seed)
        case e.Adopted():
            return take_adopted(state, event)
        case e.Directed():
            return _direct(state, event)
        case e.Paged():
            return take_paged(state, event)
        case e.SnapshotStored():
            return take_stored(state, event.snapshot)
        case e.Verified():
            return take_verified(state, event)
        case e.Archived():
            return take_archived(state, event)
        case e.Replayed():
            return take_replayed(state, event)
    assert_never(event)


def _join(state: RunState, event: e.Joined) -> list[e.Command]:
    """Add or update a member.

    If the open round waits for averages from this member, make a new plan. The member may have restarted or lost
    messages.
    """
    known = state.members.get(event.peer)
    commands = _lose(state, event.peer, final=True) if known is not None and known.role is not event.role else []
    is_back = event.peer in state.members and awaits(state, event.peer)
    commands += join(state, event)
    commands += top_up(state, state.members[event.peer])
    return commands + replan(state) if is_back else commands


def _receive(state: RunState, peer: PeerId, message: m.TO_SITE) -> list[e.Command]:  # noqa: C901, PLR0912
    member = state.members.get(peer)
    if member is None:
        return [ask_for_hello(state, peer)]  # the coordinator evicted this peer, or its hello was lost
    member.heard_at = state.now
    match message:
        case m.Hello():
            return _join(state, e.Joined(peer, member.person, member.machine, member.role, message))
        case m.Report():
            return take_report(state, member, message) + take_digest(state, member, message)
        case m.Heartbeat():
            return take_heartbeat(state, member, message)
        case m.Reaches():
            return take_reaches(member, message)
        case m.Probed():
            return take_probed(state, member, message)
        case m.StateHash():
            return take_hash(state, member, message)
        case m.Offer():
            return take_offer(state, member, message)
        case m.SpanDone():
            return take_span(state, member, message)
        case m.Have():
            return take_have(state, member, message)
        case m.Progress():
            heard = m.Heard(message.step, message.fence, message.attempt, has_plan=True, dropped=message.dropped)
            again = repeat(state, member, heard, reduces=True)
            return take_progress(state, member, message) + again
        case m.Arrivals():
            take_lateness(state, member, message)
            observe(state.links, peer, message, state.now)
            return take_gathered(state, member, message)
        case m.SlotRefused():
            return take_refusal(state, member, message)
        case m.Records():
            return take_records(state, member, message)
        case m.Audited():
            return take_audited(state, member, message)
        case m.UnitsReturned():
            return take_returned(state, member, message)
        case m.Leave():
            return _lose(state, peer, final=True)
    assert_never(message)


def _lose(state: RunState, peer: PeerId, *, final: bool) -> list[e.Command]:
    member = state.members.get(peer)
    return lose(state, member, final=final) if member is not None else []


def _direct(state: RunState, event: e.Directed) -> list[e.Command]:
    """Apply the organizer's settings.

    Peers are not sent a new step target, because each record states the learning rate.
    """
    before = state.goal
    if event.goal != "running" or state.now >= state.halting_until:
        state.goal, state.pause_reason = event.goal, event.pause_reason
    state.trusted = event.trusted
    if event.target_steps and event.target_steps != state.recipe.target_steps:
        state.recipe = replace(state.recipe, target_steps=event.target_steps)
        state.recipe_bytes = encode_recipe(state.recipe)
    done = _mix(state, event.mix) if event.mix and event.mix != state.recipe.mix else []
    done += roll_back(state, event.back_to)
    done += take_findings(state, event.findings) if event.back_to is None else []
    if before != state.goal:
        forget_losses(state)
        state.is_dirty, state.moved_at = True, state.now
        state.batch_since = state.now  # the batch's time does not include the organizer's pauses
        recount_all(state)
    if state.goal != "finishing" or (before == "finishing" and state.ending_since):
        return done
    state.ending_since = state.now
    return [*done, e.Send(state.everyone(), standing(state))]


def _mix(state: RunState, weights: tuple[float, ...]) -> list[e.Command]:
    """Use new data source weights for all later leases. Each log record states the weights then in force."""
    if len(weights) != len(state.leases.sources):
        return []
    state.recipe = replace(state.recipe, mix=weights)
    state.recipe_bytes = encode_recipe(state.recipe)
    state.leases.mix(weights)
    forget_losses(state)
    parts = " / ".join(f"{weight / sum(weights):.0%}" for weight in weights)
    return [e.Note("mixed", f"from now on the sources are mixed {parts}")]


def _move(state: RunState, seed: int) -> list[e.Command]:
    match state.phase:
        case Phase.ACCUMULATE if may_cut(state) and not awaits_replicas(state) and choose_at_cut(state):
            return cut(state) + _move(state, seed)
        case Phase.OFFER if state.round is not None and not state.round.waiting:
            return close_offers(state, seed)
        case Phase.OFFER if state.round is not None and state.round.deadline <= state.now:
            return act(state, of_round(state, state.now), seed)
        case Phase.REDUCE if state.round is not None and not state.round.is_planned:
            return plan(state)
    return []


# --- the clock


def _tick(state: RunState, seed: int) -> list[e.Command]:
    """Do the coordinator's periodic work. Do nothing if the last clock tick was too recent."""
    if state.now < state.look_at:
        return []
    state.look_at = state.now + TICK_S / 2
    commands = act(state, of_run(state, state.now), seed) + finish(state) + look_at_recovery(state)
    commands += repeat_cut(state) + look_at_copies(state)
    commands += act(state, of_round(state, state.now), seed)
    if state.now >= state.sweep_at:
        commands += _sweep(state, seed)
    if state.is_dirty:
        state.is_dirty = False
        commands += top_up_all(state)
    return commands + explain(state)


def _sweep(state: RunState, seed: int) -> list[e.Command]:
    """Visit every member, act on what is overdue, and divide the batch among those that can be counted on."""
    state.sweep_at = state.now + SWEEP_S
    commands = reappoint(state)
    overdue = [item for member in state.members.values() for item in of_member(state, member, state.now)]
    commands += act(state, overdue, seed)
    look_at_quarantines(state)
    recount_all(state)
    look_at_reach(state)
    if state.recipe.contributors == "fast" and state.phase is Phase.ACCUMULATE:
        choose_anew(state)
    deal(state)
    return commands + look_at_votes(state) + look_at_hashes(state) + probe(state)

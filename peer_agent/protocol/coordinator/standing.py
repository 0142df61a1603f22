"""Explain why a run is making no progress, naming the peers that it is waiting for. Updated on clock ticks."""

from collections.abc import Iterable, Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol import reasons
from peer_agent.protocol.coordinator.awaited import Awaited, of_round
from peer_agent.protocol.coordinator.decisions import Kind
from peer_agent.protocol.coordinator.events import Command, Send, Waiting
from peer_agent.protocol.coordinator.state import KEEPING_ROLES, Phase, RunState, name_all
from peer_agent.protocol.coordinator.workers.counts import is_asked
from peer_agent.protocol.timing import USUAL_S


def standing(state: RunState) -> m.State:
    """Return the run's current state, along with the reason if it is waiting."""
    if state.finished:
        return m.State(run=state.run, state="finished", reason="")
    if state.goal != "running" and not state.pause_reason:
        return m.State(run=state.run, state=state.goal, reason=state.waiting)
    return m.State(run=state.run, state="waiting" if state.waiting else "running", reason=state.waiting)


def explain(state: RunState) -> list[Command]:
    """Announce why the run is making no progress, if the reason has changed."""
    reason = "" if state.finished else _reason(state) or _still(state)
    if reason == state.waiting:
        return []
    state.waiting = reason
    return [Waiting(reason), Send(state.everyone(), standing(state))]


def _reason(state: RunState) -> str:
    """Return the reason to show if something blocks the run, no matter when the run last made progress."""
    trains = any(member.trains for member in state.members.values())
    if state.rolling is not None:
        return reasons.ROLLED_BACK.format(step=f"{state.rolling.step:,}")
    if state.done:
        return _of_the_end(state)
    if state.goal == "paused":
        return state.pause_reason or reasons.PAUSED
    if state.has_diverged:
        return reasons.DIVERGED
    if state.is_recovering:
        return reasons.RECOVERING
    if not state.can_reduce():
        return reasons.NO_RELAY
    if not trains:
        needed = state.recipe.minimum_trainers
        return reasons.ONE_NEEDED if state.started or needed == 1 else reasons.MANY_NEEDED.format(number=needed)
    return "" if state.started else _of_the_beginning(state)


def _of_the_beginning(state: RunState) -> str:
    missing = state.recipe.minimum_trainers - len(state.trainers())
    if missing > 0:
        return reasons.ONE_MORE_NEEDED if missing == 1 else reasons.MANY_MORE_NEEDED.format(number=missing)
    return "" if state.has_quorum else reasons.LOADING


def _of_the_end(state: RunState) -> str:
    if state.replay is not None:
        return _of_the_replay(state.replay[1])
    if state.keeper is None:
        return reasons.LAST_STEP
    keeper = state.members.get(state.keeper.peer)
    still = state.now - max(state.moved_at, state.keeper.asked_at) >= USUAL_S
    return reasons.HANDING_IN.format(name=keeper.name) if still and keeper is not None else ""


def _of_the_replay(step: int) -> str:
    return reasons.REPLAYED.format(step=step)


def _still(state: RunState) -> str:
    """Return the reason to show if the run has made no progress for `USUAL_S`."""
    if state.now - state.moved_at < USUAL_S:
        return ""
    if state.replay is not None:
        return _of_the_replay(state.replay[1])
    items = list(of_round(state))
    match state.phase:
        case Phase.OFFER:
            return reasons.GRADIENTS.format(names=_names(state, items, Kind.OFFER))
        case Phase.REDUCE:
            return _of_the_reduce(state, items)
        case Phase.COMMIT:
            return reasons.DATABASE
    return _of_the_batch(state)


def _of_the_batch(state: RunState) -> str:
    working = [p for p in state.trainers() if p.reliability.unit.is_running]
    behind = [p for p in state.trainers() if not p.counted[0]]
    if working:
        return reasons.COMPUTING.format(names=name_all(working))
    if behind:
        return reasons.LOADING_BEHIND.format(names=name_all(behind))
    resting = [p for p in state.trainers() if is_asked(state, p.reliability)] or state.trainers()
    return reasons.NOTHING_LEASED.format(names=name_all(resting))


def _of_the_reduce(state: RunState, items: Sequence[Awaited]) -> str:
    if state.round is None or state.round.plan is None:
        return reasons.NO_RELAY
    if not any(item.kind is Kind.SPAN for item in items):
        keeps = any(member.role in KEEPING_ROLES for member in state.listening.values())
        return reasons.RELAY_KEEPS if keeps else reasons.MOST_KEEP
    names = _names(state, items, Kind.SPAN)
    if not any(item.kind is Kind.UPLOAD for item in items):
        return reasons.AVERAGES.format(names=names)
    return reasons.AVERAGES_AND_GRADIENTS.format(names=names, senders=_names(state, items, Kind.UPLOAD))


def _names(state: RunState, items: Iterable[Awaited], kind: Kind) -> str:
    """Name the machines of the items of one kind."""
    peers = {item.peer for item in items if item.kind is kind and item.peer}
    return name_all([state.members[peer] for peer in sorted(peers & state.members.keys())])

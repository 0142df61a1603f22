"""The coordinator: `advance(state, event, now, seed) -> commands`.

Time and chance are arguments; the same function runs under the site, in the simulator and in property tests. It may
change the state it is given: determinism is the contract, not immutability (rule 23). Commands are carried out by the
host in order. Which phase follows which is the table below; every move of `state.phase` is one of its arrows.
"""

import hashlib
from collections import Counter
from typing import assert_never

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator import rounds
from peer_agent.protocol.coordinator.membership import join, leases_for, lose, standing, take_report, take_returned
from peer_agent.protocol.coordinator.settlement import close_round, settle
from peer_agent.protocol.coordinator.state import Member, Phase, RunState
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Snapshot
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.protocol.records import Record

TICK_S = 0.25
SNAPSHOT_S = 60.0  # an elected keeper that has not handed in its state by then is replaced
REPLAY_S = 10.0  # so long somebody who can hand in the last state is waited for
GRACE_ROUNDS = 3
DIGESTS_KEPT = 16  # steps

TRANSITIONS: dict[tuple[Phase, str], tuple[Phase, ...]] = {
    (Phase.ACCUMULATE, "the target batch is reached"): (Phase.OFFER,),
    (Phase.OFFER, "all have offered, or the deadline with a quorum"): (Phase.REDUCE,),
    (Phase.OFFER, "too little was offered"): (Phase.ACCUMULATE,),
    (Phase.REDUCE, "a relay is lost: attempt + 1 on the same offers"): (Phase.REDUCE,),
    (Phase.REDUCE, "a trainer is lost or stuck: drop its slot"): (Phase.REDUCE, Phase.ACCUMULATE),
    (Phase.REDUCE, "no progress, or below the quorum: void"): (Phase.ACCUMULATE,),
    (Phase.REDUCE, "every span is held"): (Phase.COMMIT,),
    (Phase.COMMIT, "the database has it"): (Phase.ACCUMULATE,),
    (Phase.COMMIT, "nothing was written: persist again"): (Phase.COMMIT,),
}


def advance(state: RunState, event: e.Event, now: float, seed: int) -> list[e.Command]:
    """Take one event. `now` is monotonic seconds, `seed` an integer of the host's for what chance decides."""
    _skip_gap(state, now)
    commands = _take(state, event, now, seed)
    commands += _move(state, now)
    # Whoever speaks gets its leases at once, all others with the next tick: looking at all costs too much each time.
    speaker = event.peer if isinstance(event, e.Joined | e.Received) else None
    commands += leases_for(state, now, speaker)
    return commands + _explain(state)


def _skip_gap(state: RunState, now: float) -> None:
    """After a suspended host wakes, deadlines move with the gap, so that nobody is judged for it (rule 22)."""
    if not state.now:
        state.accumulating_since = now
    gap = now - state.now - 3 * TICK_S
    if state.now and gap > 0:
        if state.round is not None:
            state.round.deadline += gap
            state.round.progress = {k: (count, at + gap) for k, (count, at) in state.round.progress.items()}
        for member in state.members.values():
            member.heard_at += gap
        if state.snapshot_from is not None:
            peer, step, asked_at = state.snapshot_from
            state.snapshot_from = peer, step, asked_at + gap
    state.now = max(now, state.now)


def _take(state: RunState, event: e.Event, now: float, seed: int) -> list[e.Command]:
    match event:
        case e.Joined():
            return _join(state, event, now)
        case e.Received():
            return _receive(state, event.peer, event.message, now)
        case e.Lost():
            return _lose(state, event, now)
        case e.Ticked():
            return _keeper(state, now, seed) + _finish(state)
        case e.Reserved():
            state.leases.raise_marks(event.marks)
            state.reserving = False
            return []
        case e.Persisted():
            return _persisted(state, event, now, seed)
        case e.Directed():
            return _direct(state, event)
        case e.SnapshotStored():
            return _stored(state, event.snapshot)
    assert_never(event)


def _direct(state: RunState, event: e.Directed) -> list[e.Command]:
    """The learning rate of every update is in its record, so peers need not know that there are more steps to come."""
    state.goal, before = event.goal, state.goal
    if event.target_steps and event.target_steps != state.recipe.target_steps:
        state.recipe = replace(state.recipe, target_steps=event.target_steps)
        state.recipe_bytes = encode_recipe(state.recipe)
    if event.goal != "finishing" or (before == "finishing" and state.ending_since):
        return []
    state.ending_since = state.now
    return [e.Send(rounds.everyone(state), standing(state))]


def _join(state: RunState, event: e.Joined, now: float) -> list[e.Command]:
    """A reducer with a new session may be a new process, or have lost what it said: its part is planned anew."""
    is_back = event.peer in state.members and rounds.awaits(state, event.peer)
    commands = join(state, event, now)
    return commands + rounds.replan(state, now) if is_back else commands


def _receive(state: RunState, peer: PeerId, message: m.TO_SITE, now: float) -> list[e.Command]:
    member = state.members.get(peer)
    if member is None:
        return []
    member.heard_at, member.silent = now, False
    match message:
        case m.Hello():
            return join(state, e.Joined(peer, member.person, member.machine, member.role, message), now)
        case m.Report():
            return take_report(state, member, message) + _agree(state, member, message)
        case m.Offer():
            return rounds.take_offer(state, member, message)
        case m.SpanDone():
            return rounds.take_span(state, member, message)
        case m.Progress():
            return rounds.take_progress(state, member, message, now)
        case m.SlotRefused():
            return _refused(state, member, message, now)
        case m.UnitsReturned():
            return take_returned(state, member, message)
        case m.Leave():
            return _lose(state, e.Lost(peer), now, leaving=True)
        case m.Have():
            return []
    assert_never(message)


def _lose(state: RunState, event: e.Lost, now: float, *, leaving: bool = False) -> list[e.Command]:
    member = state.members.get(event.peer)
    if member is None:
        return []
    commands = lose(state, member, final=leaving or event.banned)
    plan = state.round.plan if state.round is not None else None
    if state.phase is Phase.REDUCE and plan is not None and any(span.reducer == event.peer for span in plan.spans):
        return commands + rounds.replan(state, now)
    return commands + rounds.withdraw(state, event.peer, now, "was lost")


def _refused(state: RunState, member: Member, refused: m.SlotRefused, now: float) -> list[e.Command]:
    """A reducer found a slot's bytes wrong: the round goes on without it, and its accumulator is started anew."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None or not rounds.is_current(state, refused):
        return []
    if refused.slot >= len(round_.slots) or member not in state.relays():
        return []
    offer = round_.offers[round_.slots[refused.slot].peer]
    sender = state.members.get(round_.slots[refused.slot].peer)
    commands: list[e.Command] = []
    if refused.slot not in round_.dropped:
        commands += rounds.drop(state, refused.slot, now, "sent a damaged gradient")
    if sender is not None and sender.accumulator == offer.accumulator:
        commands += rounds.revoke(state, sender, f"chunk {refused.chunk} was refused ({refused.code})")
    return commands


def _move(state: RunState, now: float) -> list[e.Command]:
    """Whatever can move by itself."""
    match state.phase:
        case Phase.ACCUMULATE if _may_cut(state):
            return rounds.cut(state, now) + _move(state, now)
        case Phase.OFFER:
            return rounds.close_offers(state, now)
        case Phase.REDUCE:
            assert state.round is not None
            planned = [] if state.round.is_planned else rounds.plan(state, now)
            return planned + rounds.watch(state, now)
    return []


def _may_cut(state: RunState) -> bool:
    if state.goal != "running" or state.done or not state.relays():
        return False
    ready = state.ready()
    if not ready or (not state.started and len(ready) < state.recipe.minimum_trainers):
        return False
    return sum(member.done_samples for member in state.awake()) >= state.recipe.target_batch


def _persisted(state: RunState, event: e.Persisted, now: float, seed: int) -> list[e.Command]:
    round_ = state.round
    if state.phase is not Phase.COMMIT or round_ is None or round_.record is None:
        return []
    match event.outcome:
        case "stale":
            return [e.Abdicate()]
        case "failed":
            return [e.Persist(round_.record, state.now - state.accumulating_since, round_.attempts)]
    assert event.sealed is not None
    record = round_.record
    settle(state, record, round_.slots)
    close_round(state, round_)
    state.index, state.step = record.index, record.step
    state.digest = hashlib.sha256(event.sealed.payload).hexdigest()
    state.sealed, state.late_rounds = event.sealed, 0
    state.phase, state.round, state.attempt, state.accumulating_since = Phase.ACCUMULATE, None, 0, now
    state.non_finite = {}
    commands: list[e.Command] = [e.Note("step", _sentence(record))]
    keeper = _elect(state, now, seed) if _snapshot_wanted(state) else None
    for peer in rounds.everyone(state):
        message = m.Commit(run=state.run, fence=state.fence, record=event.sealed, snapshot=peer == keeper)
        commands.append(e.Send((peer,), message))
    return commands + _grace(state)


def _sentence(record: Record) -> str:
    hands = f"{len(record.contributions)} hand{'s' * (len(record.contributions) != 1)}"
    return f"step {record.step}: {hands}, {record.samples} samples, loss {record.loss:.3f}"


def _grace(state: RunState) -> list[e.Command]:
    """Leases outlive a lost session by some rounds, not by wall time (rule 11)."""
    commands: list[e.Command] = []
    for gone in [gone for gone in state.departed.values() if state.rounds - gone.rounds >= GRACE_ROUNDS]:
        del state.departed[gone.accumulator]
        back = state.leases.take_back(gone.accumulator)
        if back:
            commands.append(e.Note("returned", f"{back} samples of a lost machine came back"))
    if state.leases.orphans and state.step >= state.orphans_until:
        state.leases.release_orphans()
    return commands


# --- state digests and snapshots ---------------------------------------------------------------------------------


def _agree(state: RunState, member: Member, report: m.Report) -> list[e.Command]:
    """A replica that differs from the majority reloads and says so; nothing waits for it (rule 17)."""
    if not report.digest or report.step != state.step:
        return []
    reported = state.reported.setdefault(report.step, {})
    reported[member.peer] = report.digest
    for old in [step for step in state.reported if step <= report.step - DIGESTS_KEPT]:
        state.reported.pop(old)
        state.agreed.pop(old, None)
    counts = Counter(reported.values())
    digest, votes = min(counts.items(), key=lambda item: (-item[1], item[0]))
    if 2 * votes <= max(len(reported), len(state.trainers())) and len(state.trainers()) > 1:
        return []
    commands: list[e.Command] = []
    if state.agreed.get(report.step) != digest:
        state.agreed[report.step] = digest
        commands.append(e.Agreed(report.step, digest))
    return commands + [c for peer in sorted(reported) if reported[peer] != digest for c in _reload(state, peer)]


def _reload(state: RunState, peer: PeerId) -> list[e.Command]:
    state.reported[state.step].pop(peer)
    member = state.members.get(peer)
    if member is None:
        return []
    member.step = -1
    text = f"{member.person}'s copy differed at step {state.step}; it reloads"
    return [e.Send((peer,), m.Reload(run=state.run, step=state.step)), e.Note("reload", text)]


def _snapshot_wanted(state: RunState) -> bool:
    due = state.step % state.recipe.snapshot_every == 0 or state.done
    state.snapshot_due = state.snapshot_due or due
    return state.snapshot_due


def _elect(state: RunState, now: float, seed: int) -> PeerId | None:
    """The trainer that hands in its state at this step: another one each time."""
    peers = [member.peer for member in state.trainers() if member.step == state.step - 1]
    if not peers:
        return None
    keeper = peers[(seed + state.step) % len(peers)]
    state.snapshot_from = keeper, state.step, now
    state.snapshot_due = False
    return keeper


def _keeper(state: RunState, now: float, seed: int) -> list[e.Command]:
    """An elected keeper that is gone or slow is replaced; at the last step at once, as no commit will follow."""
    if state.snapshot_from is None:
        missing = state.done and state.snapshot.step < state.step and not state.finished
    else:
        peer, _, asked_at = state.snapshot_from
        missing = peer not in state.members or now - asked_at > SNAPSHOT_S
    if not missing:
        return []
    state.snapshot_from, state.snapshot_due = None, True
    if not state.done or state.sealed is None:
        return []
    ready = [member.peer for member in state.ready()]
    if not ready:
        return _replay(state, now)
    keeper = ready[seed % len(ready)]
    state.snapshot_from, state.snapshot_due = (keeper, state.step, now), False
    return [e.Send((keeper,), m.Commit(run=state.run, fence=state.fence, record=state.sealed, snapshot=True))]


def _replay(state: RunState, now: float) -> list[e.Command]:
    """Ask the site for the last state, and again while it does not come. Whoever hands it in first is believed."""
    if state.replay_at is None:
        state.replay_at = now + REPLAY_S
    if now < state.replay_at:
        return []
    state.replay_at = now + SNAPSHOT_S
    return [e.Replay()]


def _stored(state: RunState, snapshot: Snapshot) -> list[e.Command]:
    if snapshot.index <= state.snapshot.index:
        return []
    keep_after, state.snapshot = state.snapshot.index, snapshot
    if state.snapshot_from is not None and snapshot.step >= state.snapshot_from[1]:
        state.snapshot_from = None
    message = m.Snapshotted(run=state.run, snapshot=snapshot, keep_after=keep_after)
    return [e.Send(rounds.everyone(state), message), *_finish(state)]


def _finish(state: RunState) -> list[e.Command]:
    """The model of the last step is there. With the tick too: the host may have died right after it was stored."""
    if not state.done or not _has_model(state) or state.finished:
        return []
    state.finished = True
    return [e.Finish(), e.Send(rounds.everyone(state), m.State(run=state.run, state="finished", reason=""))]


def _has_model(state: RunState) -> bool:
    """The last step's state is there; or the run was ended, nobody is left to hand that in, and an older one is."""
    if state.snapshot.step == state.step:
        return True
    is_waited_for = state.trainers() or state.now - state.ending_since < SNAPSHOT_S
    return state.goal == "finishing" and not is_waited_for and state.snapshot.step > 0


# --- the sentence ------------------------------------------------------------------------------------------------


def _explain(state: RunState) -> list[e.Command]:
    """Say why nothing moves, whenever that changes."""
    reason = _reason(state)
    if reason == state.waiting:
        return []
    state.waiting = reason
    return [e.Waiting(reason), e.Send(rounds.everyone(state), standing(state))]


def _reason(state: RunState) -> str:
    trainers, ready, needed = len(state.trainers()), len(state.ready()), state.recipe.minimum_trainers
    if state.finished:
        return ""
    if state.done:
        return "" if state.snapshot_from else "the last step is made; the model is handed in or made from the log"
    if state.goal == "paused":
        return "the organizer has paused the run"
    if state.has_diverged:
        return (
            "the model has diverged: no machine gets finite gradients any more; begin again with a lower learning rate"
        )
    if not state.relays():
        return "no relay is connected"
    if not trainers:
        return "needs a volunteer" if state.started or needed == 1 else f"needs {needed} volunteers"
    if not state.started and ready < needed:
        missing = needed - trainers
        more = f"needs {missing} more volunteer{'s' * (missing > 1)}"
        return more if missing > 0 else "volunteers are loading the model"
    return ""

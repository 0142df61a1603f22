"""Find slots and reducers that stall or lag during a reduction. Called on clock ticks."""

from collections.abc import Iterator, Mapping, Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Send
from peer_agent.protocol.coordinator.phases import Why
from peer_agent.protocol.coordinator.round.attempt import chunks_of, has_quorum_without, open_at, open_round
from peer_agent.protocol.coordinator.round.offers import revoke
from peer_agent.protocol.coordinator.round.planning import SLOW_ROUNDS, announce, drop_message
from peer_agent.protocol.coordinator.round.reducing import drop, move_on, replan, strike
from peer_agent.protocol.coordinator.round.voiding import void
from peer_agent.protocol.coordinator.state import Member, Moved, Phase, Round, RunState
from peer_agent.protocol.coordinator.workers.batch import remake_s, usual_s
from peer_agent.protocol.deadlines import batch_chunks, coming_s, waiting_s
from peer_agent.protocol.identifiers import PeerId

STALL_S = 4.0  # minimum seconds without a new chunk before a slot is dropped or a reducer replaced
LEAST_STALL_S = 1.0  # the same for dropping a slot when rounds are short
STALL_CHUNKS = 4.0  # a slot may also pause for as long as faster slots take over this many chunks
WAIT = 4.0  # how long to wait for a slow slot or reducer, as a multiple of the others' time
HEARD_S = 3.0  # minimum seconds without a report before a reducer counts as stopped (one is due every second)
STILL_BATCHES = 2.0  # a reducer may receive nothing for as long as this many batches of each slot should take
REPORT_S = 1.0  # seconds between a reducer's reports
SILENT_REPORTS = 2  # missed reports after which a reducer's whole machine counts as stopped
HANG_S = 3 * STALL_S  # minimum seconds without a chunk at any reducer before an unused one takes over


def take_progress(state: RunState, member: Member, progress: m.Progress) -> list[Command]:
    """Record when a reducer last received a new chunk of each slot."""
    round_ = open_round(state, progress)
    expected = chunks_of(round_).get(member.peer) if round_ is not None else None
    if round_ is None or expected is None:
        return []
    round_.reported[member.peer] = state.now
    slots = round_.progress.setdefault(member.peer, {})
    for slot, said in progress.received:
        chunks, before = min(said, expected), slots.get(slot)
        if before is None and slot < len(round_.slots):
            slots[slot] = before = Moved(0, round_.planned_at if chunks else state.now)
        if before is not None and chunks > before.chunks:
            before.chunks, before.at = chunks, state.now
            move_on(state, round_)
    return []


def watch(state: RunState) -> list[Command]:
    """Drop stopped slots, replace stopped reducers, and void a round that cannot finish. Called on clock ticks."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None:
        return []
    commands = _repeat(state, round_)
    stalled = list(_stalled(state, round_))
    slots = {slot for _, slot in stalled}
    if late := _late_reducers(state, round_, slots):
        silent = _silent(state, round_, late)
        strike(state, late)
        round_.hung |= late
        commands += replan(state)
        left = _spared(state, round_, silent)
        return commands + (_drop_late(state, left) if left else [])
    slots |= set(_slow(state, round_))
    if slots:
        commands += _drop_late(state, sorted(slots))
        if state.phase is not Phase.REDUCE:
            strike(state, {reducer for reducer, _ in stalled})
            return commands
    if state.now >= round_.deadline:
        strike(state, open_at(round_))  # the reducers without progress delayed the others
        state.slow_rounds += 1
        text = "it made no progress" if state.can_reduce() else "there was no relay"
        commands += void(state, Why.STUCK, text)
    return commands


def _repeat(state: RunState, round_: Round) -> list[Command]:
    """Resend messages that may have been lost: plans to stuck reducers and contributors, and drops to reducers."""
    if round_.plan is None or state.now < max(round_.repeat_at, round_.planned_at + STALL_S / 2):
        return []
    round_.repeat_at = state.now + STALL_S
    unfinished = open_at(round_)
    mute = {peer for peer in unfinished if state.now - round_.reported.get(peer, round_.planned_at) >= STALL_S / 2}
    idle = {round_.slots[slot].peer for slot in _not_begun(round_)}
    members = [state.members[peer] for peer in sorted((mute | idle).intersection(state.members))]
    peers = tuple(member.peer for member in members)
    if not peers and not round_.dropped:
        return []
    listeners = m.Listeners(run=state.run, listeners=state.listeners())
    plans: list[Command] = [announce(round_.plan, members), Send(peers, listeners)] if peers else []
    return [*plans, *(drop_message(state, round_, slot) for slot in sorted(round_.dropped))]


def _not_begun(round_: Round) -> Iterator[int]:
    """Yield slots that have sent nothing to a reducer although other slots have sent it chunks."""
    for slots in round_.progress.values():
        if any(moved.chunks for moved in slots.values()):
            yield from (slot for slot, moved in slots.items() if not moved.chunks and slot not in round_.dropped)


def _late_reducers(state: RunState, round_: Round, stalled: set[int]) -> set[PeerId]:
    """Return the reducers to replace: they, or too many of their slots, have stopped, and others can take over.

    The time limit depends on the plan's duration or on the other reducers' times. If no reducer has finished, the limit
    is a guess. The last reducer stays until the deadline, because a slow reducer is better than none.
    """
    if behind := _behind_their_senders(round_):
        return behind
    planned, late = set(chunks_of(round_)), open_at(round_)
    able = {member.peer for member in state.listening.values() if state.may_reduce(member)} - round_.hung
    done = {p for p in planned - late if state.now - round_.reported.get(p, round_.planned_at) < HANG_S} & able
    idle_s, moving_s = state.now - round_.moved_at, round_.moved_at - round_.planned_at
    if done and (mute := {peer for peer in late if _is_mute(state, round_, peer)}):
        return mute
    if done and idle_s > max(STALL_S, moving_s) and (whole := {peer for peer in late if _has_all(round_, peer)}):
        return whole
    if done and (
        idle_s > (_standing_s(round_, late) or max(STALL_S, WAIT * moving_s))
        or not has_quorum_without(state, round_, stalled)
    ):
        return late
    if able - planned and idle_s >= max(HANG_S * 2.0 ** min(state.slow_rounds, SLOW_ROUNDS), WAIT * moving_s):
        return late
    return set()


def _silent(state: RunState, round_: Round, reducers: set[PeerId]) -> set[int]:
    """Return the slots of silent reducers that also stopped sending their own gradients when their reports stopped.

    No more chunks of these slots will arrive.
    """
    silent = set()
    for slot in (number for number, entry in enumerate(round_.slots) if entry.peer in reducers):
        heard_at = round_.reported.get(round_.slots[slot].peer, round_.planned_at)
        moved = [slots[slot].at for slots in round_.progress.values() if slot in slots and slots[slot].chunks]
        has_stopped = max(moved, default=round_.planned_at) - heard_at <= REPORT_S
        if has_stopped and state.now - heard_at >= SILENT_REPORTS * REPORT_S:
            silent.add(slot)
    return silent


def _spared(state: RunState, round_: Round, slots: set[int]) -> list[int]:
    """Return the slots that the new attempt can drop rather than wait for them again."""
    left = sorted(slots - round_.dropped)
    return left if state.phase is Phase.REDUCE and has_quorum_without(state, round_, left) else []


def _has_all(round_: Round, reducer: PeerId) -> bool:
    """Return True if a reducer has all its chunks. If such a reducer is stuck, its process or disk has stopped."""
    slots, expected = round_.progress.get(reducer, {}), chunks_of(round_)[reducer]
    wanted = [slot for slot in range(len(round_.slots)) if slot not in round_.dropped]
    return all(slot in slots and slots[slot].chunks >= expected for slot in wanted)


def _is_mute(state: RunState, round_: Round, reducer: PeerId) -> bool:
    """Return True if a reducer, which should report every second, has not done so for too long."""
    silent_s = state.now - round_.reported.get(reducer, round_.planned_at)
    return silent_s >= (_standing_s(round_, {reducer}) or HEARD_S)


def _behind_their_senders(round_: Round) -> set[PeerId]:
    """Return reducers that receive nothing while their unfinished senders keep sending to other reducers.

    Return none if the plan has no deadlines.
    """
    return {reducer for reducer in open_at(round_) if 0 < _standing_s(round_, {reducer}) <= _ahead_s(round_, reducer)}


def _standing_s(round_: Round, reducers: set[PeerId]) -> float:
    """Return how many seconds these reducers may receive nothing, or 0 if the plan has no deadlines."""
    if round_.plan is None or not round_.plan.sigma or not reducers:
        return 0.0
    return max(HEARD_S, waiting_s(round_.plan), *(_still_s(round_, peer) for peer in reducers))


def _still_s(round_: Round, reducer: PeerId) -> float:
    """Return how many seconds a slot may pause between two batches to a reducer, or 0 if the plan has no deadlines."""
    if round_.plan is None or not round_.plan.sigma:
        return 0.0
    batch = batch_chunks({slot.codec for slot in round_.slots}, round_.plan.chunk_elements)
    return coming_s(round_.plan) * min(1.0, STILL_BATCHES * batch / chunks_of(round_)[reducer])


def _ahead_s(round_: Round, reducer: PeerId) -> float:
    """Return how many seconds a reducer's unfinished senders kept sending to others after it last received a chunk."""
    expected, here = chunks_of(round_)[reducer], round_.progress.get(reducer, {})
    slots = set(range(len(round_.slots))) - round_.dropped
    unfinished = {slot for slot in slots if slot not in here or here[slot].chunks < expected}
    elsewhere = (moved for peer, moved in round_.progress.items() if peer != reducer)
    moved = [each[slot].at for each in elsewhere for slot in unfinished.intersection(each) if each[slot].chunks]
    return max(moved, default=0.0) - max((each.at for each in here.values()), default=round_.planned_at)


def stall_s(state: RunState) -> float:
    """Return how many seconds a slot may send nothing: four, or fewer if batches usually take under a second."""
    usual = usual_s(state)
    return min(STALL_S, max(LEAST_STALL_S, WAIT * usual)) if usual else STALL_S


def _least_s(state: RunState, round_: Round) -> float:
    """Return how many seconds a slot may send nothing. With chunk deadlines, this is at least the plan's wait."""
    timed_s = waiting_s(round_.plan) if round_.plan is not None and round_.plan.sigma else 0.0
    return max(stall_s(state), timed_s)


def _stalled(state: RunState, round_: Round) -> Iterator[tuple[PeerId, int]]:
    """Yield each stalled slot with the reducer reporting it. The time limit depends on the other slots' pace.

    If a reducer receives nothing from any slot, none of its slots counts as stalled.
    """
    for reducer, expected in chunks_of(round_).items():
        least_s = max(_least_s(state, round_), _still_s(round_, reducer))
        slots = {slot: at for slot, at in round_.progress.get(reducer, {}).items() if slot not in round_.dropped}
        last = round_.reported.get(reducer, round_.planned_at)
        if len(slots) < 2 or all(moved.chunks >= expected or last - moved.at < least_s for moved in slots.values()):
            continue
        yield from ((reducer, slot) for slot in _behind(slots, last, round_.planned_at, least_s))


def _slow(state: RunState, round_: Round) -> Iterator[int]:
    """Yield unfinished slots once the finished ones have waited for four times their own sending time.

    If the finished slots lack a quorum, dropping the others would void the round. In that case, wait until the other
    machines could have computed a new batch.
    """
    for reducer, expected in chunks_of(round_).items():
        slots = {slot: at for slot, at in round_.progress.get(reducer, {}).items() if slot not in round_.dropped}
        open_ = {slot for slot, moved in slots.items() if moved.chunks < expected}
        if not open_ or len(open_) == len(slots):
            continue
        done_at = max(slots[slot].at for slot in slots.keys() - open_)
        took_s = done_at - round_.planned_at
        wait_s = max(_least_s(state, round_), WAIT * took_s)
        if not has_quorum_without(state, round_, open_):
            wait_s = max(wait_s, took_s + remake_s(state, round_, open_))
        if round_.reported.get(reducer, round_.planned_at) - done_at >= wait_s:
            yield from open_


def _behind(slots: Mapping[int, Moved], last: float, planned_at: float, least_s: float) -> Iterator[int]:
    """Yield slots that made no progress for four times the usual time per chunk, except those with the most chunks."""
    most = max(moved.chunks for moved in slots.values())
    paces = sorted((moved.at - planned_at) / moved.chunks for moved in slots.values() if moved.chunks)
    for slot, moved in slots.items():
        if moved.chunks >= most:
            continue
        others = paces.copy()
        if moved.chunks:
            others.remove((moved.at - planned_at) / moved.chunks)
        pace = others[(len(others) - 1) // 2]
        if last - moved.at >= max(least_s, STALL_CHUNKS * pace):
            yield slot


def _drop_late(state: RunState, slots: Sequence[int]) -> list[Command]:
    """Drop late slots. On a sender's second miss, also revoke its leases.

    Otherwise, the gradient that the sender carries over would grow too large.
    """
    round_ = state.round
    assert round_ is not None
    commands = drop(state, slots, "stopped sending", is_own_doing=True)
    for peer in (round_.slots[slot].peer for slot in slots):
        sender = state.members.get(peer)
        if sender is None or sender.accumulator != round_.offers[peer].accumulator:
            continue
        if sender.reliability.misses.level > 1:
            commands += revoke(state, sender, "it was too slow again")
    return commands

"""The pace of a reduce: what has moved, what is said again, who is dropped, and which reducers are done without."""

from collections.abc import Iterator, Mapping

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.conduct import struck
from peer_agent.protocol.coordinator.events import Command, Send
from peer_agent.protocol.coordinator.phases import Why
from peer_agent.protocol.coordinator.planning import SLOW_ROUNDS, announce, drop_message
from peer_agent.protocol.coordinator.reducing import chunks_of, drop, move_on, open_round, replan
from peer_agent.protocol.coordinator.rounds import void
from peer_agent.protocol.coordinator.state import Member, Moved, Phase, Round, RunState
from peer_agent.protocol.identifiers import PeerId

STALL_S = 4.0  # without a new chunk, at least, before a slot is dropped
STALL_CHUNKS = 4.0  # or the time in which the faster slots at that reducer get so many chunks
HANG_S = 3 * STALL_S  # without any chunk at a reducer while another is done: longer than it takes to drop a slot there


def take_progress(state: RunState, member: Member, progress: m.Progress) -> list[Command]:
    """Remember when each slot last moved at each reducer."""
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
    """Drop slots that have stopped moving; void a round that cannot finish. With the clock alone."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None:
        return []
    commands = _repeat(state, round_)
    for slot in sorted(set(_stalled(round_))):
        commands += drop(state, slot, "stopped sending", is_own_doing=True)
        if state.phase is not Phase.REDUCE:
            return commands
    if hanging := _hanging(state, round_):
        for peer in sorted(hanging):
            struck(state, state.members[peer].conduct)
        round_.hung |= hanging
        return [*commands, *replan(state, "a relay stands still where another does not; its part is averaged again")]
    if state.now >= round_.deadline:
        _blame(state, round_)
        state.slow_rounds += 1
        text = "it made no progress" if state.can_reduce() else "there was no relay"
        commands += void(state, Why.STUCK, text)
    return commands


def _repeat(state: RunState, round_: Round) -> list[Command]:
    """What shows no effect may have been lost: the plan at a reducer or a contributor, a drop at a reducer."""
    if round_.plan is None or state.now < max(round_.repeat_at, round_.planned_at + STALL_S / 2):
        return []
    round_.repeat_at = state.now + STALL_S
    open_at = {span.reducer for span in round_.plan.spans if not span.root and span.span not in round_.done}
    mute = {peer for peer in open_at if state.now - round_.reported.get(peer, round_.planned_at) >= STALL_S / 2}
    idle = {round_.slots[slot].peer for slot in _not_begun(round_)}
    members = [state.members[peer] for peer in sorted((mute | idle).intersection(state.members))]
    peers = tuple(member.peer for member in members)
    if not peers and not round_.dropped:
        return []
    listeners = m.Listeners(run=state.run, listeners=state.listeners())
    plans: list[Command] = [announce(round_.plan, members), Send(peers, listeners)] if peers else []
    return [*plans, *(drop_message(state, round_, slot) for slot in sorted(round_.dropped))]


def _not_begun(round_: Round) -> Iterator[int]:
    """Slots of which a reducer has nothing while it has something of others."""
    for slots in round_.progress.values():
        if any(moved.chunks for moved in slots.values()):
            yield from (slot for slot, moved in slots.items() if not moved.chunks and slot not in round_.dropped)


def _stalled(round_: Round) -> Iterator[int]:
    """Slots that have stopped, by the reports of a reducer and in its own pace. A frozen reducer accuses nobody."""
    for reducer, expected in chunks_of(round_).items():
        slots = {slot: at for slot, at in round_.progress.get(reducer, {}).items() if slot not in round_.dropped}
        last = round_.reported.get(reducer, round_.planned_at)
        if len(slots) < 2 or all(moved.chunks >= expected or last - moved.at <= STALL_S for moved in slots.values()):
            continue
        yield from _behind(slots, last, round_.planned_at)


def _behind(slots: Mapping[int, Moved], last: float, planned_at: float) -> Iterator[int]:
    """Those that others are ahead of, and that have not moved for four times what a chunk takes with these.

    A slot that is ahead of all others may have to wait for them, so it is never behind.
    """
    most = max(moved.chunks for moved in slots.values())
    paces = sorted((moved.at - planned_at) / moved.chunks for moved in slots.values() if moved.chunks)
    for slot, moved in slots.items():
        if moved.chunks >= most:
            continue
        others = paces.copy()
        if moved.chunks:
            others.remove((moved.at - planned_at) / moved.chunks)
        pace = others[(len(others) - 1) // 2]
        if last - moved.at > max(STALL_S, STALL_CHUNKS * pace):
            yield slot


def _hanging(state: RunState, round_: Round) -> set[PeerId]:
    """Reducers at which nothing has moved for long, where one is there that is done or has no part: it takes theirs.

    The last one is left to the deadline, as one that is slow is better than none.
    """
    open_at, expected = chunks_of(round_, round_.done), chunks_of(round_)
    able = {member.peer for member in state.listening.values() if member.reduces} - round_.hung
    silent = {peer for peer in expected if state.now - round_.reported.get(peer, round_.planned_at) >= HANG_S}
    if not able - open_at.keys() - silent:
        return set()
    limit = HANG_S * 2.0 ** min(state.slow_rounds, SLOW_ROUNDS)
    moves = {peer: [moved.at for moved in round_.progress.get(peer, {}).values()] for peer in open_at}
    still = {peer for peer, at in moves.items() if state.now - max([round_.planned_at, *at]) >= limit}
    return still & able


def _blame(state: RunState, round_: Round) -> None:
    """Reducers at which nothing moved kept the others waiting: they are planned no part for some rounds."""
    if round_.plan is None:
        return
    open_at = {span.reducer for span in round_.plan.spans if not span.root and span.span not in round_.done}
    for peer in sorted(open_at.intersection(state.members)):
        struck(state, state.members[peer].conduct)

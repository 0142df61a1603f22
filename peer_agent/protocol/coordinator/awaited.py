"""List what the coordinator waits for: who or what, since when, and when it is overdue.

Every time limit of the coordinator is the due time of an item. `decisions` is the table of what follows, and `holds`
answers whether a fact of the table is true. Listing changes nothing. Times are seconds of `RunState.now`.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from peer_agent.protocol.coordinator.agreement.digests import REPLAY_AGAIN_S
from peer_agent.protocol.coordinator.decisions import Fact, Kind
from peer_agent.protocol.coordinator.reliability import Reliability
from peer_agent.protocol.coordinator.round.attempt import chunks_of, has_quorum_without, open_at
from peer_agent.protocol.coordinator.round.offers import has_enough
from peer_agent.protocol.coordinator.round.reducing import is_durable, is_one_word, person_of
from peer_agent.protocol.coordinator.state import Member, Phase, Round, RunState, Seen
from peer_agent.protocol.coordinator.workers.batch import batch_limit_s, remake_s, usual_s
from peer_agent.protocol.coordinator.workers.counts import unit_limit_s
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import (
    LONGEST_S,
    MISSED_REPORTS,
    OTHERS,
    PAUSE_S,
    REPORT_S,
    ROUND_TRIP_S,
    SILENT_S,
    STILL_BATCHES,
    SUSPECTED,
    UNAVAILABLE,
    backoff_s,
    batch_chunks,
    coming_s,
    waiting_s,
)

HEARD_S = MISSED_REPORTS * REPORT_S  # without a report or a chunk before a reducer is looked at


class Awaited(Struct, frozen=True):
    """One item. `at`: the reducer that waits for the gradient in `slot`. `facts`: those that the time limit implies."""

    kind: Kind
    since_s: float
    due_s: float
    peer: PeerId | None = None
    at: PeerId | None = None
    slot: int = -1
    facts: frozenset[Fact] = frozenset()


def of_round(state: RunState, by_s: float = math.inf) -> Iterator[Awaited]:
    """Yield what the open phase waits for and that is due by `by_s`. O(reducers * slots)."""
    round_ = state.round
    match state.phase:
        case Phase.ACCUMULATE:
            yield from _due(by_s, Awaited(Kind.BATCH, state.accumulating_since, _batch_due_s(state)))
        case Phase.OFFER if round_ is not None and round_.deadline <= by_s:
            facts = frozenset[Fact]() if has_enough(state, round_) else frozenset({Fact.REQUIRED})
            for peer in sorted(round_.waiting):
                yield Awaited(Kind.OFFER, round_.cut_at, round_.deadline, peer, facts=facts)
        case Phase.REDUCE if round_ is not None:
            yield from _of_reduction(state, round_, by_s)
        case Phase.COMMIT if round_ is not None and round_.persist_at is not None:
            yield from _due(by_s, Awaited(Kind.WRITE, round_.persist_at - round_.persist_pause_s, round_.persist_at))


def of_replicas(state: RunState) -> Iterator[Awaited]:
    """Yield the replicas that a full batch waits for."""
    for peer in state.replicas.peers:
        yield Awaited(Kind.REPLICA, state.replicas.since, state.replicas.until, peer)


def of_run(state: RunState, by_s: float = math.inf) -> Iterator[Awaited]:
    """Yield what the run waits for between rounds as well, and that is due by `by_s`: a snapshot and majorities."""
    keeper = state.keeper
    if keeper is not None:
        due_s = keeper.asked_at + LONGEST_S if keeper.peer in state.members else state.now
        yield from _due(by_s, Awaited(Kind.SNAPSHOT, keeper.asked_at, due_s, keeper.peer))
    elif state.done and state.snapshot.step < state.step and not state.finished:
        yield Awaited(Kind.SNAPSHOT, state.now, state.now)
    if state.split_since is not None:
        again_s = state.replay[2] + REPLAY_AGAIN_S if state.replay is not None else 0.0
        yield from _due(by_s, Awaited(Kind.DIGEST, state.split_since, max(state.split_since + SILENT_S, again_s)))
    split_since = state.hashes[2].split_since if state.hashes is not None else None
    if split_since is not None and state.hashes is not None and state.admitted < state.hashes[0]:
        yield from _due(by_s, Awaited(Kind.HASH, split_since, split_since + SILENT_S))


def of_member(state: RunState, member: Member, by_s: float = math.inf) -> Iterator[Awaited]:
    """Yield what a member owes and that is due by `by_s`: a word, and if it trains, its next unit or the model."""
    gone_s = member.heard_at + SILENT_S
    if gone_s <= by_s:
        yield Awaited(Kind.SESSION, member.heard_at, gone_s, member.peer)
    if not member.trains or gone_s <= state.now:
        return
    record, is_ready = member.reliability, member.counted[0]
    since_s = state.now - record.unit.read(state.now)
    limit_s = math.inf if record.is_silent else unit_limit_s(state, record)
    due_s = since_s + min(limit_s, _hello_s(state, record) if is_ready else math.inf)
    if due_s <= by_s:
        yield Awaited(Kind.UNIT, since_s, due_s, member.peer)
    if not is_ready and not 0 <= member.log_index < state.index:
        asked_s = max(member.joined_at, member.load_asked_at)
        yield from _due(by_s, Awaited(Kind.LOAD, asked_s, asked_s + SILENT_S, member.peer))


def holds(state: RunState, item: Awaited, fact: Fact) -> bool:
    """Return True if the fact holds for an overdue item."""
    return fact in item.facts or (fact in _HOLDS and _HOLDS[fact](state, item))


def _due(by_s: float, item: Awaited) -> Iterator[Awaited]:
    if item.due_s <= by_s:
        yield item


def _batch_due_s(state: RunState) -> float:
    return math.inf if state.quotas_raised else state.accumulating_since + batch_limit_s(state)


def _hello_s(state: RunState, record: Reliability) -> float:
    """Return after how many seconds without a delivery to ask for a hello: twice as many after each request."""
    usual_s = record.unit_s(state.recipe.micro_batch)
    return 2.0**record.asked * (max(ROUND_TRIP_S, SUSPECTED * usual_s) if usual_s else UNAVAILABLE * ROUND_TRIP_S)


# --- a reduction


def _of_reduction(state: RunState, round_: Round, by_s: float) -> Iterator[Awaited]:
    for reducer in sorted(open_at(round_)) if round_.is_planned else ():
        since_s = min(round_.reported_at(reducer), _moved_at(round_, reducer))
        yield from _due(by_s, Awaited(Kind.SPAN, since_s, since_s + HEARD_S, reducer))
    if round_.is_planned:
        yield from _of_uploads(state, round_, by_s)
    if round_.done_at is not None:
        yield from _due(by_s, Awaited(Kind.COPY, round_.done_at, round_.done_at + ROUND_TRIP_S))
    yield from _due(by_s, Awaited(Kind.ROUND, round_.moved_at, round_.deadline))


def _of_uploads(state: RunState, round_: Round, by_s: float) -> Iterator[Awaited]:
    uploads = [item for reducer in chunks_of(round_) for item in _uploads(state, round_, reducer, by_s)]
    stopped = {item.slot for item in uploads if Fact.STOPPED in item.facts}
    accusers: dict[int, set[PeerId]] = {}
    for item in uploads:
        accusers.setdefault(item.slot, set()).update({item.at} if item.at else ())
    disputed = {slot for slot, peers in accusers.items() if _is_disputed(state, round_, slot, peers)}
    is_required = bool(stopped) and not has_quorum_without(state, round_, stopped)
    shared = {Fact.OTHER_DONE} if uploads and _is_another_done(state, uploads[0]) else set()
    for item in uploads:
        facts = item.facts | shared | ({Fact.REQUIRED} if is_required and item.slot in stopped else set())
        yield replace(item, facts=facts | ({Fact.DISPUTED} if item.slot in disputed else set()))


def _moved_at(round_: Round, reducer: PeerId) -> float:
    """Return when a reducer last received a chunk, or when the attempt was planned."""
    return max((seen.at for seen in round_.seen_at(reducer).values() if seen.chunks), default=round_.planned_at)


def _uploads(state: RunState, round_: Round, reducer: PeerId, by_s: float) -> Iterator[Awaited]:
    """Yield the slots that are behind the others at a reducer.

    A slot that sends nothing may pause for a time that depends on the others' pace. A slot that is not finished may
    take four times as long as those that are. Time counts up to the reducer's last report, so that a stopped
    reducer accuses no slot.
    """
    expected, slots = chunks_of(round_)[reducer], round_.seen_at(reducer)
    slots = {slot: seen for slot, seen in slots.items() if slot not in round_.dropped}
    most = max((seen.chunks for seen in slots.values()), default=0)
    unseen_s = state.now - round_.reported_at(reducer)
    pause_s, open_ = _pause_s(state, round_, reducer), {n for n, seen in slots.items() if seen.chunks < expected}
    finished_s = unseen_s + _unfinished_due_s(state, round_, slots, open_, by_s - unseen_s)
    paces = sorted((seen.at - round_.planned_at) / seen.chunks for seen in slots.values() if seen.chunks)
    for slot in sorted(open_):
        seen = slots[slot]
        if seen.chunks >= most:
            continue
        stopped_s = unseen_s + seen.at + pause_s
        if stopped_s <= by_s:
            stopped_s = unseen_s + seen.at + max(pause_s, OTHERS * _others_pace(paces, seen, round_.planned_at))
        due_s, now_s = min(stopped_s, finished_s), min(by_s, state.now)
        if due_s <= by_s:
            late = ((Fact.STOPPED, stopped_s), (Fact.UNFINISHED, finished_s))
            facts = frozenset(fact for fact, at_s in late if at_s <= now_s)
            yield Awaited(Kind.UPLOAD, seen.at, due_s, round_.slots[slot].peer, reducer, slot, facts)


def _unfinished_due_s(state: RunState, round_: Round, slots: Mapping[int, Seen], open_: set[int], by_s: float) -> float:
    """Return when the unfinished slots of a reducer are overdue, or infinity if no slot has finished.

    If the finished slots lack a quorum, dropping the others would void the round. In that case, wait until the other
    machines could have computed a new batch.
    """
    if not open_ or len(open_) == len(slots):
        return math.inf
    done_s = max(slots[slot].at for slot in slots.keys() - open_)
    took_s = done_s - round_.planned_at
    wait_s = max(_wait_s(state, round_), OTHERS * took_s)
    if done_s + wait_s <= by_s and not has_quorum_without(state, round_, open_):
        wait_s = max(wait_s, took_s + remake_s(state, round_, open_))
    return done_s + wait_s


def _others_pace(paces: Sequence[float], seen: Seen, planned_s: float) -> float:
    """Return the lower median of the other slots' seconds per chunk. `paces`: those of all slots at the reducer."""
    own = bisect_left(paces, (seen.at - planned_s) / seen.chunks) if seen.chunks else len(paces)
    middle = (len(paces) - (own < len(paces)) - 1) // 2
    return paces[middle + (middle >= own)]


def _wait_s(state: RunState, round_: Round) -> float:
    """Return how many seconds a slot may send nothing. With deadlines for chunks, this is at least the plan's wait."""
    usual = usual_s(state)
    short_s = min(PAUSE_S, max(REPORT_S, OTHERS * usual)) if usual else PAUSE_S
    return max(short_s, waiting_s(round_.plan)) if round_.plan is not None and round_.plan.sigma else short_s


def _pause_s(state: RunState, round_: Round, reducer: PeerId) -> float:
    """Return how many seconds a slot may send nothing to a reducer, including the time between two batches."""
    return max(_wait_s(state, round_), still_s(round_, reducer))


def still_s(round_: Round, reducer: PeerId) -> float:
    """Return how many seconds a slot may pause between two batches to a reducer, or 0 if the plan has no deadlines."""
    if round_.plan is None or not round_.plan.sigma:
        return 0.0
    batch = batch_chunks({slot.codec for slot in round_.slots}, round_.plan.chunk_elements)
    return coming_s(round_.plan) * min(1.0, STILL_BATCHES * batch / chunks_of(round_)[reducer])


def _is_disputed(state: RunState, round_: Round, slot: int, accusers: Collection[PeerId]) -> bool:
    """Return True if only one person's reducers find a slot overdue, and it is whole or moves at another reducer.

    That reducer must have reported lately, and belong to neither the accusers' nor the sender's person.
    """
    if not is_one_word(state, round_, accusers):
        return False
    expected, sender = chunks_of(round_), person_of(state, round_, round_.slots[slot].peer)
    for reducer in expected.keys() - set(accusers):
        seen, reported_s = round_.seen_at(reducer).get(slot), round_.reported_at(reducer)
        if seen is None or state.now - reported_s >= HEARD_S or person_of(state, round_, reducer) == sender:
            continue
        if seen.chunks >= expected[reducer] or reported_s - seen.at < _pause_s(state, round_, reducer):
            return True
    return False


def _are_missing_disputed(state: RunState, item: Awaited) -> bool:
    """Return True if all slots that a reducer lacks are disputed: it may not be to blame for standing still.

    A gradient's item already says whether the gradient is disputed, because that depends on all its accusers.
    """
    if item.kind is not Kind.SPAN:
        return False
    round_, reducer = _reduced(state, item)
    here, expected = round_.seen_at(reducer), chunks_of(round_)[reducer]
    missing = [n for n, seen in here.items() if seen.chunks < expected and n not in round_.dropped]
    return bool(missing) and all(_is_disputed(state, round_, slot, {reducer}) for slot in missing)


# --- facts about reducers


def _standing_s(round_: Round, reducers: Collection[PeerId]) -> float:
    """Return how many seconds these reducers may receive nothing, or 0 if the plan has no deadlines."""
    if round_.plan is None or not round_.plan.sigma or not reducers:
        return 0.0
    return max(HEARD_S, waiting_s(round_.plan), *(still_s(round_, peer) for peer in reducers))


def _is_isolated(state: RunState, item: Awaited) -> bool:
    """Return True if a reducer's unfinished senders kept sending to others after it last received a chunk.

    A plan without deadlines isolates no reducer.
    """
    round_, reducer = _reduced(state, item)
    expected, here = chunks_of(round_)[reducer], round_.seen_at(reducer)
    slots = set(range(len(round_.slots))) - round_.dropped
    unfinished = {slot for slot in slots if slot not in here or here[slot].chunks < expected}
    elsewhere = (reduction.slots for peer, reduction in round_.reductions.items() if peer != reducer)
    moved = [each[slot].at for each in elsewhere for slot in unfinished.intersection(each) if each[slot].chunks]
    last_s = max((each.at for each in here.values()), default=round_.planned_at)
    return 0 < _standing_s(round_, {reducer}) <= max(moved, default=0.0) - last_s


def _is_silent(state: RunState, item: Awaited) -> bool:
    """Return True if a reducer, which should report every second, has not done so for too long."""
    round_, reducer = _reduced(state, item)
    return state.now - round_.reported_at(reducer) >= (_standing_s(round_, {reducer}) or HEARD_S)


def _is_complete(state: RunState, item: Awaited) -> bool:
    """Return True if a reducer has all its chunks and still does not finish. Its process or disk has stopped."""
    round_, reducer = _reduced(state, item)
    slots, expected = round_.seen_at(reducer), chunks_of(round_)[reducer]
    wanted = [slot for slot in range(len(round_.slots)) if slot not in round_.dropped]
    has_all = all(slot in slots and slots[slot].chunks >= expected for slot in wanted)
    return has_all and _idle_s(state, round_) > max(PAUSE_S, _moving_s(round_))


def _is_long(state: RunState, item: Awaited) -> bool:
    """Return True if no reducer has received anything for longer than the plan, or the others' times, allow."""
    round_, _ = _reduced(state, item)
    return _idle_s(state, round_) > (_standing_s(round_, open_at(round_)) or max(PAUSE_S, OTHERS * _moving_s(round_)))


def _is_stuck(state: RunState, item: Awaited) -> bool:
    """Return True if nothing has moved for far too long: twice as long after each void round without progress."""
    round_, _ = _reduced(state, item)
    limit_s = backoff_s(MISSED_REPORTS * PAUSE_S, state.timings.failures[Kind.ROUND])
    return _idle_s(state, round_) >= max(limit_s, OTHERS * _moving_s(round_))


def _is_another_done(state: RunState, item: Awaited) -> bool:
    """Return True if another reducer has finished its part, was heard of lately, and can take over."""
    round_, _ = _reduced(state, item)
    done = chunks_of(round_).keys() - open_at(round_)
    heard = (peer for peer in done if state.now - round_.reported_at(peer) < MISSED_REPORTS * PAUSE_S)
    return not _able(state, round_).isdisjoint(heard)


def _is_another_free(state: RunState, item: Awaited) -> bool:
    """Return True if a reducer without a part of this plan can take over."""
    round_, _ = _reduced(state, item)
    return bool(_able(state, round_) - chunks_of(round_).keys())


def _able(state: RunState, round_: Round) -> set[PeerId]:
    return {member.peer for member in state.listening.values() if state.may_reduce(member)} - round_.excluded


def _idle_s(state: RunState, round_: Round) -> float:
    return state.now - round_.moved_at


def _moving_s(round_: Round) -> float:
    return round_.moved_at - round_.planned_at


def _reduced(state: RunState, item: Awaited) -> tuple[Round, PeerId]:
    reducer = item.at or item.peer
    assert state.round is not None
    assert reducer is not None
    return state.round, reducer


# --- facts about others


def _is_unavailable(state: RunState, item: Awaited) -> bool:
    """Return True if a machine has delivered nothing for so long that it is no longer counted on."""
    assert item.peer is not None
    record = state.members[item.peer].reliability
    return not record.is_silent and record.unit.read(state.now) >= unit_limit_s(state, record)


def _is_durable(state: RunState, _: Awaited) -> bool:
    return state.round is not None and is_durable(state, state.round)


_HOLDS: Mapping[Fact, Callable[[RunState, Awaited], bool]] = {
    Fact.UNAVAILABLE: _is_unavailable,
    Fact.DISPUTED: _are_missing_disputed,
    Fact.ISOLATED: _is_isolated,
    Fact.SILENT: _is_silent,
    Fact.COMPLETE: _is_complete,
    Fact.LONG: _is_long,
    Fact.STUCK: _is_stuck,
    Fact.OTHER_DONE: _is_another_done,
    Fact.OTHER_FREE: _is_another_free,
    Fact.DURABLE: _is_durable,
}

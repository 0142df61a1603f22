"""Carry out the table: decide about whatever is overdue, and do what the rows say. Called on clock ticks."""

from collections.abc import Callable, Collection, Iterable, Sequence

from peer_agent.protocol.coordinator.agreement.digests import replay_for_digest
from peer_agent.protocol.coordinator.agreement.snapshots import elect_again, replay_for_hash
from peer_agent.protocol.coordinator.awaited import Awaited, holds, of_replicas, still_s
from peer_agent.protocol.coordinator.decisions import ROWS, Action, Fact, Kind, Row, decide
from peer_agent.protocol.coordinator.events import Command, Note
from peer_agent.protocol.coordinator.membership import lose
from peer_agent.protocol.coordinator.phases import Why
from peer_agent.protocol.coordinator.reliability import Failure
from peer_agent.protocol.coordinator.reports import ask_once
from peer_agent.protocol.coordinator.round.attempt import chunks_of, has_quorum_without, open_at
from peer_agent.protocol.coordinator.round.committing import commit, persist_again
from peer_agent.protocol.coordinator.round.offers import plan_offers, revoke, void_offers
from peer_agent.protocol.coordinator.round.reducing import blame_all, blame_for_standstill, dispute, drop, exclude
from peer_agent.protocol.coordinator.round.voiding import void
from peer_agent.protocol.coordinator.state import Phase, Round, RunState
from peer_agent.protocol.coordinator.workers.counts import look_soon, suspend
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import MISSED_REPORTS, REPORT_S, SILENT_S, STILL_BATCHES, STOPPED_S, UNHEARD_S


def act(state: RunState, overdue: Iterable[Awaited], seed: int) -> list[Command]:
    """Carry out what the table says about these items, row by row, until the phase or the attempt changes."""
    decided: dict[Row, list[Awaited]] = {}
    for item in overdue:
        row = row_for(state, item)
        if row is not None and row.action is not Action.WAIT:
            decided.setdefault(row, []).append(item)
    commands: list[Command] = []
    for row in sorted(decided, key=ROWS.index):
        before = state.phase, state.attempt
        commands += CARRIED_OUT_BY[row.kind, row.action](state, row, decided[row], seed)
        if (state.phase, state.attempt) != before:
            break
    return commands


def row_for(state: RunState, item: Awaited) -> Row | None:
    """Return the table's row for an overdue item, or None if the coordinator goes on waiting for it."""
    return decide(item.kind, lambda fact: holds(state, item, fact))


def awaits_replicas(state: RunState) -> bool:
    """Return True if a round that began now would leave out a replica that is about to apply the update."""
    if not state.replicas.peers:
        return False
    return state.now < state.replicas.until or any(row_for(state, item) is None for item in of_replicas(state))


# --- members


def _evict(state: RunState, _: Row, items: Sequence[Awaited], __: int) -> list[Command]:
    commands: list[Command] = []
    for member in (state.members[item.peer] for item in items if item.peer in state.members):
        text = f"nothing was heard of {member.name} for {SILENT_S:.0f} seconds"
        commands += [Note("evicted", text, (member.person,)), *lose(state, member, final=False)]
    return commands


def _suspend(state: RunState, _: Row, items: Sequence[Awaited], __: int) -> list[Command]:
    return [c for item in items if item.peer is not None for c in suspend(state, state.members[item.peer])]


def _ask_hello(state: RunState, _: Row, items: Sequence[Awaited], __: int) -> list[Command]:
    commands: list[Command] = []
    for item in items:
        assert item.peer is not None
        member = state.members[item.peer]
        if item.kind is Kind.UNIT:
            member.reliability.asked += 1
        else:
            member.load_asked_at = state.now
        commands += ask_once(state, member)
    return commands


# --- batches and offers


def _raise_quotas(state: RunState, _: Row, __: Sequence[Awaited], ___: int) -> list[Command]:
    state.quotas_raised = True
    look_soon(state)
    return []


def _void_offers(state: RunState, row: Row, items: Sequence[Awaited], _: int) -> list[Command]:
    _blame(state, row, items)
    return void_offers(state)


def _plan_offers(state: RunState, row: Row, items: Sequence[Awaited], seed: int) -> list[Command]:
    _blame(state, row, items)
    return plan_offers(state, seed)


# --- reductions


def _replace(state: RunState, row: Row, items: Sequence[Awaited], _: int) -> list[Command]:
    """Give the parts of reducers to others. If such a reducer has also stopped sending its gradient, drop the gradient.

    If relays' word about a gradient would void the round, all unfinished reducers are replaced.
    """
    round_ = state.round
    assert round_ is not None
    accusers = {peer for item in items if (peer := item.at or item.peer)}
    late = accusers if row.failure is None or row.kind is Kind.SPAN else open_at(round_)
    stopped = _stopped_with(state, round_, late)
    for reducer, slot in disputed_by(round_, items) if Fact.DISPUTED in row.facts else ():
        dispute(state, reducer, round_.slots[slot].peer)
    commands = exclude(state, late, row.failure)
    spare = sorted(stopped - round_.dropped)
    if spare and state.phase is Phase.REDUCE and has_quorum_without(state, round_, spare):
        commands += _drop_stopped(state, spare, Failure.MISSED)
    return commands


def disputed_by(round_: Round, items: Iterable[Awaited]) -> set[tuple[PeerId, int]]:
    """Return one disputed slot for each reducer that these items replace."""
    found: dict[PeerId, int] = {}
    for item in items:
        if item.at is not None:
            found.setdefault(item.at, item.slot)
        elif item.peer is not None:
            expected, here = chunks_of(round_).get(item.peer, 0), round_.seen_at(item.peer)
            missing = (slot for slot, seen in sorted(here.items()) if seen.chunks < expected)
            found.setdefault(item.peer, next(slot for slot in missing if slot not in round_.dropped))
    return set(found.items())


def _stopped_with(state: RunState, round_: Round, reducers: Collection[PeerId]) -> set[int]:
    """Return the slots of these reducers' machines that have stopped, and send no more of their own gradients.

    Either nothing at all was heard of the machine, although the rest of its gradient may still arrive from its sockets;
    or it has not reported as a reducer, and none of its gradient has arrived.
    """
    batch_s = max(still_s(round_, reducer) for reducer in chunks_of(round_)) / STILL_BATCHES
    pause_s = max(STOPPED_S, batch_s)  # a sender may pause for as long between two batches
    stopped = set()
    for slot in (number for number, entry in enumerate(round_.slots) if entry.peer in reducers):
        heard_at = round_.reported_at(round_.slots[slot].peer)
        seen = [each.slots[slot] for each in round_.reductions.values() if slot in each.slots]
        moved_at = max((each.at for each in seen if each.chunks), default=round_.planned_at)
        is_still = state.now - heard_at >= (MISSED_REPORTS - 1) * REPORT_S and state.now - moved_at >= pause_s
        member = state.members.get(round_.slots[slot].peer)
        if is_still or member is None or state.now - member.heard_at >= UNHEARD_S:
            stopped.add(slot)
    return stopped


def _drop(state: RunState, row: Row, items: Sequence[Awaited], _: int) -> list[Command]:
    """Drop slots. If that voids the round, the reducers that reported the slots as stopped are to blame as well."""
    commands = _drop_stopped(state, sorted({item.slot for item in items}), row.failure)
    if state.phase is not Phase.REDUCE:
        blame_all(state, {item.at for item in items if item.at and Fact.STOPPED in item.facts}, Failure.FAILED)
    return commands


def _drop_stopped(state: RunState, slots: Sequence[int], failure: Failure | None) -> list[Command]:
    """Drop slots whose senders have stopped. On a sender's second miss, also revoke its leases.

    Otherwise, the gradient that the sender carries over would grow too large.
    """
    round_ = state.round
    assert round_ is not None
    commands = drop(state, slots, "stopped sending", failure)
    for peer in (round_.slots[slot].peer for slot in slots):
        sender = state.members.get(peer)
        if sender is None or sender.accumulator != round_.offers[peer].accumulator:
            continue
        if sender.reliability.misses.level > 1:
            commands += revoke(state, sender, "it was too slow again")
    return commands


def _commit(state: RunState, _: Row, __: Sequence[Awaited], ___: int) -> list[Command]:
    return commit(state)


def _void_round(state: RunState, row: Row, _: Sequence[Awaited], __: int) -> list[Command]:
    """End a round in which nothing moves."""
    assert state.round is not None
    if row.failure is not None:
        blame_for_standstill(state, state.round, row.failure)
    state.timings.failures[Kind.ROUND] += 1
    return void(state, Why.STUCK, "it made no progress" if state.can_reduce() else "there was no relay")


def _blame(state: RunState, row: Row, items: Sequence[Awaited]) -> None:
    if row.failure is not None:
        blame_all(state, (item.peer for item in items if item.peer), row.failure)


CARRIED_OUT_BY: dict[tuple[Kind, Action], Callable[[RunState, Row, Sequence[Awaited], int], list[Command]]] = {
    (Kind.SESSION, Action.EVICT): _evict,
    (Kind.UNIT, Action.SUSPEND): _suspend,
    (Kind.UNIT, Action.ASK_HELLO): _ask_hello,
    (Kind.LOAD, Action.ASK_HELLO): _ask_hello,
    (Kind.BATCH, Action.RAISE_QUOTAS): _raise_quotas,
    (Kind.OFFER, Action.VOID): _void_offers,
    (Kind.OFFER, Action.PROCEED): _plan_offers,
    (Kind.SPAN, Action.REPLACE): _replace,
    (Kind.UPLOAD, Action.REPLACE): _replace,
    (Kind.UPLOAD, Action.DROP): _drop,
    (Kind.COPY, Action.COMMIT): _commit,
    (Kind.ROUND, Action.VOID): _void_round,
    (Kind.WRITE, Action.PERSIST): lambda state, *_: persist_again(state),
    (Kind.SNAPSHOT, Action.ELECT): lambda state, _, __, seed: elect_again(state, seed),
    (Kind.DIGEST, Action.REPLAY): lambda state, *_: replay_for_digest(state),
    (Kind.HASH, Action.REPLAY): lambda state, *_: replay_for_hash(state),
}

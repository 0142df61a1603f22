"""Carry out a plan: track which spans are averaged and stored, and which slots are lost or left out."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol.codec_sizes import ERROR
from peer_agent.protocol.coordinator.decisions import Action, Fact, Kind, Row, decide
from peer_agent.protocol.coordinator.events import Command, Note
from peer_agent.protocol.coordinator.phases import Why, enter
from peer_agent.protocol.coordinator.reliability import Failure, Reliability
from peer_agent.protocol.coordinator.round.attempt import (
    chunks_of,
    has_delivered,
    has_quorum,
    has_quorum_without,
    norm_limit,
    open_at,
    open_round,
)
from peer_agent.protocol.coordinator.round.committing import commit
from peer_agent.protocol.coordinator.round.lateness import dispensable, is_behind, left_behind, left_out, may_be_behind
from peer_agent.protocol.coordinator.round.offers import revoke
from peer_agent.protocol.coordinator.round.planning import drop_message, holders_of, kept_spans, patience_s, plan
from peer_agent.protocol.coordinator.round.voiding import void
from peer_agent.protocol.coordinator.state import (
    KEEPING_ROLES,
    Member,
    Phase,
    Reduction,
    Round,
    RunState,
    Seen,
    name_all,
)
from peer_agent.protocol.coordinator.workers.counts import blame
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import SUM_TOLERANCE, Leaf, root_of
from peer_agent.protocol.timing import REPORT_S

LOOKS = 64  # check for a second copy after each of this many reports, then this many more times, evenly spaced
ROUNDING = 1.01  # allowance for float32 sums over up to 2^16 slots


def take_progress(state: RunState, member: Member, progress: m.Progress) -> list[Command]:
    """Record when a reducer last received chunks of each slot. Drop slots that are behind at two people's reducers."""
    round_ = open_round(state, progress)
    expected = chunks_of(round_).get(member.peer) if round_ is not None else None
    if round_ is None or expected is None:
        return []
    reduction = round_.reductions.setdefault(member.peer, Reduction(state.now))
    reduction.reported_at, slots = state.now, reduction.slots
    for slot, said in progress.received:
        chunks, before = min(said, expected), slots.get(slot)
        if before is None and slot < len(round_.slots):
            slots[slot] = before = Seen(0, round_.planned_at if chunks else state.now)
        if before is not None and chunks > before.chunks:
            before.chunks, before.at = chunks, state.now
            move_on(state, round_)
    new = {slot for slot in progress.behind if member.peer not in round_.behind_at.get(slot, ())}
    rows = _decided(state, round_, may_be_behind(state, round_, member.peer, new), member.peer) if new else {}
    left = dispensable(state, round_, rows) if rows else set()
    return _drop_late(state, round_, {slot: rows[slot] for slot in left})


def take_span(state: RunState, member: Member, done: m.SpanDone) -> list[Command]:
    """Record that a reducer has averaged a span. Write the commit record once all spans are stored.

    Refuse a report that cannot be true, and give the reducer's spans to others.
    """
    round_ = open_round(state, done)
    planned = _planned(round_, done.span)
    if round_ is None or planned is None or planned.reducer != member.peer or planned.root:
        return []
    round_.reductions.setdefault(member.peer, Reduction(state.now)).reported_at = state.now
    if done.span in round_.done:
        return []
    if not _is_sound(round_, planned, done):
        return _distrust(state, round_, member.peer, "reported a span that does not fit the plan")
    if not _is_possible(state, round_, member.peer, done):
        return _distrust(state, round_, member.peer, "reported a span larger than the gradients in it")
    round_.done[done.span] = done
    move_on(state, round_)
    return _leave_behind(state, round_, done, member.peer) + _commit_when_held(state, round_)


def take_have(state: RunState, member: Member, have: m.Have) -> list[Command]:
    """Record that a log keeper has a span's averages on its disk (rule 5).

    If a relay's sum of squares differs from the reducer's, quarantine the reducer and average its spans again.
    """
    round_ = open_round(state, have)
    planned = _planned(round_, have.span)
    if round_ is None or planned is None or not member.keeps_log:
        return []
    done = round_.done.get(have.span)
    if done is None or done.root != have.root:
        return []
    if not math.isclose(done.sum_squares, have.sum_squares, rel_tol=SUM_TOLERANCE):
        is_proof = planned.reducer != member.peer and _is_relay(state, member.peer)
        why = "reported a span whose sum of squares is false"
        return _distrust(state, round_, planned.reducer, why) if is_proof else []
    round_.kept.setdefault(have.span, set()).add(member.peer)
    return _commit_when_held(state, round_)


def take_gathered(state: RunState, member: Member, arrivals: m.Arrivals) -> list[Command]:
    """Record that a peer has all the averages. Its reported root is checked once every span has been reported."""
    round_ = open_round(state, arrivals)
    if round_ is None or not arrivals.holds:
        return []
    round_.gathered[member.peer] = arrivals.holds
    count, parts = len(round_.gathered), len(round_.persons) // LOOKS
    if count > LOOKS and parts and count % parts:
        return []  # with thousands of reports, leave the check to a later one or to the clock
    return _commit_when_held(state, round_)


def _planned(round_: Round | None, number: int) -> m.PlannedSpan | None:
    spans = round_.plan.spans if round_ is not None and round_.plan is not None else ()
    return next((span for span in spans if span.span == number), None)


def _commit_when_held(state: RunState, round_: Round) -> list[Command]:
    assert round_.plan is not None
    if len(round_.done) < len(round_.plan.spans):
        return []
    round_.done_at = state.now if round_.done_at is None else round_.done_at
    keepers = {span: holders_of(state, round_, span) for span in round_.plan.spans}
    if not all(keepers.values()):
        return []
    return commit(state) if _has_second_copy(state, round_, keepers) else []


def _has_second_copy(state: RunState, round_: Round, keepers: Mapping[m.PlannedSpan, set[PeerId]]) -> bool:
    """Return True if every span has a second copy (rule 5), or is at a relay and no trainer could send another copy."""
    gatherers = _gatherers(round_).intersection(state.members)
    if _rely_on_members(state, keepers):
        return _is_with_most(state, round_, gatherers)
    here = {span: (peers | {span.reducer}).intersection(state.members) for span, peers in keepers.items()}
    if all(len(peers | gatherers) > 1 for peers in here.values()):
        return True
    return not any(member.trains and member.peer in round_.persons for member in state.members.values())


def is_durable(state: RunState, round_: Round) -> bool:
    """Return True if the averages of every span are on a relay's disk."""
    keepers = {span: holders_of(state, round_, span) for span in round_.plan.spans} if round_.plan is not None else {}
    return bool(keepers) and all(keepers.values()) and not _rely_on_members(state, keepers)


def blame_for_standstill(state: RunState, round_: Round, failure: Failure) -> None:
    """Record a failure of each reducer that kept the round from ending.

    These reducers have not finished, or have finished spans that neither a relay nor most people's machines have.
    """
    late = open_at(round_)
    if round_.plan is not None and round_.done_at is not None:
        held = {span: holders_of(state, round_, span) for span in round_.plan.spans}
        late |= {peer for peer in _rely_on_members(state, held) if not _is_relay(state, peer)}
    blame_all(state, late, failure)


def _rely_on_members(state: RunState, keepers: Mapping[m.PlannedSpan, set[PeerId]]) -> list[PeerId]:
    """Return the reducers of spans that no relay has on disk. A member and an accomplice could lie about such spans."""
    return [span.reducer for span, peers in keepers.items() if not any(_is_relay(state, peer) for peer in peers)]


def _is_relay(state: RunState, peer: PeerId) -> bool:
    return peer in state.members and state.members[peer].role in KEEPING_ROLES


def _is_with_most(state: RunState, round_: Round, gatherers: Iterable[PeerId]) -> bool:
    """Return True if most of the people whose trainers were asked for offers have all the averages (decision 12)."""
    here = {peer: member.person for peer, member in state.members.items() if member.trains and peer in round_.persons}
    return 2 * len({here[peer] for peer in gatherers if peer in here}) > len(set(here.values()))


def _gatherers(round_: Round) -> set[PeerId]:
    """Return the peers that have all the averages and whose root matches the reducers' reports."""
    root = gathered_root(round_)
    return {peer for peer, holds in round_.gathered.items() if holds == root}


def gathered_root(round_: Round) -> bytes:
    """Return the Merkle root over the reducers' reports of all spans, sorted by the spans' positions in the vector."""
    assert round_.plan is not None
    spans = sorted(round_.plan.spans, key=lambda span: span.first)
    return root_of([Leaf(round_.done[span.span].root, round_.done[span.span].sum_squares) for span in spans])


def look_at_copies(state: RunState) -> list[Command]:
    """Commit if every span has a second copy, now that peers may have left. Called on clock ticks."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None or round_.done_at is None:
        return []
    return _commit_when_held(state, round_)


def move_on(state: RunState, round_: Round) -> None:
    """Extend the round's deadline, because the round has made progress."""
    round_.deadline = max(round_.deadline, state.now + patience_s(state))
    state.moved_at = round_.moved_at = state.now


def _is_sound(round_: Round, planned: m.PlannedSpan, done: m.SpanDone) -> bool:
    """Return True if a reducer's report covers exactly the span, with planned slots and a quorum for each chunk."""
    position = planned.first
    for part in done.included:
        slots = set(part.slots)
        if part.first != position or part.stop <= part.first or len(slots) != len(part.slots):
            return False
        if not slots or not 0 <= min(slots) <= max(slots) < len(round_.slots):
            return False
        position = part.stop
    if position != planned.stop or not all(has_quorum(round_.slots, part) for part in done.included):
        return False
    if round_.seed and done.sketches:
        there = {slot for part in done.included for slot in part.slots}
        sizes = [m.SKETCH_BYTES if slot in there else 0 for slot in range(len(round_.slots))]
        if [len(sketch) for sketch in done.sketches] != sizes:
            return False
    return math.isfinite(done.sum_squares) and done.sum_squares >= 0


def _is_possible(state: RunState, round_: Round, reducer: PeerId, done: m.SpanDone) -> bool:
    """Return True if the norm of all the averages from a reducer is possible, given the offered norms (rule 12).

    Encoding adds at most `ERROR` of the norm, both now and in the error feedback from the last update.
    """
    assert round_.plan is not None
    mine = [round_.done[s.span] for s in round_.plan.spans if s.reducer == reducer and s.span in round_.done]
    norm, error = math.sqrt(sum(each.sum_squares for each in (*mine, done))), ERROR[round_.codec_down]
    for parts in (done.included, [part for each in (*mine, done) for part in each.included]):
        if norm <= ROUNDING * (1 + error) * (norm_limit(round_, parts) + state.feedback_norm):
            return True
    return False


def _distrust(state: RunState, round_: Round, reducer: PeerId, why: str) -> list[Command]:
    """Quarantine a reducer whose report is false, and average all its spans again without it.

    Void the round if no other reducer is left.
    """
    assert round_.plan is not None
    round_.excluded.add(reducer)
    for span in round_.plan.spans:
        if span.reducer == reducer:
            round_.done.pop(span.span, None)
            round_.kept.pop(span.span, None)
    member = state.members.get(reducer)
    if member is not None:
        blame(state, member.reliability, Failure.FALSE)
    name, persons = (member.name, (member.person,)) if member is not None else ("a lost machine", ())
    note = Note("refused", f"{name} {why}; its part is averaged again without it", persons)
    if _has_another(state, reducer):
        return [note, *replan(state)]
    return [note, *void(state, Why.UNTRUE, "no other machine could average")]


# --- lost and dropped peers


def replan(state: RunState) -> list[Command]:
    """Plan another attempt on the same offers without a lost reducer. Keep spans that connected log keepers have."""
    round_ = state.round
    assert round_ is not None
    if round_.plan is None:
        return plan(state)
    state.attempt += 1
    round_.attempt = state.attempt
    round_.attempts += 1
    round_.deadline = state.now + patience_s(state)
    enter(state, Why.REPLANNED)
    kept = {span.span for span in kept_spans(state, round_)}
    round_.done = {span: done for span, done in round_.done.items() if span in kept}
    round_.behind_at = {}  # said about the old plan, maybe by a reducer that was replaced
    note = Note("replan", "a machine that averages was lost or stopped; the others take over its part")
    commands = [note, *plan(state)]
    for slot, entry in enumerate(round_.slots):
        if entry.peer not in state.members and slot not in round_.dropped and state.phase is Phase.REDUCE:
            commands += drop(state, [slot], "was lost")  # kept until now, because it had sent its whole gradient
    if state.phase is Phase.REDUCE and not has_quorum_without(state, round_, ()):
        commands += void(state, Why.TOO_FEW, "too few machines were left when a relay was lost")
    return commands


def awaits(state: RunState, peer: PeerId) -> bool:
    """Return True if the peer still has to reduce part of the open plan."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None or round_.plan is None or not round_.is_planned:
        return False
    return any(span.reducer == peer and span.span not in round_.done for span in round_.plan.spans)


def without(state: RunState, peer: PeerId) -> list[Command]:
    """Continue without a lost peer. If the peer reduces or keeps spans, make a new plan. If not, withdraw its offer."""
    round_ = state.round
    if round_ is None:
        return []
    plan_ = round_.plan
    is_needed = plan_ is not None and any(
        span.reducer == peer or peer in round_.kept.get(span.span, ()) for span in plan_.spans
    )
    if state.phase is Phase.REDUCE and is_needed:
        return replan(state)
    return withdraw(state, peer, "was lost")


def withdraw(state: RunState, peer: PeerId, why: str) -> list[Command]:
    """Continue without a trainer's offer, unless the reducers have received its entire gradient."""
    round_ = state.round
    if round_ is None:
        return []
    is_counted_on = peer in round_.offers or peer in round_.waiting
    round_.waiting.discard(peer)
    if state.phase is Phase.OFFER:
        round_.offers.pop(peer, None)
    slots = [i for i, slot in enumerate(round_.slots) if slot.peer == peer and i not in round_.dropped]
    if slots and has_delivered(round_, slots[0]):
        return []
    member = state.members.get(peer)
    record = member.reliability if member is not None else state.reliabilities.get(peer)
    if is_counted_on and record is not None and state.phase in {Phase.OFFER, Phase.REDUCE}:
        blame(state, record, Failure.MISSED)
    return drop(state, slots[:1], why) if slots and state.phase is Phase.REDUCE else []


def take_refusal(state: RunState, member: Member, refused: m.SlotRefused) -> list[Command]:
    """Process a reducer's refusal of a slot as the table says. Usually, drop the slot and revoke its accumulator."""
    round_ = open_round(state, refused)
    if round_ is None or refused.slot >= len(round_.slots) or member.peer not in chunks_of(round_):
        return []
    peer, is_dropped = round_.slots[refused.slot].peer, refused.slot in round_.dropped
    facts = {Fact.REFUSED} | ({Fact.OTHER_ABLE} if _has_another(state, member.peer) else set())
    record = _record_of(state, peer)
    is_again = member.person in record.disputed_by and not is_dropped
    if is_one_word(state, round_, {member.peer}) and record.disputed_by <= {member.person}:
        facts.add(Fact.DISPUTED)
        if not is_dropped:
            dispute(state, member.peer, peer)
    if not is_dropped and (is_again or not has_quorum_without(state, round_, {refused.slot})):
        facts.add(Fact.REQUIRED)  # also a machine that the same person left out before
    row = decide(Kind.UPLOAD, facts.__contains__)
    if row is not None and row.action is Action.REPLACE:
        return exclude(state, {member.peer}, row.failure)
    commands = [] if is_dropped else drop(state, [refused.slot], "sent a damaged gradient")
    sender = state.members.get(peer)
    if row is not None and row.failure and sender and sender.accumulator == round_.offers[peer].accumulator:
        _confirm(state, sender)
        blame(state, sender.reliability, row.failure)
        commands += revoke(state, sender, f"chunk {refused.chunk} was refused ({refused.code})")
    return commands


def _confirm(state: RunState, sender: Member) -> None:
    """Forget the disputes of reducers with a sender, because another word has confirmed theirs."""
    for member in state.members.values():
        member.reliability.disputes_with -= {sender.person}


def is_one_word(state: RunState, round_: Round, reducers: Iterable[PeerId]) -> bool:
    """Return True if these reducers are one person's, none is a relay, and the plan has reducers of others."""
    if any(_is_relay(state, peer) for peer in reducers):
        return False
    persons = {person_of(state, round_, peer) for peer in reducers}
    planned = {span.reducer for span in round_.plan.spans} if round_.plan is not None else set()
    return len(persons) == 1 and any(person_of(state, round_, peer) not in persons for peer in planned)


def dispute(state: RunState, reducer: PeerId | None, sender: PeerId | None) -> None:
    """Record on both sides that a member's word stands against another's.

    A second person's word against a sender is believed. A reducer's second dispute, with anyone, is its failure, and
    so is any further one until updates contain its averages.
    """
    if reducer not in state.members or state.round is None or sender is None:
        return
    member = state.members[reducer]
    _record_of(state, sender).disputed_by |= {member.person}
    if member.reliability.disputes_with or member.reliability.reduce.level:
        member.reliability.disputes_with = frozenset()
        blame(state, member.reliability, Failure.FAILED)
    else:
        member.reliability.disputes_with = frozenset({person_of(state, state.round, sender)})


def _record_of(state: RunState, peer: PeerId) -> Reliability:
    member = state.members.get(peer)
    return member.reliability if member is not None else state.reliabilities.get(peer) or Reliability()


def person_of(state: RunState, round_: Round, peer: PeerId) -> str:
    """Return a peer's person, also if the peer has left since the cut."""
    return state.members[peer].person if peer in state.members else round_.persons.get(peer, (peer, ""))[0]


def exclude(state: RunState, reducers: Collection[PeerId], failure: Failure | None) -> list[Command]:
    """Plan the round again without these reducers. `failure`: their failure, or None if they are not to blame."""
    assert state.round is not None
    if failure is not None:
        blame_all(state, reducers, failure)
    state.round.excluded |= set(reducers)
    return replan(state)


def _has_another(state: RunState, peer: PeerId) -> bool:
    """Return True if some reducer other than `peer` is not quarantined."""
    return any(other.peer != peer and state.may_be_given_a_part(other.reliability) for other in state.reducers())


def blame_all(state: RunState, peers: Iterable[PeerId], failure: Failure) -> None:
    """Record the same failure of several peers. Peers that have left are not blamed."""
    for peer in sorted(set(peers).intersection(state.members)):
        blame(state, state.members[peer].reliability, failure)


def _leave_behind(state: RunState, round_: Round, done: m.SpanDone, reducer: PeerId) -> list[Command]:
    """Report each late slot once. Drop from the round any slots that missed too many consecutive chunks (rule 8)."""
    _compare_words(state, round_, reducer)
    late = left_out(round_, done)
    left = _decided(state, round_, left_behind(state, round_, done), reducer)
    senders = [state.members.get(round_.slots[slot].peer) for slot in sorted(late - left.keys() - round_.late)]
    round_.late |= late
    text = "a part of {}'s gradient came too late; it counts in the next step"
    notes = [Note("late", text.format(sender.person), (sender.person,)) for sender in senders if sender]
    return [*notes, *_drop_late(state, round_, left)]


def _compare_words(state: RunState, round_: Round, reducer: PeerId) -> None:
    """Once a reducer has finished, withdraw its words about slots that its averages do include, as disputed."""
    words = [slot for slot, reducers in round_.behind_at.items() if reducer in reducers]
    if not words or round_.plan is None or reducer in open_at(round_):
        return
    own = (span.span for span in round_.plan.spans if span.reducer == reducer)
    done = [round_.done[span] for span in own if span in round_.done]
    for slot in words:
        if not any(is_behind(state, round_, report, slot) for report in done):
            round_.behind_at[slot].discard(reducer)
            dispute(state, reducer, round_.slots[slot].peer)


def _decided(state: RunState, round_: Round, behind: Iterable[int], reducer: PeerId) -> dict[int, Row]:
    """Record that slots are behind at a reducer. Return those to drop, with the rows of the table that say so."""
    rows: dict[int, Row] = {}
    for slot in sorted(behind):
        round_.behind_at.setdefault(slot, set()).add(reducer)
        row = decide(Kind.UPLOAD, _late_facts(state, round_, slot).__contains__)
        if row is not None and row.action is Action.DROP:
            rows[slot] = row
    return rows


def _drop_late(state: RunState, round_: Round, rows: Mapping[int, Row]) -> list[Command]:
    for slot, row in rows.items():
        sender = state.members.get(round_.slots[slot].peer)
        if sender is not None and row.failure is not None:
            blame(state, sender.reliability, row.failure, is_coming=_is_coming(state, round_, slot))
    return drop(state, sorted(rows), "was late") if rows else []


def _late_facts(state: RunState, round_: Round, slot: int) -> set[Fact]:
    is_disputed = is_one_word(state, round_, round_.behind_at[slot])
    return {Fact.LATE, Fact.DISPUTED} if is_disputed else {Fact.LATE}


def _is_coming(state: RunState, round_: Round, slot: int) -> bool:
    """Return True if a slot's gradient is still arriving, according to the reducers' latest reports."""
    seen = [reduction.slots[slot] for reduction in round_.reductions.values() if slot in reduction.slots]
    return state.now - max((each.at for each in seen if each.chunks), default=-math.inf) < 2 * REPORT_S


def drop(state: RunState, slots: Sequence[int], why: str, failure: Failure | None = None) -> list[Command]:
    """Drop slots from the next open chunk on. `failure`: the senders' failure, or None if they are not to blame.

    Void the round if too few slots are left.
    """
    round_ = state.round
    assert round_ is not None
    round_.dropped.update(slots)
    round_.moved_at = state.now
    senders = [state.members.get(round_.slots[slot].peer) for slot in slots]
    if failure is not None:
        blame_all(state, (round_.slots[slot].peer for slot in slots), failure)
    if not has_quorum_without(state, round_, ()):
        known = [sender for sender in senders if sender is not None]
        text = f"{name_all(known)} {why}, and too few machines were left"
        return void(state, Why.TOO_FEW, text, tuple(sender.person for sender in known))
    enter(state, Why.DROPPED)
    commands: list[Command] = []
    for slot, sender in zip(slots, senders, strict=True):
        names = (sender.person,) if sender is not None else ()
        text = f"{sender.person if sender is not None else 'a trainer'} {why} during a step; the others finish it"
        commands += [Note("dropped", text, names), drop_message(state, round_, slot)]
    return commands

"""The life of one round: cut, offers, plan, reduce, record. Each function changes the state and returns commands."""

import math
from collections.abc import Sequence
from fractions import Fraction

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.credit import credit_of, rounded
from peer_agent.protocol.coordinator.events import Announce, Command, Note, Persist, Send
from peer_agent.protocol.coordinator.screening import scales_of
from peer_agent.protocol.coordinator.settlement import close_round, end_leases
from peer_agent.protocol.coordinator.state import NO_ACCUMULATOR, Member, Phase, Round, RunState
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.plan import Member as Link
from peer_agent.protocol.plan import Reducer, Shares, shares_of, spans_of
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.records import Contribution, Included, Record, SpanEntry
from peer_agent.protocol.schedule import scalars_of

OFFER_S = 5.0  # a trainer that has not offered by then is left out; its gradient stays with it
LATE_ROUNDS = 5  # doublings of OFFER_S while rounds are void for want of offers: slow machines need it
REDUCE_S = 20.0  # beyond the planned time, before a round without progress is void
STALL_S = 4.0  # a slot without a new chunk at a reducer for so long is dropped
QUORUM = 0.7  # of the planned tokens
BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.004}  # per element


def everyone(state: RunState) -> tuple[PeerId, ...]:
    """All members, by id."""
    return tuple(sorted(state.members))


def bytes_of(codec: Codec, elements: int) -> float:
    """Encoded size of a vector."""
    return BYTES[codec] * elements


def cut(state: RunState, now: float) -> list[Command]:
    """The target batch is reached: everyone stops at the last finished micro-batch and says what it holds."""
    state.rounds += 1
    state.attempt += 1
    asked = tuple(member.peer for member in state.ready())
    persons = {member.peer: (member.person, member.machine) for member in state.ready()}
    expected = {member.peer for member in state.awake()}
    deadline = now + OFFER_S * 2 ** min(state.late_rounds, LATE_ROUNDS)
    state.round = Round(state.rounds, state.attempt, persons, expected, deadline)
    state.phase, state.started = Phase.OFFER, True
    message = m.Cut(
        run=state.run,
        step=state.step,
        fence=state.fence,
        attempt=state.attempt,
        round=state.rounds,
        codec=state.recipe.codec_up,
        chunk_elements=state.grid.chunk_elements,
    )
    return [Send(asked, message)]


def take_offer(state: RunState, member: Member, offer: m.Offer) -> list[Command]:
    """Keep an offer that claims no more than was leased; refuse any other, with its number."""
    round_ = state.round
    if state.phase is not Phase.OFFER or round_ is None or not is_current(state, offer):
        return []
    if member.peer not in round_.persons or member.peer in round_.offers:
        return []
    if not member.accumulator:  # revoked after the cut, and told so
        round_.expected.discard(member.peer)
        return []
    fault = _fault_in(state, member, offer)
    if fault is None:
        round_.offers[member.peer] = offer
        return []
    round_.expected.discard(member.peer)
    notice = m.Notice(run=state.run, code=fault.code, text=fault.text)
    return [Send((member.peer,), notice), *revoke(state, member, fault.text)]


def is_current(state: RunState, message: m.Attempted) -> bool:
    """Whether a message belongs to the attempt that is open (rule 2)."""
    round_ = state.round
    place = (message.run, message.step, message.fence, message.attempt)
    return round_ is not None and place == (state.run, state.step, state.fence, round_.attempt)


def _fault_in(state: RunState, member: Member, offer: m.Offer) -> Fault | None:
    units = [done.unit for done in offer.units]
    tokens = state.recipe.model.context - 1
    leased = sum(unit.samples for unit in units) * tokens + member.carried
    if offer.accumulator != member.accumulator or not state.leases.holds(offer.accumulator, units):
        return Fault.of("E219", claimed=offer.loss_tokens, leased=0)
    if len(set(units)) != len(units) or max((w.tokens for w in offer.weights), default=0) > leased:
        return Fault.of("E219", claimed=offer.loss_tokens, leased=leased)
    highest = max((w.tokens for w in offer.weights), default=0)  # samples are credited in proportion to loss_tokens
    is_said = offer.loss_tokens <= highest <= offer.loss_tokens + member.carried
    if offer.loss_tokens > leased or not is_said or not _tiles(offer.weights, state.grid.chunks):
        return Fault.of("E219", claimed=offer.loss_tokens, leased=leased)
    oldest = state.step - max(state.recipe.staleness, 1)
    if any(not oldest <= done.base <= state.step for done in offer.units):
        return Fault.of("E206", reason=f"a unit was computed before step {oldest}")
    if not (math.isfinite(offer.norm) and offer.norm >= 0 and math.isfinite(offer.loss_sum)):
        return Fault.of("E206", reason="the norm or the loss is not a finite number")
    return None


def _tiles(weights: Sequence[m.Weight], chunks: int) -> bool:
    """Whether the ranges cover all chunks once, in order."""
    position = 0
    for weight in weights:
        if weight.first != position or weight.stop <= weight.first or weight.tokens < 0:
            return False
        position = weight.stop
    return position == chunks


def close_offers(state: RunState, now: float) -> list[Command]:
    """All have answered, or the deadline has passed: plan, or void where too little was offered."""
    round_ = state.round
    assert round_ is not None
    if now < round_.deadline and round_.expected - set(round_.offers):
        return []
    offers = [(peer, offer) for peer, offer in sorted(round_.offers.items()) if offer.loss_tokens]
    samples = sum(done.unit.samples for _, offer in offers for done in offer.units)
    for peer in round_.expected.difference(round_.offers).intersection(state.members):
        state.members[peer].silent = True
    if not offers or samples < QUORUM * state.recipe.target_batch:
        state.late_rounds += 1
        return void(state, now, "too few offers came in time")
    scales = scales_of([offer.norm for _, offer in offers], [offer.loss_tokens for _, offer in offers])
    round_.slots = tuple(
        m.Slot(
            peer=peer, weights=offer.weights, root=offer.root, norm=offer.norm, codec=state.recipe.codec_up, scale=scale
        )
        for (peer, offer), scale in zip(offers, scales, strict=True)
    )
    state.phase = Phase.REDUCE
    round_.deadline = now + REDUCE_S
    return plan(state, now)


def plan(state: RunState, now: float) -> list[Command]:
    """Deal every span that is not held among the living relays, on the same offers (rule 6). None: wait."""
    round_ = state.round
    assert round_ is not None
    relays = state.reducers()
    if not relays:
        return []
    reducers = [Reducer(p.peer, p.upload_bps, p.download_bps) for p in relays]
    shares = _shares(state, round_, reducers)
    kept = _kept(state, round_)
    missing = _missing(kept, state.grid.chunks)
    first_span = max((span.span + 1 for span in (round_.plan.spans if round_.plan else ())), default=0)
    spans = spans_of(reducers, shares.shares, missing, state.grid, attempt=round_.attempt, first_span=first_span)
    round_.plan = m.Plan(
        run=state.run,
        step=state.step,
        fence=state.fence,
        attempt=round_.attempt,
        round=round_.number,
        elements=state.elements,
        chunk_elements=state.grid.chunk_elements,
        slots=round_.slots,
        spans=tuple(kept) + tuple(spans),
        codec_down=state.recipe.codec_down,
        duration_s=shares.duration_s,
    )
    round_.deadline = now + REDUCE_S + 4 * shares.duration_s
    round_.progress = {}
    drops = [_drop(state, round_, slot) for slot in sorted(round_.dropped)]
    return [Announce(everyone(state), round_.plan), *drops]


def _shares(state: RunState, round_: Round, reducers: Sequence[Reducer]) -> Shares:
    up = bytes_of(state.recipe.codec_up, state.elements)
    down = bytes_of(state.recipe.codec_down, state.elements)
    links = {p.peer: Link(up, p.upload_bps, p.download_bps) for p in state.trainers()}
    contributors = [links.get(slot.peer, Link(up, 0, 0)) for slot in round_.slots]
    return shares_of(reducers, contributors, list(links.values()), down)


def _kept(state: RunState, round_: Round) -> list[m.PlannedSpan]:
    """Spans of the attempt before that a living relay holds."""
    if round_.plan is None:
        return []
    alive = {member.peer for member in state.relays()}
    return [
        m.PlannedSpan(
            span=span.span,
            first=span.first,
            stop=span.stop,
            reducer=span.reducer,
            attempt=span.attempt,
            root=round_.held[span.span].root,
        )
        for span in round_.plan.spans
        if span.span in round_.held and span.reducer in alive
    ]


def _missing(kept: Sequence[m.PlannedSpan], chunks: int) -> list[tuple[int, int]]:
    missing, position = [], 0
    for span in sorted(kept, key=lambda span: span.first):
        if span.first > position:
            missing.append((position, span.first))
        position = span.stop
    if position < chunks:
        missing.append((position, chunks))
    return missing


def replan(state: RunState, now: float) -> list[Command]:
    """A reducer is gone: attempt k+1 on the same offers, with what the living hold kept."""
    round_ = state.round
    assert round_ is not None
    if round_.plan is None:
        return plan(state, now)
    state.attempt += 1
    round_.attempt = state.attempt
    round_.attempts += 1
    round_.deadline = now + REDUCE_S
    kept = {span.span for span in _kept(state, round_)}
    round_.held = {span: done for span, done in round_.held.items() if span in kept}
    note = Note("replan", "a relay was lost in mid-round; its part is averaged again by the others")
    return [note, *plan(state, now)]


def awaits(state: RunState, peer: PeerId) -> bool:
    """Whether this peer still has to reduce a part of the open plan."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None or round_.plan is None or not round_.is_planned:
        return False
    return any(span.reducer == peer and span.span not in round_.held for span in round_.plan.spans)


def take_span(state: RunState, member: Member, done: m.SpanDone) -> list[Command]:
    """A reducer holds a span; when all are held, the record is written."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None or round_.plan is None or not is_current(state, done):
        return []
    planned = {span.span: span for span in round_.plan.spans}.get(done.span)
    if planned is None or planned.reducer != member.peer or planned.root or done.span in round_.held:
        return []
    if not _is_sound(round_, planned, done):
        return [Note("refused", f"relay {member.peer[:8]} reported a span that does not fit the plan")]
    round_.held[done.span] = done
    if len(round_.held) < len(round_.plan.spans):
        return []
    return commit(state)


def _is_sound(round_: Round, planned: m.PlannedSpan, done: m.SpanDone) -> bool:
    """Whether the inclusion covers exactly the span with slots of the plan, each chunk above the quorum."""
    position = planned.first
    for part in done.included:
        slots = set(part.slots)
        if part.first != position or part.stop <= part.first or len(slots) != len(part.slots):
            return False
        if not slots or not slots <= set(range(len(round_.slots))):
            return False
        position = part.stop
    if position != planned.stop or not all(_has_quorum(round_.slots, part) for part in done.included):
        return False
    return math.isfinite(done.sum_squares) and done.sum_squares >= 0


def _has_quorum(slots: Sequence[m.Slot], part: Included) -> bool:
    """Whether each of these chunks averages enough of the planned tokens (rule 7)."""
    edges = sorted({w.first for slot in slots for w in slot.weights if part.first < w.first < part.stop} | {part.first})
    for chunk in edges:
        planned = [next((w.tokens for w in slot.weights if w.first <= chunk < w.stop), 0) for slot in slots]
        if sum(planned[slot] for slot in part.slots) < QUORUM * sum(planned):
            return False
    return True


def take_progress(state: RunState, member: Member, progress: m.Progress, now: float) -> list[Command]:
    """Remember when each slot last moved at each reducer."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None or round_.plan is None or not is_current(state, progress):
        return []
    if all(span.reducer != member.peer for span in round_.plan.spans):
        return []
    for slot, chunks in progress.received:
        before = round_.progress.get((member.peer, slot))
        if 0 <= slot < len(round_.slots) and (before is None or before[0] != chunks):
            round_.progress[member.peer, slot] = (chunks, now)
            if chunks > (before[0] if before else 0):
                round_.deadline = max(round_.deadline, now + REDUCE_S)
    return []


def watch(state: RunState, now: float) -> list[Command]:
    """Drop slots that have stopped moving; void a round that cannot finish."""
    round_ = state.round
    assert round_ is not None
    commands: list[Command] = []
    for slot in sorted(_stalled(state, round_)):
        commands += drop(state, slot, now, "stopped sending")
        if state.phase is not Phase.REDUCE:
            return commands
    if now >= round_.deadline:
        _blame(state, round_, now)
        commands += void(state, now, "it made no progress" if state.relays() else "there was no relay")
    return commands


def _blame(state: RunState, round_: Round, now: float) -> None:
    """Relays that kept the round waiting and say nothing are planned no part until they are heard again."""
    spans = round_.plan.spans if round_.plan else ()
    late = {span.reducer for span in spans if not span.root and span.span not in round_.held}
    for relay in state.relays():
        relay.silent = relay.silent or (relay.peer in late and now - relay.heard_at > STALL_S)


def _stalled(state: RunState, round_: Round) -> set[int]:
    """Slots that a reducer, by its own reports, has waited for too long. A frozen reducer accuses nobody."""
    if round_.plan is None:
        return set()
    wanted: dict[PeerId, int] = {}
    for span in round_.plan.spans:
        if not span.root and span.span not in round_.held:
            wanted[span.reducer] = wanted.get(span.reducer, 0) + 1
    open_spans = [span for span in round_.plan.spans if not span.root]
    complete = {peer: sum(s.stop - s.first for s in open_spans if s.reducer == peer) for peer in wanted}
    heard = {relay.peer: relay.heard_at for relay in state.relays()}
    return {
        slot
        for (relay, slot), (chunks, since) in round_.progress.items()
        if relay in wanted and chunks < complete[relay] and slot not in round_.dropped
        if heard.get(relay, since) - since > STALL_S
    }


def withdraw(state: RunState, peer: PeerId, now: float, why: str) -> list[Command]:
    """The round goes on without what this trainer offered."""
    round_ = state.round
    if round_ is None:
        return []
    round_.expected.discard(peer)
    if state.phase is Phase.OFFER:
        round_.offers.pop(peer, None)
    slots = [i for i, slot in enumerate(round_.slots) if slot.peer == peer and i not in round_.dropped]
    return drop(state, slots[0], now, why) if slots and state.phase is Phase.REDUCE else []


def drop(state: RunState, slot: int, now: float, why: str) -> list[Command]:
    """From the next open chunk on, the round goes on without this slot; void where too few would be left."""
    round_ = state.round
    assert round_ is not None
    round_.dropped.add(slot)
    weights = [sum(w.tokens * (w.stop - w.first) for w in entry.weights) for entry in round_.slots]
    left = sum(weight for i, weight in enumerate(weights) if i not in round_.dropped)
    if left < QUORUM * sum(weights):
        return void(state, now, f"a trainer {why}, and too few were left")
    name = state.members[round_.slots[slot].peer].person if round_.slots[slot].peer in state.members else "a trainer"
    return [Note("dropped", f"{name} {why} in mid-round; the others finish it"), _drop(state, round_, slot)]


def _drop(state: RunState, round_: Round, slot: int) -> Send:
    relays = tuple(member.peer for member in state.relays())
    message = m.Drop(run=state.run, step=state.step, fence=state.fence, attempt=round_.attempt, slot=slot)
    return Send(relays, message)


def void(state: RunState, now: float, why: str) -> list[Command]:
    """The round makes no update: visible, counted, and nothing is applied. Gradients stay where they are."""
    round_ = state.round
    assert round_ is not None
    message = m.Void(
        run=state.run,
        step=state.step,
        fence=state.fence,
        attempt=round_.attempt if round_.plan is None else round_.plan.attempt,  # the last that the peers know
        round=round_.number,
        reason=why,
    )
    state.phase, state.round = Phase.ACCUMULATE, None
    close_round(state, round_)
    state.void_rounds += 1
    state.accumulating_since = now
    return [Send(everyone(state), message), Note("void", f"a round was void: {why}; nothing was lost")]


def commit(state: RunState) -> list[Command]:
    """Every span is held: write the record. Only the database decides whether it is committed (rule 3)."""
    round_ = state.round
    assert round_ is not None
    round_.record = record_of(state, round_)
    state.phase = Phase.COMMIT
    return [Persist(round_.record, state.now - state.accumulating_since, round_.attempts)]


def record_of(state: RunState, round_: Round) -> Record:
    """The self-contained commit record of a round whose spans are all held."""
    assert round_.plan is not None
    spans = sorted((_entry(span, round_.held[span.span]) for span in round_.plan.spans), key=lambda span: span.first)
    included = [part for span in spans for part in span.included]
    offers = [round_.offers[slot.peer] for slot in round_.slots]
    tokens = sum(offer.loss_tokens for offer in offers)
    contributions = _contributions(state, round_, included)
    return Record(
        run=state.run,
        index=state.index + 1,
        step=state.step + 1,
        fence=state.fence,
        attempt=round_.attempt,
        round=round_.number,
        previous=state.digest,
        elements=state.elements,
        chunk_elements=state.grid.chunk_elements,
        codec=state.recipe.codec_down,
        spans=tuple(spans),
        scalars=scalars_of(
            state.recipe, step=state.step + 1, sum_squares=sum(span.sum_squares for span in spans), tokens=tokens
        ),
        contributions=contributions,
        loss=sum(offer.loss_sum for offer in offers) / tokens,
        tokens=sum(entry.tokens for entry in contributions),
        samples=sum(entry.samples for entry in contributions),
        exact=_is_exact(state, round_, included),
        clipped=tuple(slot.peer for slot in round_.slots if slot.scale != 1.0),
    )


def _entry(planned: m.PlannedSpan, done: m.SpanDone) -> SpanEntry:
    return SpanEntry(
        span=planned.span,
        first=planned.first,
        stop=planned.stop,
        attempt=planned.attempt,
        reducer=planned.reducer,
        root=done.root.hex(),
        sum_squares=done.sum_squares,
        included=done.included,
    )


def _contributions(state: RunState, round_: Round, included: Sequence[Included]) -> tuple[Contribution, ...]:
    credit = credit_of(round_.slots, included, state.grid)
    members = [state.members.get(slot.peer) for slot in round_.slots]
    tokens = rounded({slot: Fraction(credit[slot], state.elements) for slot in credit})
    ratio = [_samples_per_token(round_, slot, member) for slot, member in enumerate(members)]
    samples = rounded({slot: Fraction(credit[slot], state.elements) * ratio[slot] for slot in credit})
    return tuple(
        Contribution(
            peer=entry.peer,
            person=round_.persons[entry.peer][0],
            machine=round_.persons[entry.peer][1],
            slot=slot,
            accumulator=round_.offers[entry.peer].accumulator,
            units=tuple(sorted(done.unit for done in round_.offers[entry.peer].units)),
            weight=round_.offers[entry.peer].loss_tokens,
            credit=credit[slot],
            samples=samples[slot],
            tokens=tokens[slot],
        )
        for slot, entry in enumerate(round_.slots)
        if credit[slot]
    )


def _samples_per_token(round_: Round, slot: int, member: Member | None) -> Fraction:
    """Samples of an offer for each of its loss tokens; of an offer with nothing new, that of the peer's last one."""
    offer = round_.offers[round_.slots[slot].peer]
    samples = sum(done.unit.samples for done in offer.units)
    if samples:
        return Fraction(samples, offer.loss_tokens)
    return Fraction(member.samples_per_token).limit_denominator(10**6) if member else Fraction(0)


def _is_exact(state: RunState, round_: Round, included: Sequence[Included]) -> bool:
    """Every included unit was computed on this step's parameters, with full coverage and nothing clipped (rule 10)."""
    whole = all(len(part.slots) == len(round_.slots) for part in included)
    fresh = all(done.base == state.step for offer in round_.offers.values() for done in offer.units)
    uniform = all(len(slot.weights) == 1 for slot in round_.slots)
    untouched = all(slot.scale == 1.0 for slot in round_.slots)
    return whole and fresh and uniform and untouched


def revoke(state: RunState, member: Member, reason: str) -> list[Command]:
    """The accumulator's leases end and come back; it starts another (rule 11)."""
    back = end_leases(state, member.accumulator)
    message = revoked(state, member.accumulator, reason)
    member.accumulator, member.done, member.carried = NO_ACCUMULATOR, {}, 0
    return [
        Send((member.peer,), message),
        Note("returned", f"{back} samples of {member.person} came back: {reason}"),
    ]


def revoked(state: RunState, accumulator: AccumulatorId, reason: str) -> m.AccumulatorRevoked:
    """Tell a trainer to forget an accumulator."""
    return m.AccumulatorRevoked(run=state.run, accumulator=accumulator, reason=reason)

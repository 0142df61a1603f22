"""Build the commit record of a round whose spans are all stored (rules 13 and 15)."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.round.screening import loss_of
from peer_agent.protocol.coordinator.state import Member, Round, RunState
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.records import (
    ChunkRange,
    Contribution,
    Evidence,
    Included,
    Record,
    SpanEntry,
    Unit,
    joined,
    whole,
)
from peer_agent.protocol.messages import Offer, Slot
from peer_agent.protocol.schedule import scalars_of


def record_of(state: RunState, round_: Round) -> Record:
    assert round_.plan is not None
    spans = sorted((_entry(span, round_.done[span.span]) for span in round_.plan.spans), key=lambda span: span.first)
    included = _joined([part for span in spans for part in round_.done[span.span].included])
    offers = [round_.offers[slot.peer] for slot in round_.slots]
    tokens = sum(offer.loss_tokens for offer in offers)
    contributions = _contributions(state, round_, included)
    return whole(
        run=state.run,
        index=state.index + 1,
        step=state.step + 1,
        fence=state.fence,
        attempt=round_.attempt,
        round=round_.number,
        previous=state.digest,
        elements=state.elements,
        chunk_elements=state.grid.chunk_elements,
        codec=round_.codec_down,
        spans=tuple(spans),
        scalars=scalars_of(
            state.recipe, step=state.step + 1, sum_squares=sum(span.sum_squares for span in spans), tokens=tokens
        ),
        contributions=contributions,
        loss=loss_of(state, round_),
        tokens=sum(entry.tokens for entry in contributions),
        samples=sum(entry.samples for entry in contributions),
        exact=_is_exact(state, round_, included),
        mix=state.leases.weights,
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
    )


def _joined(parts: Sequence[Included]) -> list[Included]:
    """Merge adjacent chunk ranges that include the same slots, to save work later."""
    joined: list[Included] = []
    for part in parts:
        if joined and joined[-1].stop == part.first and joined[-1].slots == part.slots:
            joined[-1] = Included(joined[-1].first, part.stop, part.slots)
        else:
            joined.append(part)
    return joined


def _contributions(state: RunState, round_: Round, included: Sequence[Included]) -> tuple[Contribution, ...]:
    credit = credit_of([round_.offers[slot.peer] for slot in round_.slots], included, state.grid)
    ranges = ranges_of(included)
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
            included=ranges[slot],
            clipped=_is_limited(round_, entry),
            stale=_stale(state, round_.offers[entry.peer]),
            codec=entry.codec,
            evidence=_evidence(round_.offers[entry.peer]),
        )
        for slot, entry in enumerate(round_.slots)
        if credit[slot]
    )


def _evidence(offer: m.Offer) -> Evidence:
    return Evidence(root=offer.root.hex(), norm=offer.norm, loss_sum=offer.loss_sum)


def _stale(state: RunState, offer: m.Offer) -> tuple[Unit, ...]:
    """Return the units computed on parameters older than this step's. An audit recomputes these."""
    if not state.recipe.staleness:
        return ()
    return tuple(sorted(done.unit for done in offer.units if done.base < state.step))


def _samples_per_token(round_: Round, slot: int, member: Member | None) -> Fraction:
    """Return an offer's samples per loss token, or the peer's last ratio if the offer has no new work."""
    offer = round_.offers[round_.slots[slot].peer]
    samples = sum(done.unit.samples for done in offer.units)
    if samples:
        return Fraction(samples, offer.loss_tokens)
    return Fraction(member.samples_per_token).limit_denominator(10**6) if member else Fraction(0)


def _is_exact(state: RunState, round_: Round, included: Sequence[Included]) -> bool:
    """Return True if the update is exact (rule 10): all units are fresh and in every chunk, and nothing is limited."""
    complete = all(len(part.slots) == len(round_.slots) for part in included)
    fresh = all(done.base == state.step for offer in round_.offers.values() for done in offer.units)
    uniform = all(len(slot.weights) == 1 for slot in round_.slots)
    untouched = not any(_is_limited(round_, slot) for slot in round_.slots)
    return complete and fresh and uniform and untouched and round_.rule == "mean"


def _is_limited(round_: Round, slot: Slot) -> bool:
    """Return True if the gradient is averaged with a smaller norm or weight than offered (rule 12)."""
    return slot.scale != 1.0 or slot.weights != round_.offers[slot.peer].weights


def credit_of(offers: Sequence[Slot | Offer], included: Iterable[Included], grid: Grid) -> dict[int, int]:
    """Return each slot's credit in token-elements: the sum of elements x offered tokens over its included chunks."""
    credit = dict.fromkeys(range(len(offers)), 0)
    for part in included:
        for slot in part.slots:
            for weight in offers[slot].weights:
                first, stop = max(part.first, weight.first), min(part.stop, weight.stop)
                if first < stop:
                    credit[slot] += weight.tokens * (grid.bounds(stop - 1)[1] - grid.bounds(first)[0])
    return credit


def ranges_of(included: Iterable[Included]) -> dict[int, tuple[ChunkRange, ...]]:
    """Return the chunks in which each slot is averaged. `included` is in chunk order."""
    ranges: dict[int, list[ChunkRange]] = {}
    for part in included:
        there = ChunkRange(part.first, part.stop)
        for slot in part.slots:
            ranges.setdefault(slot, []).append(there)
    return {slot: joined(parts) for slot, parts in ranges.items()}


def rounded(exact: Mapping[int, Fraction]) -> dict[int, int]:
    """Round values to integers by largest remainder, preserving the rounded total. Ties go to the lower slot."""
    total = round(sum(exact.values(), Fraction(0)))
    whole = {slot: int(value) for slot, value in exact.items()}
    order = sorted(exact, key=lambda slot: (whole[slot] - exact[slot], slot))
    for slot in order[: total - sum(whole.values())]:
        whole[slot] += 1
    return whole

"""How leases end: in an update, given back, or, for what an open round holds, as that round decides (rule 11)."""

from collections.abc import Iterable

from peer_agent.protocol.coordinator.state import Departed, Member, Phase, Round, RunState
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.messages import Slot
from peer_agent.protocol.records import Record, Unit


def end_leases(
    state: RunState, accumulator: AccumulatorId, units: Iterable[Unit] | None = None, *, non_finite: bool = False
) -> int:
    """Leases end (all of the accumulator's, or those named); how many samples came back at once.

    An offer that is not planned yet is withdrawn. Units in the open plan may be in the update already, so they come
    back with the end of the round, if it leaves them out.
    """
    held = state.leases.held.get(accumulator, set())
    ending = set(held) if units is None else held.intersection(units)
    ending -= _undecided(state, accumulator, ending)
    if non_finite:
        state.leases.failed(accumulator, ending)
        return 0
    return state.leases.take_back(accumulator, ending)


def _undecided(state: RunState, accumulator: AccumulatorId, ending: set[Unit]) -> set[Unit]:
    round_ = state.round
    if round_ is None:
        return set()
    for peer, offer in list(round_.offers.items()):
        offered = ending.intersection(done.unit for done in offer.units)
        if offer.accumulator != accumulator or not offered:
            continue
        if state.phase is Phase.OFFER:
            del round_.offers[peer]
            round_.expected.discard(peer)
            return set()
        round_.ended.setdefault(accumulator, set()).update(offered)
        return offered
    return set()


def close_round(state: RunState, round_: Round) -> None:
    """The round is over: what ended in it and is in no update comes back."""
    for accumulator, units in sorted(round_.ended.items()):
        state.leases.take_back(accumulator, units)


def settle(state: RunState, record: Record, slots: tuple[Slot, ...]) -> None:
    """Leases of what is in the update end; what was left out stays in the accumulators as carried tokens (rule 9)."""
    for entry in record.contributions:
        state.leases.settle(entry.accumulator, entry.units)
        holder = _holder(state, entry.accumulator)
        if holder is None:
            continue
        is_whole = all(entry.slot in part.slots for span in record.spans for part in span.included)
        holder.carried = 0 if is_whole else max((w.tokens for w in slots[entry.slot].weights), default=0)
        if entry.units:
            holder.samples_per_token = sum(unit.samples for unit in entry.units) / entry.weight
        if isinstance(holder, Member):
            for unit in entry.units:
                holder.done.pop(unit, None)


def _holder(state: RunState, accumulator: AccumulatorId) -> Member | Departed | None:
    """Who has this accumulator, in the run or away."""
    members = (member for member in state.members.values() if member.accumulator == accumulator)
    return next(members, None) or state.departed.get(accumulator)

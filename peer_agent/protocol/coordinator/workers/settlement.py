"""End leases when an update includes their units, when units are returned, or when a round is decided (rule 11)."""

from collections.abc import Iterable, Mapping

from peer_agent.protocol.coordinator.events import Command, LeftOut, Note
from peer_agent.protocol.coordinator.facts import GRACE_ROUNDS, inclusions_of
from peer_agent.protocol.coordinator.state import Departed, Member, Phase, Round, RunState
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.log.records import Contribution, Record, Unit
from peer_agent.protocol.messages import Offer


def end_leases(state: RunState, accumulator: AccumulatorId, units: Iterable[Unit] | None = None) -> int:
    """End an accumulator's leases, or only those on the given units. Return how many samples enter the pool at once."""
    return state.leases.take_back(accumulator, _ending(state, accumulator, units))


def fail_leases(state: RunState, member: Member, units: Iterable[Unit]) -> list[Command]:
    """End the leases on units whose gradients are non-finite. A unit that fails too often is left out for good."""
    working = (other for other in state.trainers() if not other.reliability.is_silent)
    is_alone = all(other.person == member.person for other in working)
    ending = _ending(state, member.accumulator, units)
    left_out = state.leases.failed(member.accumulator, ending, member.person, is_alone=is_alone)
    return [LeftOut(tuple(left_out))] if left_out else []


def _ending(state: RunState, accumulator: AccumulatorId, units: Iterable[Unit] | None) -> set[Unit]:
    """Return the leases that can end now. If the round has no plan yet, withdraw the offer that contains them.

    The leases on units in the open plan last until the round ends, because the update may still include these units.
    Units that the update leaves out then return to the pool.
    """
    held = state.leases.held.get(accumulator, set())
    ending = set(held) if units is None else held.intersection(units)
    return ending - _undecided(state, accumulator, ending)


def _undecided(state: RunState, accumulator: AccumulatorId, ending: set[Unit]) -> set[Unit]:
    round_ = state.round
    peer = state.holders.get(accumulator)
    offer = round_.offers.get(peer) if round_ is not None and peer is not None else None
    if round_ is None or peer is None or offer is None or offer.accumulator != accumulator:
        return set()
    offered = ending.intersection(done.unit for done in offer.units)
    if offered and state.phase is Phase.OFFER:
        del round_.offers[peer]
        round_.waiting.discard(peer)
        return set()
    if offered:
        round_.ended.setdefault(accumulator, set()).update(offered)
    return offered


def close_round(state: RunState, round_: Round) -> None:
    """Return units to the pool if their leases ended during the round and no update includes them."""
    for accumulator, units in sorted(round_.ended.items()):
        state.leases.take_back(accumulator, units)


def settle_leases(state: RunState, record: Record, offers: Mapping[PeerId, Offer]) -> None:
    """End the leases on an update's units. Tokens in chunks that the update left out are carried over (rule 9)."""
    inclusions = inclusions_of(record)
    state.inclusions.append(inclusions)
    for entry in record.contributions:
        state.leases.mark_used(entry.accumulator, entry.units)
        state.recent[entry.person] = record.index
        peer = state.holders.get(entry.accumulator, entry.peer)
        _settle_holder(state, peer, entry, offers[entry.peer], is_whole=inclusions[entry.accumulator].is_whole)
    excluded = state.round.excluded if state.round is not None else set()
    for reducer in ({span.reducer for span in record.spans} - excluded) & state.members.keys():
        state.members[reducer].reliability.reduce.succeed()


def _settle_holder(state: RunState, peer: PeerId, entry: Contribution, offer: Offer, *, is_whole: bool) -> None:
    member = state.members.get(peer)
    holder: Member | Departed | None = member or state.departed.get(peer)
    if holder is None or holder.accumulator != entry.accumulator:
        return
    holder.carried = 0 if is_whole else max((w.tokens for w in offer.weights), default=0)
    if entry.units:
        holder.samples_per_token = sum(unit.samples for unit in entry.units) / entry.weight
    if member is not None:
        for unit in entry.units:
            member.done.pop(unit, None)
        member.done_samples = sum(unit.samples for unit in member.done)
        if state.round is None or entry.slot not in state.round.dropped:
            member.reliability.included(entry.samples)


def grace(state: RunState) -> list[Command]:
    """End lost peers' leases after a fixed number of rounds rather than a fixed time (rule 11)."""
    commands: list[Command] = []
    for gone in [gone for gone in state.departed.values() if state.rounds - gone.rounds >= GRACE_ROUNDS]:
        depart(state, gone)
        back = state.leases.take_back(gone.accumulator)
        if back:
            commands.append(Note("returned", f"{back} samples of a lost machine were returned to the pool"))
    if state.leases.orphans and state.step >= state.orphans_until:
        state.leases.release_orphans()
    return commands


def depart(state: RunState, gone: Departed) -> None:
    """Stop waiting for an accumulator's holder to return."""
    del state.departed[gone.peer]
    state.holders.pop(gone.accumulator, None)

"""Collect offers, from the cut to the plan: which peers to ask, which offers to accept, and how long to wait."""

import math
from collections.abc import Iterable, Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.decisions import Kind
from peer_agent.protocol.coordinator.events import Command, Note, Send
from peer_agent.protocol.coordinator.phases import Why, enter
from peer_agent.protocol.coordinator.reliability import Failure
from peer_agent.protocol.coordinator.round.attempt import norm_limit
from peer_agent.protocol.coordinator.round.audits import draw, draw_seeds, is_comparable, must_be_comparable, rule_of
from peer_agent.protocol.coordinator.round.choosing import contributed, may_offer
from peer_agent.protocol.coordinator.round.planning import patience_s, plan
from peer_agent.protocol.coordinator.round.replicas import leave_behind
from peer_agent.protocol.coordinator.round.screening import doubt_losses, slots_of
from peer_agent.protocol.coordinator.round.voiding import is_current, void
from peer_agent.protocol.coordinator.state import NO_ACCUMULATOR, Chosen, Member, Phase, Round, RunState, stated
from peer_agent.protocol.coordinator.workers.batch import usual_s
from peer_agent.protocol.coordinator.workers.counts import blame, is_asked, recount, recount_all
from peer_agent.protocol.coordinator.workers.settlement import end_leases
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.plan import QUORUM_PERCENT
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.timing import LEAST_SIGMA, REPORT_S, usual_wait_s


def may_cut(state: RunState) -> bool:
    """Return True if a round may begin: working machines have the target batch, and nothing else prevents it.

    `acting` asks in addition whether the round has to wait for replicas.
    """
    if state.phase is not Phase.ACCUMULATE or contributed(state) < state.recipe.target_batch:
        return False
    if state.rolling is not None or state.is_recovering:
        return False
    return state.goal == "running" and not state.done and state.has_quorum and state.can_reduce()


def cut(state: RunState) -> list[Command]:
    """Begin a round. Ask the trainers that take part to offer their work up to the last finished micro-batch."""
    chosen = state.chosen or stated(state.recipe)
    able = [member for member in state.ready() if is_asked(state, member.reliability)]
    asked = [member for member in able if member.peer not in chosen.left_out]
    waited_for = {member.peer for member in asked if member.counted[1] and may_offer(member)}
    state.rounds += 1
    state.attempt += 1
    wait_s = offer_s(state)
    state.round = Round(
        number=state.rounds,
        attempt=state.attempt,
        persons={member.peer: (member.person, member.machine) for member in asked},
        held={member.peer: member.done_samples for member in asked},
        waiting=waited_for,
        cut_at=state.now,
        deadline=state.now + wait_s,
        codec_down=chosen.codec_down,
        left_out={member.peer: chosen.left_out[member.peer] for member in able if member.peer in chosen.left_out},
        codecs={member.peer: chosen.codecs.get(member.peer, state.recipe.codec_up) for member in asked},
        repeat_at=state.now + wait_s / 2,
    )
    enter(state, Why.FULL)
    leave_behind(state)
    state.started, state.quotas_raised, state.moved_at = True, False, state.now
    recount_all(state)
    return [*_cuts(state, state.round, state.round.codecs), *_leave_out(state, state.round, chosen)]


def _leave_out(state: RunState, round_: Round, chosen: Chosen) -> list[Command]:
    """Tell each peer why the round leaves it out. Send E231 once to a peer that can never keep up (rule 14)."""
    commands: list[Command] = []
    for peer, reason in round_.left_out.items():
        said = m.SitOut(
            run=state.run,
            step=state.step,
            fence=state.fence,
            attempt=round_.attempt,
            round=round_.number,
            reason=reason,
        )
        commands.append(Send((peer,), said))
        member = state.members[peer]
        if peer in chosen.cannot_follow and not member.told_slow:
            member.told_slow = True
            fault = Fault.of("E231", step_s=f"{chosen.step_s:.0f}")
            commands.append(Send((peer,), m.Notice(run=state.run, code=fault.code, text=fault.text)))
    return commands


def _cuts(state: RunState, round_: Round, peers: Iterable[PeerId]) -> list[Command]:
    """Send each peer the cut with its own codec (rule 14)."""
    by_codec: dict[Codec, list[PeerId]] = {}
    for peer in peers:
        by_codec.setdefault(round_.codecs[peer], []).append(peer)
    return [Send(tuple(those), _cut_of(state, round_, codec)) for codec, those in by_codec.items()]


def _cut_of(state: RunState, round_: Round, codec: Codec) -> m.Cut:
    return m.Cut(
        run=state.run,
        step=state.step,
        fence=state.fence,
        attempt=round_.attempt,
        round=round_.number,
        codec=codec,
        chunk_elements=state.grid.chunk_elements,
    )


def offer_s(state: RunState) -> float:
    """Return how many seconds to wait for offers, based on earlier delays. A missing offer counts as the whole wait."""
    timings = state.timings
    least_s = max(REPORT_S, LEAST_SIGMA * usual_s(state))
    return usual_wait_s(timings.offers, least_s, failures=timings.failures[Kind.OFFER])


def take_offer(state: RunState, member: Member, offer: m.Offer) -> list[Command]:
    """Accept an offer that claims no more than was leased. Otherwise, send an error and revoke the trainer's leases."""
    round_ = state.round
    if state.phase is not Phase.OFFER or round_ is None or not is_current(state, offer):
        return []
    if member.peer not in round_.persons or member.peer in round_.offers:
        return []
    if not member.accumulator:  # the coordinator revoked the accumulator after the cut and told the peer
        round_.waiting.discard(member.peer)
        return []
    fault = _fault_in(state, member, offer)
    if fault is not None:
        round_.waiting.discard(member.peer)
        notice = m.Notice(run=state.run, code=fault.code, text=fault.text)
        blame(state, member.reliability, Failure.REFUSED)
        return [Send((member.peer,), notice), *revoke(state, member, fault.text)]
    round_.offers[member.peer] = offer
    round_.waiting.discard(member.peer)
    state.timings.offers.append(state.now - round_.cut_at)
    state.moved_at = state.now
    return []


def _fault_in(state: RunState, member: Member, offer: m.Offer) -> Fault | None:
    units = [done.unit for done in offer.units]
    bounds = [state.recipe.loss_units_in(unit.samples) for unit in units]
    fewest, most = (sum(bound[end] for bound in bounds) for end in (0, 1))
    leased = most + member.carried
    if offer.accumulator != member.accumulator or not state.leases.holds(offer.accumulator, units):
        return Fault.of("E219", claimed=offer.loss_tokens, leased=0)
    highest = max((w.tokens for w in offer.weights), default=0)  # loss_tokens decide how samples are credited
    if len(set(units)) != len(units) or not fewest <= offer.loss_tokens <= most:
        return Fault.of("E219", claimed=offer.loss_tokens, leased=leased)
    is_said = offer.loss_tokens <= highest <= offer.loss_tokens + member.carried
    if not is_said or not _tiles(offer.weights, state.grid.chunks):
        return Fault.of("E219", claimed=offer.loss_tokens, leased=leased)
    oldest = state.step - max(state.recipe.staleness, 1)
    if any(not oldest <= done.base <= state.step for done in offer.units):
        return Fault.of("E206", reason=f"a unit was computed before step {oldest}")
    if not (math.isfinite(offer.norm) and offer.norm >= 0 and math.isfinite(offer.loss_sum)):
        return Fault.of("E206", reason="the norm or the loss is not a finite number")
    return None


def _tiles(weights: Sequence[m.Weight], chunks: int) -> bool:
    """Return True if the ranges cover all chunks exactly once, in order."""
    position = 0
    for weight in weights:
        if weight.first != position or weight.stop <= weight.first or weight.tokens < 0:
            return False
        position = weight.stop
    return position == chunks


def repeat_cut(state: RunState) -> list[Command]:
    """Halfway through the wait, resend the cut to peers that have not answered, in case a message was lost."""
    round_ = state.round
    if state.phase is not Phase.OFFER or round_ is None or state.now < round_.repeat_at or not round_.waiting:
        return []
    round_.repeat_at = round_.deadline
    return _cuts(state, round_, sorted(round_.waiting))


def close_offers(state: RunState, seed: int) -> list[Command]:
    """Plan the round if enough was offered, or else void it. Later offers do not count."""
    assert state.round is not None
    return plan_offers(state, seed) if has_enough(state, state.round) else void_offers(state)


def void_offers(state: RunState) -> list[Command]:
    """End the round, because too little was offered."""
    round_ = state.round
    assert round_ is not None
    state.timings.failures[Kind.OFFER] += bool(round_.waiting)
    for peer in sorted(round_.held.keys() & state.members.keys() - round_.waiting):
        offer, member = round_.offers.get(peer), state.members[peer]
        offered = sum(done.unit.samples for done in offer.units) if offer is not None else 0
        if offered < round_.held[peer] and member.accumulator:
            blame(state, member.reliability, Failure.MISSED)  # it offered less than it had reported at the cut
    return void(state, Why.TOO_LITTLE, "too few machines answered in time")


def plan_offers(state: RunState, seed: int) -> list[Command]:
    """Plan the round with the offers so far, and draw the contributions to audit."""
    round_ = state.round
    assert round_ is not None
    returned = _return_of_slow(state, round_) + _return_of_incomparable(state, round_)
    state.timings.offers.extend([round_.deadline - round_.cut_at] * len(round_.waiting))  # a lower bound
    round_.slots = slots_of(state, round_)
    round_.rule = rule_of(state, round_)
    round_.norm = norm_limit(round_, [Included(0, state.grid.chunks, tuple(range(len(round_.slots))))])
    enter(state, Why.OFFERED)
    state.moved_at, round_.deadline = state.now, state.now + patience_s(state)
    draw_seeds(state, round_, seed)
    planned = plan(state)
    return returned + doubt_losses(state, round_) + planned + draw(state, round_)


def has_enough(state: RunState, round_: Round) -> bool:
    """Return True if the offers so far amount to a quorum of the batch."""
    return _is_enough(state, _samples(offer for offer in round_.offers.values() if offer.loss_tokens))


def _is_enough(state: RunState, samples: int) -> bool:
    """Return True if this many samples are a quorum of the batch (rule 7)."""
    return 100 * samples >= QUORUM_PERCENT * state.recipe.target_batch


def _samples(offers: Iterable[m.Offer]) -> int:
    return sum(done.unit.samples for offer in offers for done in offer.units)


def _return_of_slow(state: RunState, round_: Round) -> list[Command]:
    """Revoke the leases of slow peers whose carried gradients are so large that no quorum is possible without them.

    Do so only if the other peers' offers amount to a quorum of the batch.
    """
    commands: list[Command] = []
    slow = [peer for peer in sorted(round_.offers.keys() & state.members) if state.members[peer].reliability.was_late]
    for peer in slow:
        member, offer = state.members[peer], round_.offers[peer]
        others = [other for of, other in round_.offers.items() if of != peer]
        most = max((weight.tokens for weight in offer.weights), default=0)
        whole = most + sum(other.loss_tokens for other in others)
        is_needed = 100 * (whole - most) < QUORUM_PERCENT * whole
        if is_needed and _is_enough(state, _samples(others)):
            del round_.offers[peer]
            member.reliability.was_late = False
            commands += revoke(state, member, "it was too slow before, and holds more than the others can do without")
    return commands


def _return_of_incomparable(state: RunState, round_: Round) -> list[Command]:
    """Revoke the leases of machines in doubt, or long unchecked, whose gradients no auditor could compute again.

    Otherwise, a machine could avoid all checks by never sending a part of its gradient. Do so only if the other peers'
    offers amount to a quorum of the batch.
    """
    commands, samples = list[Command](), _samples(round_.offers.values())
    for peer in sorted(round_.offers.keys() & state.members):
        member, offer = state.members[peer], round_.offers[peer]
        is_avoiding = not is_comparable(offer) and must_be_comparable(state, member)
        if offer.loss_tokens and is_avoiding and _is_enough(state, samples - _samples([offer])):
            del round_.offers[peer]
            samples -= _samples([offer])
            commands += revoke(state, member, "no other machine could have checked its gradient")
    return commands


def revoke(state: RunState, member: Member, reason: str) -> list[Command]:
    """End the leases of a member's accumulator. The trainer then starts another accumulator (rule 11)."""
    back = end_leases(state, member.accumulator)
    message = revoked(state, member.accumulator, reason)
    state.holders.pop(member.accumulator, None)
    member.accumulator, member.done, member.done_samples, member.carried = NO_ACCUMULATOR, {}, 0, 0
    recount(state, member)
    text = f"{back} of {member.person}'s samples were returned to the pool ({reason})"
    return [Send((member.peer,), message), Note("returned", text, (member.person,))]


def revoked(state: RunState, accumulator: AccumulatorId, reason: str) -> m.AccumulatorRevoked:
    return m.AccumulatorRevoked(run=state.run, accumulator=accumulator, reason=reason)

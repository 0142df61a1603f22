"""Leased units, those in hand, and what is done: a unit is in exactly one of queue, hand, fresh and kept."""

from collections.abc import Iterable

from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.trainer import tokens
from peer_agent.protocol.trainer.events import (
    Action,
    Compute,
    Computed,
    Discard,
    DiscardHeld,
    Keep,
    NotFinite,
    Renew,
    Tell,
    Warn,
)
from peer_agent.protocol.trainer.opened import OpenedRecord
from peer_agent.protocol.trainer.speaking import report, say
from peer_agent.protocol.trainer.state import ROUND, Done, InHand, Phase, TrainerState, accumulator_of
from peer_agent.protocol.trainer.transitions import Cause, ignores, move

MOST_UNITS = 100_000  # as many as a lease can name
REMEMBERED = 4096  # units of the last updates, so that a lease that is said twice is recognized
PASSED_OVER = 4  # rounds in a row after which work is kept although it is a step old


def take_lease(state: TrainerState, lease: m.Lease) -> list[Action]:
    """More to do. A lease that crosses a hello was granted before the host knew what we hold: it does not count."""
    if ignores(state, Cause.LEASED) or state.unanswered:
        return []
    move(state, Cause.LEASED, state.phase)
    known = {*state.undone, *state.fresh, *state.kept, *state.settled}
    new = [unit for unit in dict.fromkeys(lease.units) if unit not in known]
    state.queue.extend(new[: max(0, MOST_UNITS - len(state.queue))])
    state.quota, state.coming = lease.quota, lease.coming
    return work(state)


def work(state: TrainerState) -> list[Action]:
    """Begin the next units: where they are of use, and not beyond the quota."""
    if not _is_of_use(state) or state.in_hand is not None or not state.queue or state.is_full:
        return []
    state.jobs += 1
    state.in_hand = InHand(state.jobs, _of_one_pass(state))
    return [Compute(state.in_hand.job, state.in_hand.units)]


def _of_one_pass(state: TrainerState) -> tuple[Unit, ...]:
    """As many as the device takes; none is among them that would not be begun if they came one after another."""
    units: list[Unit] = []
    room = state.room
    while state.queue and room > 0 and len(units) < state.in_one_pass:
        units.append(state.queue.popleft())
        room -= units[-1].samples
    return tuple(units)


def _is_of_use(state: TrainerState) -> bool:
    """At the head and not in a round; with staleness 1 also in one, until its averages are here (rule 10).

    An update waits for what is in hand, so none is begun where there is nothing else to wait for.
    """
    if not state.overlaps or state.phase is Phase.ACCUMULATE:
        return state.phase is Phase.ACCUMULATE
    if state.head - state.index > state.staleness or state.round is None:
        return False
    return state.phase in ROUND or (state.phase is Phase.APPLYING and not state.round.is_gathered)


def pause(state: TrainerState) -> None:
    """A round begins, or the head is elsewhere: what is in hand is left, unless work may overlap that."""
    if not state.overlaps:
        abandon(state)


def abandon(state: TrainerState) -> None:
    """Leave what is in hand undone: what its thread still finds does not count."""
    if state.in_hand is not None:
        state.queue.extendleft(reversed(state.in_hand.units))
        state.in_hand = None


def take_result(state: TrainerState, result: Computed | NotFinite) -> list[Action]:
    """A pass is finished, in time or not. One that began too many steps ago is done again."""
    if ignores(state, Cause.RESULT) or state.in_hand is None or state.in_hand.job != result.job:
        return []
    move(state, Cause.RESULT, state.phase)
    units, state.in_hand = state.in_hand.units, None
    state.in_one_pass = result.in_one_pass
    if isinstance(result, NotFinite) and len(units) == 1:
        returned = m.UnitsReturned(run=state.run, units=units, reason="non_finite")
        return [Warn(not_finite(units)), *say(state, returned), *work(state)]
    if isinstance(result, NotFinite) or result.base < oldest(state):  # of several, the device takes each alone next
        state.queue.extendleft(reversed(units))
        return work(state)
    state.fresh |= _done(units, result)
    return [Keep(result.job), *report(state), *work(state)]


def _done(units: tuple[Unit, ...], result: Computed) -> dict[Unit, Done]:
    """How each was computed: of the loss of a pass, a unit has its part by loss tokens. They leave together or not."""
    total = sum(result.loss_tokens) or 1
    return {
        unit: Done(result.base, result.loss_sum * (tokens / total), tokens)
        for unit, tokens in zip(units, result.loss_tokens, strict=True)
    }


def not_finite(units: Iterable[Unit]) -> Fault:
    """In the words for whoever must look at the data."""
    ranges = sorted({(unit.shard, unit.start, unit.stop) for unit in units})
    samples = ", ".join(f"{start}-{stop - 1}" for _, start, stop in ranges)
    return Fault.of("E108", samples=samples, shard=", ".join(str(shard) for shard in sorted({r[0] for r in ranges})))


def give_back(state: TrainerState) -> list[Action]:
    """Return what is not begun."""
    units = tuple(state.queue)
    state.queue.clear()
    return say(state, m.UnitsReturned(run=state.run, units=units, reason="leaving")) if units else []


def renew(state: TrainerState, seed: int) -> list[Action]:
    """Forget the accumulator and everything leased to it; begin another."""
    state.accumulator = accumulator_of(seed)
    state.queue.clear()
    state.in_hand = None
    state.fresh, state.kept = {}, {}
    state.settled.clear()
    state.held = tokens.nothing(state.chunks)
    state.quota = state.passed_over = 0
    return [Renew()]


def keep_fresh(state: TrainerState) -> None:
    """At the cut, what was never offered joins what is held: from now on they are one sum."""
    state.held = state.weights
    state.kept |= state.fresh
    state.fresh = {}


def clear_included(state: TrainerState, record: OpenedRecord) -> bool:
    """What was averaged in is held no more. False where it is not what lies here, and cannot be taken out of it."""
    own, round_ = record.own, state.round
    if own is None or own.accumulator != state.accumulator:
        return True
    if round_ is None or round_.offer is None or {d.unit for d in round_.offer.units} != set(own.units):
        return False
    if not own.included:
        return True
    state.held = tokens.cleared(state.held, own.included)
    state.kept = {}
    state.settled |= dict.fromkeys(own.units)
    for unit in list(state.settled)[: max(0, len(state.settled) - REMEMBERED)]:
        del state.settled[unit]
    return True


def do_again(state: TrainerState) -> list[Action]:
    """Work of a step that was cut without us is done again on the new parameters, so that steps stay exact.

    It is little, for we had only just become ready. A machine that is always too late keeps its work instead: it goes
    into the next step one step old, and that step says that it is not exact (rule 10). Older than that it is refused.
    With staleness 1 it is kept at once, as long as none of it is too old.
    """
    if not state.fresh:
        return []
    state.passed_over += 1
    may_be_old = state.overlaps or state.passed_over >= PASSED_OVER
    if may_be_old and not _is_too_old(state, state.fresh):
        return []
    state.queue.extendleft(reversed(state.fresh))
    state.fresh = {}
    return [Discard()]


def has_too_old(state: TrainerState) -> bool:
    """Whether what was offered and left out would be refused now: it cannot be taken out of the sum either."""
    return _is_too_old(state, state.kept)


def give_up_held(state: TrainerState) -> list[Action]:
    """With staleness 1, what was offered, left out and is too old goes back; what was computed since then stays."""
    units = tuple(state.kept)
    state.kept, state.held = {}, tokens.nothing(state.chunks)
    told = Tell(
        "A step was made without this machine's share, which is too old for the next one and returns to the pool."
    )
    return [told, DiscardHeld(), *say(state, m.UnitsReturned(run=state.run, units=units, reason="stale"))]


def oldest(state: TrainerState) -> int:
    """The step before whose parameters nothing may have been computed that is offered now (rule 10)."""
    return state.step - max(state.staleness, 1)


def _is_too_old(state: TrainerState, units: dict[Unit, Done]) -> bool:
    return any(how.base < oldest(state) for how in units.values())

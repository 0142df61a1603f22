"""The units leased to a trainer. Each one is in exactly one of `queue`, `in_hand`, `fresh` and `kept`."""

from collections.abc import Iterable

from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.sealed import OpenedRecord
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
from peer_agent.protocol.trainer.speaking import report, say
from peer_agent.protocol.trainer.state import ROUND, Done, InHand, Phase, TrainerState, accumulator_of
from peer_agent.protocol.trainer.transitions import Cause, ignores, move

MOST_UNITS = 100_000  # most units in the queue: as many as one lease can name
REMEMBERED = 4096  # units remembered from the last updates, to recognize repeated leases
PASSED_OVER = 4  # after this many rounds in a row without this trainer, keep work that is one step old


def take_lease(state: TrainerState, lease: m.Lease) -> list[Action]:
    """Queue leased units. Ignore them while a hello is unanswered: the host does not know this trainer's work yet."""
    if ignores(state, Cause.LEASED) or state.unanswered:
        return []
    move(state, Cause.LEASED, state.phase)
    known = {*state.undone, *state.fresh, *state.kept, *state.settled}
    new = [unit for unit in dict.fromkeys(lease.units) if unit not in known]
    state.queue.extend(new[: max(0, MOST_UNITS - len(state.queue))])
    state.quota, state.coming = lease.quota, lease.coming
    return work(state)


def work(state: TrainerState) -> list[Action]:
    """Begin computing the next units if their gradients are useful now and within the quota."""
    if not _is_of_use(state) or state.in_hand is not None or not state.queue or state.is_full:
        return []
    state.jobs += 1
    state.in_hand = InHand(state.jobs, _of_one_pass(state))
    return [Compute(state.in_hand.job, state.in_hand.units)]


def _of_one_pass(state: TrainerState) -> tuple[Unit, ...]:
    """Take as many units from the queue as the device computes at once, or fewer if they use up the quota."""
    units: list[Unit] = []
    room = state.room
    while state.queue and room > 0 and len(units) < state.in_one_pass:
        units.append(state.queue.popleft())
        room -= units[-1].samples
    return tuple(units)


def _is_of_use(state: TrainerState) -> bool:
    """Return True if computing may begin.

    With staleness 0, all entries must be applied and no round may be open. With staleness 1, the trainer also computes
    during a round, until the round's averages have arrived (rule 10). A unit begun after that would delay the update.
    """
    if not state.overlaps or state.phase is Phase.ACCUMULATE:
        return state.phase is Phase.ACCUMULATE
    if state.head - state.index > state.staleness or state.round is None:
        return False
    return state.phase in ROUND or (state.phase is Phase.APPLYING and not state.round.is_gathered)


def pause(state: TrainerState) -> None:
    """Abandon the units in hand when a round begins or a newer entry exists, unless the recipe lets work overlap."""
    if not state.overlaps:
        abandon(state)


def abandon(state: TrainerState) -> None:
    """Put the units in hand back into the queue. The result of the running pass will be ignored."""
    if state.in_hand is not None:
        state.queue.extendleft(reversed(state.in_hand.units))
        state.in_hand = None


def take_result(state: TrainerState, result: Computed | NotFinite) -> list[Action]:
    """Process a finished pass. Compute its units again if the parameters used are too old.

    Also compute them again if the gradient of several units together was not finite.
    """
    if ignores(state, Cause.RESULT) or state.in_hand is None or state.in_hand.job != result.job:
        return []
    move(state, Cause.RESULT, state.phase)
    units, state.in_hand = state.in_hand.units, None
    state.in_one_pass = result.in_one_pass
    if isinstance(result, NotFinite) and len(units) == 1:
        returned = m.UnitsReturned(run=state.run, units=units, reason="non_finite")
        return [Warn(not_finite(units)), *say(state, returned), *work(state)]
    if isinstance(result, NotFinite) or result.base < oldest(state):  # if not finite, each unit alone
        state.queue.extendleft(reversed(units))
        return work(state)
    state.fresh |= _done(units, result)
    return [Keep(result.job), *report(state), *work(state)]


def _done(units: tuple[Unit, ...], result: Computed) -> dict[Unit, Done]:
    """Return a `Done` for each unit. The pass's loss is divided among the units in proportion to their loss tokens."""
    total = sum(result.loss_tokens) or 1
    return {
        unit: Done(result.base, result.loss_sum * (tokens / total), tokens)
        for unit, tokens in zip(units, result.loss_tokens, strict=True)
    }


def not_finite(units: Iterable[Unit]) -> Fault:
    """Return E108 with the samples to check."""
    ranges = sorted({(unit.shard, unit.start, unit.stop) for unit in units})
    samples = ", ".join(f"{start}-{stop - 1}" for _, start, stop in ranges)
    return Fault.of("E108", samples=samples, shard=", ".join(str(shard) for shard in sorted({r[0] for r in ranges})))


def give_back(state: TrainerState) -> list[Action]:
    """Give back the units that the trainer has not begun."""
    units = tuple(state.queue)
    state.queue.clear()
    return say(state, m.UnitsReturned(run=state.run, units=units, reason="leaving")) if units else []


def renew(state: TrainerState, seed: int) -> list[Action]:
    """Forget the accumulator and all its leases, and start a new one."""
    state.accumulator = accumulator_of(seed)
    state.queue.clear()
    state.in_hand = None
    state.fresh, state.kept = {}, {}
    state.settled.clear()
    state.held = tokens.nothing(state.chunks)
    state.quota = state.passed_over = 0
    return [Renew()]


def keep_fresh(state: TrainerState) -> None:
    """Add the fresh sum to the held sum at the cut. The two cannot be separated afterwards."""
    state.held = state.weights
    state.kept |= state.fresh
    state.fresh = {}


def clear_included(state: TrainerState, record: OpenedRecord) -> bool:
    """Remove the work that the record includes from the held work.

    Return False if the record includes other units of this trainer than the open offer.
    """
    own, round_ = record.own, state.round
    if own is None or own.accumulator != state.accumulator:
        return True
    if round_ is None or round_.offer is None or {d.unit for d in round_.offer.units} != set(own.units):
        return False
    if not own.included:
        return True
    state.held = tokens.cleared(state.held, tokens.spans_of(own))
    state.kept = {}
    state.settled |= dict.fromkeys(own.units)
    for unit in list(state.settled)[: max(0, len(state.settled) - REMEMBERED)]:
        del state.settled[unit]
    return True


def do_again(state: TrainerState) -> list[Action]:
    """Compute this trainer's fresh work again after a step without the trainer, so that steps stay exact.

    There is little to compute again, because this trainer had only just become ready. A machine that is always too late
    keeps its work. The next step then includes work that is one step old, and so is not exact (rule 10). With staleness
    1, the trainer always keeps the work unless some of it is too old.
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
    """Return True if part of the held work is so old that the site would refuse it.

    That part cannot be subtracted from the held sum.
    """
    return _is_too_old(state, state.kept)


def give_up_held(state: TrainerState) -> list[Action]:
    """Give back offered work that is too old (staleness 1). Keep the work computed since the offer."""
    units = tuple(state.kept)
    state.kept, state.held = {}, tokens.nothing(state.chunks)
    told = Tell(
        "A step was made without this machine's share, which is too old for the next one and returns to the pool."
    )
    return [told, DiscardHeld(), *say(state, m.UnitsReturned(run=state.run, units=units, reason="stale"))]


def oldest(state: TrainerState) -> int:
    """Return the oldest step whose parameters may have been used for work offered now (rule 10)."""
    return state.step - max(state.staleness, 1)


def _is_too_old(state: TrainerState, units: dict[Unit, Done]) -> bool:
    return any(how.base < oldest(state) for how in units.values())

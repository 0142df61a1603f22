"""The trainer's side of a round: the cut, the offer, plans, chunks for reducers, and how the round ends."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.sealed import OpenedPlan
from peer_agent.protocol.trainer import speaking
from peer_agent.protocol.trainer.events import (
    Action,
    Freeze,
    Frozen,
    Gathered,
    Hold,
    OpenHeard,
    Overflowed,
    Release,
    Send,
    Serve,
    StopSending,
    Tell,
    Warn,
)
from peer_agent.protocol.trainer.speaking import say
from peer_agent.protocol.trainer.state import ROUND, Phase, Round, TrainerState, listed, loss_of, tokens_of
from peer_agent.protocol.trainer.transitions import Cause, ignores, move
from peer_agent.protocol.trainer.work import keep_fresh, not_finite, pause, renew, work

EARLY_OPENS = 1000  # most Open messages waiting for their plan: the largest possible number of relays


def take_cut(state: TrainerState, cut: m.Cut) -> list[Action]:
    """Freeze and encode the finished work. Its digest is offered before any of it is sent (rule 1)."""
    if ignores(state, Cause.CUT) or cut.step != state.step or not _is_new(state, cut):
        return []
    actions = _stop(state)
    state.jobs += 1
    state.round = Round(cut, cut.attempt, state.jobs)
    move(state, Cause.CUT, Phase.FREEZE)
    return [*actions, Freeze(state.jobs, cut, state.held), *work(state)]


def take_sit_out(state: TrainerState, message: m.SitOut) -> list[Action]:
    """Offer nothing in this round, because the coordinator has left this trainer out of it.

    Keep the held work, which will be one step older in the next round (rules 10 and 30).
    """
    if ignores(state, Cause.LEFT_OUT) or message.step != state.step or not _is_new(state, message):
        return []
    actions = _stop(state)
    state.round = Round(message, message.attempt, 0)
    move(state, Cause.LEFT_OUT, Phase.OFFER)
    told = Tell(
        "This step continues without this machine: {reason}. Its work counts in the next one.",
        {"reason": message.reason},
    )
    return [*actions, Hold(message), told, *work(state)]


def _stop(state: TrainerState) -> list[Action]:
    """Release the last round, and add the finished work to the held work.

    Also abandon the units in hand, unless the recipe lets work overlap.
    """
    actions = let_go(state)
    pause(state)
    keep_fresh(state)
    return actions


def _is_new(state: TrainerState, cut: m.Cut | m.SitOut) -> bool:
    round_ = state.round
    return round_ is None or (cut.fence, cut.attempt) > (round_.cut.fence, round_.attempt)


def take_frozen(state: TrainerState, frozen: Frozen) -> list[Action]:
    """Offer the held work, identified by its Merkle root. The offer stays unchanged until the commit or void."""
    round_ = state.round
    if ignores(state, Cause.FROZEN) or round_ is None or frozen.job != round_.freeze:
        return []
    cut = round_.cut
    round_.offer = m.Offer(
        run=cut.run,
        step=cut.step,
        fence=cut.fence,
        attempt=cut.attempt,
        accumulator=state.accumulator,
        units=listed(state.kept),
        weights=state.held,
        loss_tokens=tokens_of(state.kept),
        loss_sum=loss_of(state.kept),
        norm=frozen.norm,
        root=frozen.root,
    )
    move(state, Cause.FROZEN, Phase.OFFER)
    return speaking.offer(state)


def take_overflow(state: TrainerState, overflowed: Overflowed, seed: int) -> list[Action]:
    """Give back all units and start a new accumulator, because the gradient sum is not finite."""
    round_ = state.round
    if ignores(state, Cause.OVERFLOWED) or round_ is None or overflowed.job != round_.freeze:
        return []
    units = tuple(done.unit for done in state.done)
    returned = say(state, m.UnitsReturned(run=state.run, units=units, reason="non_finite"))
    return [Warn(not_finite(units)), *returned, *start_over(state, Cause.OVERFLOWED, seed)]


def take_plan(state: TrainerState, plan: OpenedPlan) -> list[Action]:
    """Follow an attempt: receive the averages, and send this trainer's part."""
    head, round_ = plan.plan, state.round
    if ignores(state, Cause.PLANNED):
        return []
    if round_ is None:
        return _look_on(state, plan)
    if (head.step, head.fence) != _place(round_):
        return []
    if head.round > round_.cut.round:  # the messages that ended this round and began the next were lost
        return end_round(state)
    is_known = round_.plan is not None and head.attempt <= round_.attempt
    if head.round < round_.cut.round or head.attempt < round_.attempt or is_known:
        return []
    round_.plan, round_.attempt, round_.is_gathered, round_.is_dropped = plan, head.attempt, False, False
    move(state, Cause.PLANNED, Phase.REDUCE)
    early, round_.early = round_.early, []
    served = [action for peer, message in early for action in _serve(round_, peer, message)]
    return [Send(plan), *served]


def _look_on(state: TrainerState, plan: OpenedPlan) -> list[Action]:
    """Receive the averages of a round without this trainer's work, to avoid fetching them after the commit."""
    if (plan.plan.step, plan.plan.fence) != (state.step, state.fence):
        return []
    move(state, Cause.PLANNED, state.phase)
    return [Send(plan)]


def take_open(state: TrainerState, event: OpenHeard) -> list[Action]:
    """Serve a reducer that is ready for chunks. A reducer with a newer plan waits until this trainer has it too."""
    round_ = state.round
    if ignores(state, Cause.OPENED) or round_ is None:
        return []
    move(state, Cause.OPENED, state.phase)
    return _serve(round_, event.peer, event.message)


def take_drop(state: TrainerState, drop: m.Drop) -> list[Action]:
    """Stop sending this trainer's gradient if its slot was dropped.

    This frees the uplink for reducing and for the averages.
    """
    round_ = state.round
    if round_ is None or (drop.step, drop.fence) != _place(round_) or drop.attempt != round_.attempt:
        return []
    if round_.is_dropped or round_.slot is None or drop.slot != round_.slot:
        return []
    round_.is_dropped = True
    return [StopSending()]


def take_gathered(state: TrainerState, gathered: Gathered) -> list[Action]:
    """Report that all averages have arrived, and how fast (rules 5, 31).

    The report is sent even after the commit, because only the trainer knows how fast they arrived.
    """
    round_ = state.round
    if ignores(state, Cause.GATHERED) or round_ is None or gathered.attempt != round_.attempt:
        return []
    move(state, Cause.GATHERED, state.phase)
    round_.is_gathered = True
    return say(
        state,
        m.Arrivals(
            run=state.run,
            step=round_.cut.step,
            fence=round_.cut.fence,
            attempt=gathered.attempt,
            arrivals=gathered.arrivals,
            holds=gathered.holds,
            departures=gathered.departures,
        ),
    )


def _serve(round_: Round, peer: PeerId, message: m.Open) -> list[Action]:
    if (message.step, message.fence) != _place(round_) or message.attempt < round_.attempt:
        return []
    if round_.plan is None or message.attempt > round_.attempt:
        round_.early = [*round_.early, (peer, message)][-EARLY_OPENS:]
        return []
    return [Serve(peer, message)] if round_.slot == message.slot and not round_.is_dropped else []


def _place(round_: Round) -> tuple[int, int]:
    return round_.cut.step, round_.cut.fence


def take_void(state: TrainerState, void: m.Void) -> list[Action]:
    """End the round if its current attempt is void, or a later one whose plan has not arrived here."""
    round_ = state.round
    if ignores(state, Cause.ROUND_OVER) or round_ is None or void.step != round_.cut.step:
        return []
    if (void.fence, void.attempt) < (round_.cut.fence, round_.attempt):
        return []
    told = Tell("A step is retried: {reason}. Nothing was lost.", {"reason": void.reason})
    return [told, *end_round(state)]


def heed_fence(state: TrainerState, greeting: m.Greeting) -> list[Action]:
    """End the round if a new host has replaced the one that sent the cut and nothing was committed."""
    round_ = state.round
    is_over = round_ is not None and greeting.fence > round_.cut.fence and greeting.step == round_.cut.step
    return end_round(state) if is_over and state.phase in ROUND else []


def end_round(state: TrainerState) -> list[Action]:
    """End the round without an update, and keep the held work."""
    actions = let_go(state)
    _leave(state, Cause.ROUND_OVER)
    return [*actions, *work(state)]


def let_go(state: TrainerState) -> list[Action]:
    is_open, state.round = state.round is not None, None
    return [Release()] if is_open else []


def start_over(state: TrainerState, cause: Cause, seed: int) -> list[Action]:
    """Forget the accumulator and all leases, and send a hello."""
    if ignores(state, cause):
        return []
    actions = let_go(state) + renew(state, seed)
    _leave(state, cause)
    return [*actions, *speaking.hello(state)]


def _leave(state: TrainerState, cause: Cause) -> None:
    if state.phase in ROUND:
        move(state, cause, Phase.ACCUMULATE if state.is_at_head else Phase.FOLLOWING)
    else:
        move(state, cause, state.phase)

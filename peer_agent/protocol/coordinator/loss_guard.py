"""Pause a run whose loss rises suddenly, before further steps spread the harm. Its managers then decide what to do.

The loss is a median over people, so that one of them cannot pause the run by a claim. It shows the effect of all
earlier updates, including any that a machine spoilt.
"""

import math
from collections import Counter
from collections.abc import Iterable
from statistics import median

from msgspec.structs import replace

from peer_agent.protocol import reasons
from peer_agent.protocol.coordinator.events import Command, Halt, Note, Recheck, Sketched
from peer_agent.protocol.coordinator.state import LOSSES_KEPT, RunState
from peer_agent.protocol.identifiers import PeerId

LATEST = 5  # updates whose median loss is compared with that of the others, so that one unusual batch pauses nothing
RISE = 1.5  # times the usual loss
SPREAD = 10.0  # times the median distance from the usual loss
CHECKED = 3  # contributions of each machine that the site computes again
WRITTEN_S = 10.0  # for which an older answer of the database may still say that the run goes on


def watch_loss(state: RunState, loss: float | None) -> list[Command]:
    """Add an update's loss, if it is known. Pause the run if the loss has risen far, at once or little by little."""
    if loss is None or state.done or state.goal != "running":
        return []
    state.losses.append(loss)
    before, latest = list(state.losses)[:-LATEST], list(state.losses)[-LATEST:]
    if len(state.losses) < LOSSES_KEPT:
        return []
    usual, now = median(before), median(latest)
    spread = median(abs(each - usual) for each in before)
    state.lowest_loss = min(state.lowest_loss, usual)
    if now > max(RISE * usual, usual + SPREAD * spread, *before):
        return _halt(state, usual, now)
    if usual > RISE * state.lowest_loss:
        return _halt(state, state.lowest_loss, now)
    return []


def last_of_each(sketched: Iterable[Sketched]) -> tuple[Sketched, ...]:
    """Return the last three contributions of each machine, in log order."""
    times, chosen = Counter[PeerId](), list[Sketched]()
    for each in sorted(sketched, key=lambda each: each.index, reverse=True):
        gradients = {peer: seen for peer, seen in each.gradients.items() if times[peer] < CHECKED}
        times.update(gradients.keys())
        chosen.append(replace(each, gradients=gradients))
    return tuple(reversed([each for each in chosen if each.gradients]))


def forget_losses(state: RunState) -> None:
    """Forget all losses, after the organizer resumes the run or changes its data."""
    state.losses.clear()
    state.lowest_loss = math.inf


def _halt(state: RunState, before: float, now: float) -> list[Command]:
    forget_losses(state)
    reason = reasons.LOSS_ROSE.format(before=f"{before:.3g}", now=f"{now:.3g}", step=f"{state.step:,}")
    state.goal, state.pause_reason, state.halting_until = "paused", reason, state.now + WRITTEN_S
    rechecks = [Recheck(last_of_each(state.sketched))] if state.sketched else []
    return [Halt(reason), *rechecks, Note("halted", f"The run was paused, because {reason}.")]

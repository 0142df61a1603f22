"""Pause a run whose loss rises suddenly, before further steps spread the harm. Its managers then decide what to do.

The loss is a median over people, so that one of them cannot pause the run by a claim. It shows the effect of all
earlier updates, including any that a machine spoilt.
"""

from statistics import median

from peer_agent.protocol import reasons
from peer_agent.protocol.coordinator.events import Command, Halt, Note
from peer_agent.protocol.coordinator.state import LOSSES_KEPT, RunState

LATEST = 5  # updates whose median loss is compared with that of the others, so that one unusual batch pauses nothing
RISE = 1.5  # times the usual loss
SPREAD = 10.0  # times the median distance from the usual loss
WRITTEN_S = 10.0  # for which an older answer of the database may still say that the run goes on


def watch_loss(state: RunState, loss: float | None) -> list[Command]:
    """Add an update's loss, if it is known. Pause the run if the latest losses are far above those before."""
    if loss is None or state.done or state.goal != "running":
        return []
    state.losses.append(loss)
    before, latest = list(state.losses)[:-LATEST], list(state.losses)[-LATEST:]
    if len(state.losses) < LOSSES_KEPT:
        return []
    usual, now = median(before), median(latest)
    spread = median(abs(each - usual) for each in before)
    if now <= max(RISE * usual, usual + SPREAD * spread, *before):
        return []
    state.losses.clear()
    reason = reasons.LOSS_ROSE.format(before=f"{usual:.3g}", now=f"{now:.3g}", step=f"{state.step:,}")
    state.goal, state.pause_reason, state.halting_until = "paused", reason, state.now + WRITTEN_S
    return [Halt(reason), Note("halted", f"The run was paused, because {reason}.")]

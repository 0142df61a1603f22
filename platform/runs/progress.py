"""What a run's losses say of its progress. Pure: medians, since the loss of one step depends on its samples."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from runs.selectors import Measured, Point

TYPICAL = 9  # steps: the training loss of one of them says little
RISEN = 1.02  # times the best held-out loss: less is what two snapshots of a run differ by
SINCE_BEST = 2  # snapshots that were measured since, none of them better


class Overfitting(NamedTuple):
    """Held-out loss has risen since the best snapshot, while training loss fell."""

    best: Measured
    newest: Measured


def typical_loss(points: Sequence[Point]) -> float | None:
    """The median training loss of the last steps, in nats per loss unit; None without a finite one."""
    losses = [point.loss for point in points[-TYPICAL:] if math.isfinite(point.loss)]
    return median(losses) if losses else None


class Change(NamedTuple):
    """How training loss moved: by so many nats in so many steps."""

    loss: float
    steps: int


def change(points: Sequence[Point], before: int) -> Change | None:
    """How the loss of the last steps differs from that of the steps about the place `before`; None where one is none.

    Both are medians of as many steps, of which none is in both, and as far apart as their middles are.
    """
    last = max(1, min(TYPICAL, len(points) // 2, len(points) - 1 - before))
    recent, earlier = points[-last:], points[max(before + 1 - last, 0) : max(before + 1, last)]
    now, then = typical_loss(recent), typical_loss(earlier)
    if now is None or then is None:
        return None
    return Change(now - then, recent[last // 2].step - earlier[last // 2].step)


def overfitting(points: Sequence[Point], heldout: Sequence[Measured]) -> Overfitting | None:
    """Whether the run learns what only its own data have; None where nothing shows it."""
    if not heldout:
        return None
    newest, best = heldout[-1], min(heldout, key=lambda measured: measured.loss)
    since = sum(measured.place > best.place for measured in heldout)
    if since < SINCE_BEST or newest.loss < RISEN * best.loss:
        return None
    now, then = typical_loss(points), typical_loss([point for point in points if point.step <= best.step])
    fell = now is not None and then is not None and now < then
    return Overfitting(best, newest) if fell else None

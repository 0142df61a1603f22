"""The loss curve as SVG, and in one sentence. Pure: points in, text out. Colours and type come from the style sheet."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from runs.selectors import Point

MOST_POINTS = 300
TICKS = 5
NOTE_ROOM = 24  # units of height between a label and the curve


class Frame(NamedTuple):
    """A drawing of `width` x `height` units with room for labels at the left and below."""

    width: int
    height: int
    left: int = 36
    right: int = 8
    top: int = 12
    bottom: int = 24


WIDE = Frame(720, 280)
NARROW = Frame(340, 210)


class Scale(NamedTuple):
    """A straight map of [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value is drawn."""
        part = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + part * (self.end - self.start)


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most `most` points: first and last as they are, between them the means of equal groups."""
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    bounds = [round(part * len(inner) / (most - 2)) for part in range(most - 1)]
    groups = [inner[start:stop] for start, stop in pairwise(bounds)]
    return [points[0], *(_mean(group) for group in groups), points[-1]]


def ticks(low: float, high: float, most: int = TICKS) -> list[float]:
    """Round values within [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def loss_chart(points: Sequence[Point], entropy: float | None, frame: Frame = WIDE) -> str:
    """An `<svg>` of the curve with the unigram entropy as a dotted, labelled line; empty without points."""
    shown = thinned([point for point in points if math.isfinite(point.loss)])
    if not shown:
        return ""
    x = Scale(min(shown[0].step, 1), max(shown[-1].step, 2), frame.left, frame.width - frame.right)
    low, high = _bounds([point.loss for point in shown], entropy)
    y = Scale(low, high, frame.height - frame.bottom, frame.top)
    parts = [
        *(_level(text, y(value), frame) for value, text in labelled(ticks(low, high))),
        *(_step_label(value, x(value), frame) for value in ticks(x.low, x.high) if value == round(value)),
        _reference(entropy, y, frame, shown[-1].loss),
        _curve(shown, x, y),
    ]
    label = summary(points, entropy)
    size = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return f'<svg class="chart" {size} role="img" aria-label="{label}">{"".join(parts)}</svg>'


def summary(points: Sequence[Point], entropy: float | None) -> str:
    """What the curve says, for those who do not see it."""
    if not points:
        return "No step is committed yet."
    first, last = points[0], points[-1]
    if len(points) == 1:
        text = f"Loss is {last.loss:.2f} nats per token at step {last.step:,}."
    else:
        move = "fell" if last.loss < first.loss else "rose"
        text = (
            f"Loss {move} from {first.loss:.2f} nats per token at step {first.step:,} "
            f"to {last.loss:.2f} at step {last.step:,}."
        )
    if entropy is None:
        return text
    side = "below" if last.loss < entropy else "above"
    return f"{text} That is {side} {entropy:.2f}, what guessing by frequency alone would cost (unigram)."


def _mean(group: Sequence[Point]) -> Point:
    middle = group[len(group) // 2]
    return Point(middle.step, sum(point.loss for point in group) / len(group))


def _bounds(losses: Sequence[float], entropy: float | None) -> tuple[float, float]:
    values = [*losses, *([] if entropy is None else [entropy])]
    margin = max(0.05 * (max(values) - min(values)), 0.05)
    return max(0.0, min(values) - margin), max(values) + margin


def labelled(values: Sequence[float]) -> list[tuple[float, str]]:
    """Values with their texts, all with as many decimals as their step needs."""
    step = values[1] - values[0] if len(values) > 1 else 0.01
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(value, f"{value:.{decimals}f}") for value in values]


def _level(text: str, y: float, frame: Frame) -> str:
    line = f'<line class="grid" x1="{frame.left}" x2="{frame.width - frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text class="tick" x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _step_label(value: float, x: float, frame: Frame) -> str:
    anchor = "end" if x > frame.width - frame.right - 20 else "middle"
    return f'<text class="tick" x="{x:.1f}" y="{frame.height - 6}" text-anchor="{anchor}">{value:,.0f}</text>'


def _reference(entropy: float | None, y: Scale, frame: Frame, last: float) -> str:
    if entropy is None:
        return ""
    level, right = y(entropy), frame.width - frame.right
    line = f'<line class="unigram" x1="{frame.left}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}"/>'
    # At the end where the curve is not: it has fallen well below the line, or it still stands high at the left.
    place = f'x="{right}" text-anchor="end"' if y(last) - level > NOTE_ROOM else f'x="{frame.left + 4}"'
    label = f'<text class="note" {place} y="{level - 6:.1f}">unigram {entropy:.2f}</text>'
    return line + label


def _curve(points: Sequence[Point], x: Scale, y: Scale) -> str:
    path = " ".join(f"{x(point.step):.1f},{y(point.loss):.1f}" for point in points)
    end = f'<circle class="now" cx="{x(points[-1].step):.1f}" cy="{y(points[-1].loss):.1f}" r="3.5"/>'
    return f'<polyline class="curve" points="{path}"/>{end}'

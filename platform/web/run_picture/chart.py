"""The loss curve as SVG, and in one sentence. Pure: points in, text out. Colours and type come from the style sheet."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from runs.selectors import Measured, Point

MOST_POINTS = 300
TICKS = 5
NOTE_ROOM = 24  # units of height between a label and the curve
LETTER_WIDTH = 0.58  # of its height, about
MARGIN, MARGIN_FOR_NOTE = (
    0.05,
    0.15,
)  # of the range of losses: beyond them, and below the dotted line where it is lowest


class ChartFrame(NamedTuple):
    """A drawing of `width` x `height` units with room for labels at the left and below."""

    width: int
    height: int
    left: int = 36
    right: int = 8
    top: int = 12
    bottom: int = 24
    letter: int = 12  # height of type


WIDE = ChartFrame(720, 280)
NARROW = ChartFrame(340, 210)


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
    edges = [round(part * len(inner) / (most - 2)) for part in range(most - 1)]
    groups = [inner[start:stop] for start, stop in pairwise(edges)]
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


def loss_chart(
    points: Sequence[Point], entropy: float | None, frame: ChartFrame = WIDE, heldout: Sequence[Measured] = ()
) -> str:
    """An `<svg>` of the curve, empty without points. The unigram entropy is dotted, held-out losses are circles."""
    shown = thinned([point for point in points if math.isfinite(point.loss)])
    if not shown:
        return ""
    x = Scale(min(shown[0].step, 1), max(shown[-1].step, 2), frame.left, frame.width - frame.right)
    held = [point for point in heldout if point.step <= shown[-1].step]
    low, high = bounds([*(point.loss for point in shown), *(point.loss for point in held)], entropy)
    y = Scale(low, high, frame.height - frame.bottom, frame.top)
    parts = [
        *(_level(text, y(value), frame) for value, text in labelled(ticks(low, high))),
        *(_step_label(value, x(value), frame) for value in ticks(x.low, x.high) if value == round(value)),
        _reference(entropy, y, frame, shown[-1].loss),
        _curve(shown, x, y),
        *(_circle(x(point.step), y(point.loss)) for point in held),
        _legend(None if entropy is None else y(entropy), frame) if held else "",
    ]
    label = summary(points, entropy, heldout)
    size = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return f'<svg class="chart" {size} role="img" aria-label="{label}">{"".join(parts)}</svg>'


def summary(points: Sequence[Point], entropy: float | None, heldout: Sequence[Measured] = ()) -> str:
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
    if entropy is not None:
        side = "below" if last.loss < entropy else "above"
        text = f"{text} That is {side} {entropy:.2f}, what guessing by frequency alone would cost (unigram)."
    return f"{text} On held-out text: {heldout[-1].loss:.2f} at step {heldout[-1].step:,}." if heldout else text


def _mean(group: Sequence[Point]) -> Point:
    middle = group[len(group) // 2]
    return Point(middle.step, sum(point.loss for point in group) / len(group))


def bounds(losses: Sequence[float], entropy: float | None) -> tuple[float, float]:
    """The range of the vertical axis: all losses and the line to beat, with a margin."""
    values = [*losses, *([] if entropy is None else [entropy])]
    spread = max(values) - min(values)
    below = MARGIN_FOR_NOTE if entropy == min(values) else MARGIN
    return max(0.0, min(values) - max(below * spread, 0.05)), max(values) + max(MARGIN * spread, 0.05)


def labelled(values: Sequence[float]) -> list[tuple[float, str]]:
    """Values with their texts, all with as many decimals as their step needs."""
    step = values[1] - values[0] if len(values) > 1 else 0.01
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(value, f"{value:.{decimals}f}") for value in values]


def _level(text: str, y: float, frame: ChartFrame) -> str:
    line = f'<line class="grid" x1="{frame.left}" x2="{frame.width - frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text class="tick" x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _step_label(value: float, x: float, frame: ChartFrame) -> str:
    anchor = "end" if x > frame.width - frame.right - 20 else "middle"
    return f'<text class="tick" x="{x:.1f}" y="{frame.height - 6}" text-anchor="{anchor}">{value:,.0f}</text>'


def _reference(entropy: float | None, y: Scale, frame: ChartFrame, last: float) -> str:
    if entropy is None:
        return ""
    level, right = y(entropy), frame.width - frame.right
    line = f'<line class="unigram" x1="{frame.left}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}"/>'
    # Above the line at its end, or below it where the curve ends close above.
    is_close = 0 <= level - y(last) < NOTE_ROOM and level + frame.letter + 8 <= frame.height - frame.bottom
    return line + _note(f"unigram {entropy:.2f}", right, level + frame.letter + 4 if is_close else level - 6, frame)


def _note(text: str, right: float, y: float, frame: ChartFrame) -> str:
    """Words that end at `right`, on a piece of paper so that no line runs through them."""
    width = LETTER_WIDTH * frame.letter * len(text) + 6
    place = f'x="{right - width:.1f}" y="{y - frame.letter:.1f}" width="{width:.1f}" height="{frame.letter + 4}"'
    return f'<rect class="under" {place}/><text class="note" x="{right}" text-anchor="end" y="{y:.1f}">{text}</text>'


def _circle(x: float, y: float) -> str:
    return f'<circle class="held" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _legend(level: float | None, frame: ChartFrame) -> str:
    """Below the curve's beginning, where there is room as long as the loss falls; above a dotted line down there."""
    x, y = frame.left + 10.0, frame.height - frame.bottom - 12.0
    if level is not None and level > y - frame.letter - 8:
        y = level - 10
    return f'{_circle(x, y - frame.letter / 3)}<text class="note" x="{x + 10}" y="{y:.1f}">held-out</text>'


def _curve(points: Sequence[Point], x: Scale, y: Scale) -> str:
    path = " ".join(f"{x(point.step):.1f},{y(point.loss):.1f}" for point in points)
    end = f'<circle class="now" cx="{x(points[-1].step):.1f}" cy="{y(points[-1].loss):.1f}" r="3.5"/>'
    return f'<polyline class="curve" points="{path}"/>{end}'

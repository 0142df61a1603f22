"""From values to places: ranges, scales, round numbers and their texts. Pure.

`frontend/src/curve.ts` has what the live page draws with; `tests/golden/curve.json` holds both to the same answers.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

MOST_POINTS = 300
TICKS = 5
MARGIN, MARGIN_FOR_NOTE = 0.05, 0.15  # of the range of losses: beyond them, and below a dotted line that is lowest
LEAST_MARGIN = 0.05  # nats per token
MOST_NATS = 20.0  # of a loss whose perplexity is told: beyond them it says nothing

UNITS = ("", "k", "M", "G", "T", "P", "E")  # of thousands

Loss = tuple[int, float]  # step, nats per token


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


def thinned(points: Sequence[Loss], most: int = MOST_POINTS) -> list[Loss]:
    """At most `most` points: first and last as they are, between them the means of equal groups."""
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    edges = [round(part * len(inner) / (most - 2)) for part in range(most - 1)]
    groups = [inner[start:stop] for start, stop in pairwise(edges)]
    return [points[0], *(_mean(group) for group in groups), points[-1]]


def _mean(group: Sequence[Loss]) -> Loss:
    return group[len(group) // 2][0], sum(loss for _, loss in group) / len(group)


def bounds(losses: Sequence[float], unigram: float | None) -> tuple[float, float]:
    """The range of the vertical axis: all losses and the line to beat, with a margin."""
    values = [*losses, *([] if unigram is None else [unigram])]
    low, high = min(values), max(values)
    below = MARGIN_FOR_NOTE if unigram == low else MARGIN
    return (
        max(0.0, low - max(below * (high - low), LEAST_MARGIN)),
        high + max(MARGIN * (high - low), LEAST_MARGIN),
    )


def zero_bounds(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis of amounts: from zero, with a margin above."""
    return 0.0, (1.0 + MARGIN) * max(values, default=0.0) or 1.0


def ticks(low: float, high: float, most: int = TICKS) -> list[float]:
    """Round values within [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def level_texts(levels: Sequence[float]) -> list[str]:
    """Each level in figures, with as many decimals as the steps between them need."""
    step = levels[1] - levels[0] if len(levels) > 1 else 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{level:.{decimals}f}" for level in levels]


def short_text(value: float) -> str:
    """An amount in at most three digits: 0, 2e-4, 0.0125, 35.2, 1.53k, 12.4M."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    if power < -3:
        return f"{_digits(value / 10.0**power)}e{power}"
    rounded = float(f"{value:.3g}")
    unit = min(max(math.floor(math.log10(abs(rounded)) + 1e-9) // 3, 0), len(UNITS) - 1)
    return f"{_digits(rounded / 1000.0**unit)}{UNITS[unit]}"


def amount_text(value: float, unit: str = "") -> str:
    """The same with its unit: “12.4 MB”."""
    text = short_text(value)
    figure = text.rstrip("".join(UNITS))
    return f"{figure} {text[len(figure) :]}{unit}" if unit else text


def _digits(value: float) -> str:
    """At most three, and no zeros behind a point."""
    text = f"{value:#.3g}" if abs(value) < 1000 else f"{value:.0f}."
    return text.rstrip("0").rstrip(".")


def perplexity_text(loss: float) -> str:
    """e to the power of a loss, in two or three digits: 7.39, 24.5, 403, 1.1k."""
    value = math.exp(min(loss, MOST_NATS))
    if value < 1e3:
        return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
    part, unit = (value / 1e3, "k") if value < 1e6 else (value / 1e6, "M")
    return f"{part:.{1 if part < 10 else 0}f}{unit}"


def note_side(near: Sequence[float], level: float, room: float) -> Literal["above", "below"]:
    """On which side of the dotted line fewer of the `near` points of the curve are in the way; from the top."""
    above = sum(y <= level and level - y < room for y in near)
    below = sum(y > level and y - level < room for y in near)
    return "below" if above > below else "above"

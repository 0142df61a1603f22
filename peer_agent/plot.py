"""The loss curve as an SVG for pages, previews and model cards, with its layout and colors.

`frontend/src/curve.ts` draws the live curve by the same rules. Tests compare both with `tests/golden/curve.json`.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

MOST_POINTS = 300
TICKS = 5
MARGIN = 0.05  # around the curve, as a fraction of the range of losses
LEAST_MARGIN = 0.05  # in nats per token
GRID_GAP = 5 / 6  # letters between the unigram line and the nearest gridline
MOST_NATS = 20.0  # above this loss, a perplexity is meaningless

UNITS = ("", "k", "M", "G", "T", "P", "E")  # prefixes for powers of a thousand

Loss = tuple[int, float]  # step, nats per token


class Scale(NamedTuple):
    """A linear map from [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + part * (self.end - self.start)


def thinned(points: Sequence[Loss], most: int = MOST_POINTS) -> list[Loss]:
    """Return at most `most` points.

    The first and last are kept. The others are replaced by the means of groups of neighboring points.
    """
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    edges = [round(part * len(inner) / (most - 2)) for part in range(most - 1)]
    groups = [inner[start:stop] for start, stop in pairwise(edges)]
    return [points[0], *(_mean(group) for group in groups), points[-1]]


def _mean(group: Sequence[Loss]) -> Loss:
    return group[len(group) // 2][0], sum(loss for _, loss in group) / len(group)


def bounds(losses: Sequence[float], unigram: float | None) -> tuple[float, float]:
    """Return the range of the vertical axis, which contains all losses, with a margin.

    It also contains the unigram line, unless this line is out of reach.
    """
    shown = unigram if is_within_reach(losses, unigram) else None
    values = [*losses, *([] if shown is None else [shown])]
    low, high = min(values), max(values)
    margin = max(MARGIN * (high - low), LEAST_MARGIN)
    return max(0.0, low - margin), high + margin


def is_within_reach(losses: Sequence[float], unigram: float | None) -> bool:
    """Return True if the unigram line is so near the losses that the chart can show both without flattening them."""
    low, high = min(losses), max(losses)
    return unigram is not None and max(low - unigram, unigram - high) <= max(high - low, LEAST_MARGIN)


def beyond(losses: Sequence[float], unigram: float) -> str:
    """Return an arrow towards a unigram line that the chart does not show, or "" if it does."""
    if is_within_reach(losses, unigram):
        return ""
    return "↓" if unigram < min(losses) else "↑"


def zero_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of an axis for amounts: from zero to a margin above the largest value."""
    return 0.0, (1.0 + MARGIN) * max(values, default=0.0) or 1.0


def ticks(low: float, high: float, most: int = TICKS) -> list[float]:
    """Return round values within [low, high], in steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def level_texts(levels: Sequence[float]) -> list[str]:
    """Format the labels of an axis, with as many decimals as the step between the levels requires."""
    step = levels[1] - levels[0] if len(levels) > 1 else 1.0
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{level:.{decimals}f}" for level in levels]


def short_text(value: float) -> str:
    """Format an amount with at most three digits: 0, 2e-4, 0.0125, 35.2, 1.53k, 12.4M."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    if power < -3:
        return f"{_digits(value / 10.0**power)}e{power}"
    rounded = float(f"{value:.3g}")
    unit = min(max(math.floor(math.log10(abs(rounded)) + 1e-9) // 3, 0), len(UNITS) - 1)
    return f"{_digits(rounded / 1000.0**unit)}{UNITS[unit]}"


def amount_text(value: float, unit: str = "") -> str:
    """Format an amount with its unit: “12.4 MB”."""
    text = short_text(value)
    figure = text.rstrip("".join(UNITS))
    return f"{figure} {text[len(figure) :]}{unit}" if unit else text


def _digits(value: float) -> str:
    text = f"{value:#.3g}" if abs(value) < 1000 else f"{value:.0f}."
    return text.rstrip("0").rstrip(".")


def perplexity_text(loss: float) -> str:
    """Format the perplexity e^loss in two or three digits: 7.39, 24.5, 403, 1.1k."""
    value = math.exp(min(loss, MOST_NATS))
    if value < 1e3:
        return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
    part, unit = (value / 1e3, "k") if value < 1e6 else (value / 1e6, "M")
    return f"{part:.{1 if part < 10 else 0}f}{unit}"


CURVE, HELD_OUT = "training", "held-out"  # names in the key
LETTER_WIDTH = 0.58  # an estimate, as a fraction of a letter's height

Place = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


class Frame(NamedTuple):
    """The size of a drawing, with margins for labels on the left and at the bottom."""

    width: int
    height: int
    left: int = 36
    right: int = 8
    top: int = 12
    bottom: int = 24
    letter: int = 12  # height of letters

    @property
    def end(self) -> int:
        """The x position of the plot's right edge."""
        return self.width - self.right

    @property
    def foot(self) -> int:
        """The y position of the plot's lower edge."""
        return self.height - self.bottom


class Words(NamedTuple):
    """A label in a drawing. `y` is the position of its baseline."""

    text: str
    x: float
    y: float
    anchor: Anchor


class Key(NamedTuple):
    """An entry of the key. `mark` is the class of the line or circle that it explains, or "" if the label says all."""

    mark: str
    words: Words


class Layout(NamedTuple):
    """The layout of a drawing. `levels` and `unigram` are the y positions of horizontal lines."""

    frame: Frame
    points: list[Loss]  # the points shown: finite, thinned, including the first and last
    levels: list[float]
    labels: list[Words]
    unigram: float | None
    curve: list[Place]
    heldout: list[Place]  # circles at held-out losses
    key: list[Key]  # in a row above the plot; a page shows its own


def lay_out(
    points: Sequence[Loss],
    unigram: float | None,
    frame: Frame,
    *,
    heldout: Sequence[Loss] = (),
    note: str = "guessing by frequency",
    as_perplexity: bool = False,
    amount: str | None = None,
) -> Layout | None:
    """Lay out a curve of `points`, ordered by step. Return None if no point is finite.

    `as_perplexity`: label losses as perplexity. `amount`: plot amounts in this unit ("" or "B"), from zero.
    """
    shown = thinned([(step, loss) for step, loss in points if math.isfinite(loss)])
    if not shown:
        return None
    held = [(step, loss) for step, loss in heldout if step <= shown[-1][0]]
    x = Scale(min(shown[0][0], 1), max(shown[-1][0], 2), frame.left, frame.end)
    values = [value for _, value in (*shown, *held)]
    y = Scale(*(bounds(values, unigram) if amount is None else zero_bounds(values)), frame.foot, frame.top)
    levels, curve = ticks(y.low, y.high), [(x(step), y(loss)) for step, loss in shown]
    texts = _texts(levels, amount, as_perplexity=as_perplexity)
    is_near = is_within_reach(values, unigram)
    level = y(unigram) if unigram is not None and is_near else None
    key = [("curve", CURVE), *([("held", HELD_OUT)] if held else [])]
    if unigram is not None:
        text = f"{note} {_loss_text(unigram, as_perplexity=as_perplexity)}"
        key.append(("unigram", text) if is_near else ("", f"{beyond(values, unigram)} {text}"))
    return Layout(
        frame=frame,
        points=shown,
        levels=[y(value) for value in levels if level is None or abs(y(value) - level) >= GRID_GAP * frame.letter],
        labels=[*_level_labels(levels, texts, y, frame), *_step_labels(x, frame)],
        unigram=level,
        curve=curve,
        heldout=[(x(step), y(loss)) for step, loss in held],
        key=_key(key, frame) if len(key) > 1 else [],
    )


def width_of(text: str, frame: Frame) -> float:
    """Return an estimate of the width of a text in a drawing, with some margin."""
    return LETTER_WIDTH * frame.letter * len(text) + frame.letter / 2


def _texts(levels: Sequence[float], amount: str | None, *, as_perplexity: bool) -> list[str]:
    if amount is not None:
        return [amount_text(level, amount) for level in levels]
    return [*map(perplexity_text, levels)] if as_perplexity else level_texts(levels)


def _level_labels(levels: Sequence[float], texts: Sequence[str], y: Scale, frame: Frame) -> list[Words]:
    left, down = frame.left - frame.letter / 2, frame.letter / 3
    return [Words(text, left, y(value) + down, "end") for value, text in zip(levels, texts, strict=True)]


def _step_labels(x: Scale, frame: Frame) -> list[Words]:
    whole = [value for value in ticks(x.low, x.high) if value == round(value)]
    near_end = frame.end - 5 / 3 * frame.letter
    line = frame.foot + 1.5 * frame.letter
    return [Words(f"{step:,.0f}", x(step), line, "end" if x(step) > near_end else "middle") for step in whole]


def _loss_text(loss: float, *, as_perplexity: bool) -> str:
    return perplexity_text(loss) if as_perplexity else f"{loss:.2f}"


def _key(entries: Sequence[tuple[str, str]], frame: Frame) -> list[Key]:
    """Place the key above the plot, so that it ends at the plot's right edge."""
    placed: list[Key] = []
    end: float = frame.end
    for mark, text in reversed(entries):
        x = end - width_of(text, frame)
        placed.append(Key(mark, Words(text, x, frame.top - frame.letter, "start")))
        end = x - 3 * frame.letter
    return placed[::-1]


# The SVG contains only numbers and fixed words, so any page may include it. Its class names are for a style sheet; a
# standalone file has colors instead.

# A standalone file's colors: those of `frontend/static/manyhands.css` in its light theme

PAPER: Final = "#faf8f5"
INK: Final = "#22201d"
SOFT: Final = "#67615a"
LINE: Final = "#e2ddd5"
ACCENT: Final = "#a8431a"


LOOKS: dict[str, dict[str, str]] = {  # like `.chart` in frontend/static/manyhands.css
    "grid": {"stroke": LINE, "stroke-width": "1"},
    "tick": {"fill": SOFT, "font-size": "12px"},
    "unigram": {"stroke": SOFT, "stroke-width": "1.5", "stroke-dasharray": "1 5", "stroke-linecap": "round"},
    "curve": {
        "fill": "none",
        "stroke": ACCENT,
        "stroke-width": "2",
        "stroke-linejoin": "round",
        "stroke-linecap": "round",
    },
    "now": {"fill": ACCENT},
    "held": {"fill": PAPER, "stroke": SOFT, "stroke-width": "1.5"},
}


def chart_svg(layout: Layout, summary: str) -> str:
    """Return an `<svg>` element for a page. `summary` describes the curve for people who cannot see it."""
    frame = layout.frame
    size = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return f'<svg class="chart" {size} role="img" aria-label="{summary}">{_drawn(layout)}</svg>'


def standing_svg(layout: Layout, summary: str, title: str) -> str:
    """Return a standalone SVG file with a background, and a title and a key above the plot."""
    frame = layout.frame
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{summary}" font-family="system-ui, sans-serif" font-size="{frame.letter}">\n'
        f'<rect width="{frame.width}" height="{frame.height}" fill="{PAPER}"/>\n'
        f'<text x="{frame.left}" y="{frame.letter * 4 / 3:.0f}" fill="{INK}">{title}</text>\n'
        f"{_inked(_drawn(layout) + _drawn_key(layout))}\n</svg>\n"
    )


def _inked(drawing: str) -> str:
    def attributes(match: re.Match[str]) -> str:
        return " ".join(f'{name}="{value}"' for name, value in LOOKS[match[1]].items())

    return re.sub(r'class="(\w+)"', attributes, drawing)


def _drawn(layout: Layout) -> str:
    parts = [
        *(_across("grid", y, layout) for y in layout.levels),
        *(_words("tick", label) for label in layout.labels),
        "" if layout.unigram is None else _across("unigram", layout.unigram, layout),
        _line(layout.curve),
        _circle("now", layout.curve[-1]),
        *(_circle("held", place) for place in layout.heldout),
    ]
    return "".join(parts)


def _drawn_key(layout: Layout) -> str:
    """Draw each entry's line or circle, 1.5 letters long, in front of its label."""
    letter, parts = layout.frame.letter, list[str]()
    for mark, words in layout.key:
        begin, end, y = words.x - 2 * letter, words.x - letter / 2, words.y - letter / 3
        if mark == "held":
            parts.append(_circle(mark, ((begin + end) / 2, y)))
        elif mark:
            parts.append(f'<line class="{mark}" x1="{begin:.1f}" x2="{end:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_words("tick", words))
    return "".join(parts)


def _across(name: str, y: float, layout: Layout) -> str:
    return f'<line class="{name}" x1="{layout.frame.left}" x2="{layout.frame.end}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _words(name: str, words: Words) -> str:
    place = f'x="{words.x:.1f}" y="{words.y:.1f}"'
    return f'<text class="{name}" {place} text-anchor="{words.anchor}">{words.text}</text>'


def _line(places: list[Place]) -> str:
    return f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'


def _circle(name: str, place: Place) -> str:
    return f'<circle class="{name}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="3.5"/>'

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
# Margins as fractions of the range of losses: around the curve, and below the unigram line if it is the lowest value
MARGIN, MARGIN_FOR_NOTE = 0.05, 0.15
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
    below = MARGIN_FOR_NOTE if shown == low else MARGIN
    return (
        max(0.0, low - max(below * (high - low), LEAST_MARGIN)),
        high + max(MARGIN * (high - low), LEAST_MARGIN),
    )


def is_within_reach(losses: Sequence[float], unigram: float | None) -> bool:
    """Return True if the unigram line is so near the losses that the chart can show both without flattening them."""
    low, high = min(losses), max(losses)
    return unigram is not None and max(low - unigram, unigram - high) <= max(high - low, LEAST_MARGIN)


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


CURVE = "training"  # the curve's name
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


class Layout(NamedTuple):
    """The layout of a drawing. `levels` and `unigram` are the y positions of horizontal lines."""

    frame: Frame
    points: list[Loss]  # the points shown: finite, thinned, including the first and last
    levels: list[float]
    labels: list[Words]
    unigram: float | None
    note: Words | None  # label of the unigram line, on a background that hides other lines; at an edge if out of reach
    end: Words | None  # name of the curve, at its last point
    curve: list[Place]
    heldout: list[Place]  # circles at held-out losses
    legend: tuple[Place, Words] | None  # a circle, and the label that explains it


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
    text = "" if unigram is None else f"{note} {_loss_text(unigram, as_perplexity=as_perplexity)}"
    label = _note(text, level, curve, frame) if level is not None else None
    if unigram is not None and not is_near:
        label = _edge_note(text, frame, is_below=unigram < y.low)
    return Layout(
        frame=frame,
        points=shown,
        levels=[y(value) for value in levels if level is None or abs(y(value) - level) >= GRID_GAP * frame.letter],
        labels=[*_level_labels(levels, texts, y, frame), *_step_labels(x, frame)],
        unigram=level,
        note=label,
        end=_end(curve, label, frame) if amount is None else None,
        curve=curve,
        heldout=[(x(step), y(loss)) for step, loss in held],
        legend=_legend(level, label, frame) if held else None,
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


def note_place(
    curve: Sequence[Place], level: float, width: float, letter: float, edges: tuple[float, float, float]
) -> tuple[float, Literal["above", "below"]]:
    """Return the place where a label for the line y = `level` hides least of the curve.

    A place is the x position of the label's right end, and the side of the line. `edges` are the plot's left, right and
    lower edge; `width` is the label's width, `letter` the height of its letters. y grows downwards. Ties go to the
    right end of the line, and above the line rather than below it.
    """
    left, right, foot = edges
    sides: list[Literal["above", "below"]] = ["above", "below"] if level + 5 / 3 * letter <= foot else ["above"]
    places = [(end, side) for end in (right, left + width, (left + right + width) / 2) for side in sides]

    def hidden(place: tuple[float, str]) -> int:
        end, top = place[0], level - (2 * letter if place[1] == "above" else 0)
        return sum(
            min(x, next_x) <= end
            and max(x, next_x) >= end - width
            and min(y, next_y) <= top + 2 * letter
            and max(y, next_y) > top
            for (x, y), (next_x, next_y) in pairwise([*curve, curve[-1]])
        )

    return min(places, key=hidden)


def _loss_text(loss: float, *, as_perplexity: bool) -> str:
    return perplexity_text(loss) if as_perplexity else f"{loss:.2f}"


def _edge_note(text: str, frame: Frame, *, is_below: bool) -> Words:
    """Place the label of a unigram line that is out of reach at the plot's edge, with an arrow towards the line."""
    y = frame.foot - frame.letter / 2 if is_below else frame.top + frame.letter
    return Words(f"{'↓' if is_below else '↑'} {text}", frame.end, y, "end")


def end_height(
    curve: Sequence[Place], width: float, note: float | None, edges: tuple[float, float], letter: float
) -> float | None:
    """Return the baseline of the curve's name at its last point: below it, above it, or None if neither is free.

    `width` is the name's width, `note` the baseline of another label near it; `edges` are the plot's right and lower
    edge.
    """
    right, foot = edges
    y = curve[-1][1]
    near = [height for x, height in curve[:-1] if x >= right - width]

    def is_free(line: float) -> bool:
        crosses = any(line - letter <= height <= line + letter / 4 for height in near)
        return not crosses and line <= foot and (note is None or abs(note - line) >= 4 / 3 * letter)

    return next(filter(is_free, (y + 4 / 3 * letter, y - 5 / 6 * letter)), None)


def _end(curve: Sequence[Place], note: Words | None, frame: Frame) -> Words | None:
    width = width_of(CURVE, frame)
    is_near = note is not None and note.x > frame.end - width
    y = end_height(curve, width, note.y if note and is_near else None, (frame.end, frame.foot), frame.letter)
    return None if y is None or y < frame.letter else Words(CURVE, frame.end, y, "end")


def _note(text: str, level: float, curve: Sequence[Place], frame: Frame) -> Words:
    """Place the unigram line's label where it hides least of the curve."""
    edges = (frame.left, frame.end, frame.foot)
    end, side = note_place(curve, level, width_of(text, frame), frame.letter, edges)
    return Words(text, end, level + (4 / 3 if side == "below" else -1 / 2) * frame.letter, "end")


def legend_height(level: float | None, note: float | None, foot: float, letter: float) -> float:
    """Return the baseline of the legend: at the plot's lower edge `foot`, or above the unigram line and its label.

    `level` is the line's y position. `note` is the baseline of its label, or None if the label is beside the legend.
    """
    y = foot - letter
    if level is not None and level > y - 5 / 3 * letter:
        y = level - 5 / 6 * letter
    return note - 2 * letter if note is not None and abs(note - y) < 4 / 3 * letter else y


def _legend(level: float | None, note: Words | None, frame: Frame) -> tuple[Place, Words]:
    """Place the legend below the start of the curve, where there is space if the loss falls."""
    space, text = 5 / 6 * frame.letter, "held-out"
    x, end = frame.left + space, frame.left + 2 * space + width_of(text, frame)
    is_near = note is not None and note.x - width_of(note.text, frame) < end
    y = legend_height(level, note.y if note and is_near else None, frame.foot, frame.letter)
    return (x, y - frame.letter / 3), Words(text, x + space, y, "start")


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
    "note": {"fill": SOFT, "font-size": "12px"},
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
    "under": {"fill": PAPER},
}


def chart_svg(layout: Layout, summary: str) -> str:
    """Return an `<svg>` element for a page. `summary` describes the curve for people who cannot see it."""
    frame = layout.frame
    size = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return f'<svg class="chart" {size} role="img" aria-label="{summary}">{_drawn(layout)}</svg>'


def standing_svg(layout: Layout, summary: str, title: str) -> str:
    """Return a standalone SVG file with a background and a title above the plot."""
    frame = layout.frame
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{summary}" font-family="system-ui, sans-serif" font-size="{frame.letter}">\n'
        f'<rect width="{frame.width}" height="{frame.height}" fill="{PAPER}"/>\n'
        f'<text x="{frame.left}" y="{frame.letter * 4 / 3:.0f}" fill="{INK}">{title}</text>\n'
        f"{_inked(_drawn(layout))}\n</svg>\n"
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
        _under(layout.note, layout) + _words("note", layout.note) if layout.note else "",
        _words("note", layout.end) if layout.end else "",
        _line(layout.curve),
        _circle("now", layout.curve[-1]),
        *(_circle("held", place) for place in layout.heldout),
    ]
    if layout.legend:
        circle, words = layout.legend
        parts += [_under(words, layout), _circle("held", circle), _words("note", words)]
    return "".join(parts)


def _across(name: str, y: float, layout: Layout) -> str:
    return f'<line class="{name}" x1="{layout.frame.left}" x2="{layout.frame.end}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _words(name: str, words: Words) -> str:
    place = f'x="{words.x:.1f}" y="{words.y:.1f}"'
    return f'<text class="{name}" {place} text-anchor="{words.anchor}">{words.text}</text>'


def _under(note: Words, layout: Layout) -> str:
    """Draw a label's background. The legend's label begins at its position; include the circle in front of it."""
    width, letter = width_of(note.text, layout.frame), layout.frame.letter
    left, width = (note.x - width, width) if note.anchor == "end" else (note.x - 1.5 * letter, width + 1.5 * letter)
    place = f'x="{left:.1f}" y="{note.y - letter:.1f}"'
    return f'<rect class="under" {place} width="{width:.1f}" height="{letter + 4}"/>'


def _line(places: list[Place]) -> str:
    return f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'


def _circle(name: str, place: Place) -> str:
    return f'<circle class="{name}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="3.5"/>'

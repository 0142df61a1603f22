"""Where everything of a loss curve stands on a drawing. Pure: numbers in, places out, no colours and no format."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from peer_agent.plot.scales import (
    Loss,
    Scale,
    amount_text,
    bounds,
    level_texts,
    note_side,
    perplexity_text,
    thinned,
    ticks,
    zero_bounds,
)

LETTER_WIDTH = 0.58  # of its height, about

Place = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


class Frame(NamedTuple):
    """A drawing of `width` x `height` units with room for labels at the left and below."""

    width: int
    height: int
    left: int = 36
    right: int = 8
    top: int = 12
    bottom: int = 24
    letter: int = 12  # height of type

    @property
    def end(self) -> int:
        """Where the plot ends at the right."""
        return self.width - self.right

    @property
    def foot(self) -> int:
        """Where it ends below."""
        return self.height - self.bottom


class Words(NamedTuple):
    """A text that stands on the line `y`."""

    text: str
    x: float
    y: float
    anchor: Anchor


class Layout(NamedTuple):
    """All places. `levels` and `unigram` are lines across at a height; the curve ends in the newest point."""

    frame: Frame
    points: list[Loss]  # that are shown: finite, not too many, the first and the last among them
    levels: list[float]
    labels: list[Words]  # of both axes
    unigram: float | None
    note: Words | None  # what that line is, on a piece of paper so that no line runs through it
    curve: list[Place]
    heldout: list[Place]  # circles
    legend: tuple[Place, Words] | None  # one circle more, and what they are


def lay_out(
    points: Sequence[Loss],
    unigram: float | None,
    frame: Frame,
    *,
    heldout: Sequence[Loss] = (),
    note: str = "unigram",
    as_perplexity: bool = False,
    amount: str | None = None,
) -> Layout | None:
    """The places of a curve, whose `points` are in the order of their steps; None where it has no finite one.

    `as_perplexity`: the same drawing, whose texts are of that. It rises by the same factor from line to line.
    `amount`: values are amounts of this unit (“”, “B”) and no losses, so their axis begins at zero.
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
    level, value = None if unigram is None else y(unigram), unigram or 0.0
    note = f"{note} {perplexity_text(value) if as_perplexity else f'{value:.2f}'}"
    return Layout(
        frame=frame,
        points=shown,
        levels=[y(value) for value in levels],
        labels=[*_level_labels(levels, texts, y, frame), *_step_labels(x, frame)],
        unigram=level,
        note=None if level is None else _note(note, level, curve, frame),
        curve=curve,
        heldout=[(x(step), y(loss)) for step, loss in held],
        legend=_legend(level, frame) if held else None,
    )


def width_of(text: str, frame: Frame) -> float:
    """How wide words are, about, with a little paper around them."""
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


def _note(text: str, level: float, curve: Sequence[Place], frame: Frame) -> Words:
    """At the end of the dotted line, on the side where less of the curve is in the way."""
    near = [y for x, y in curve if x >= frame.end - width_of(text, frame)]
    has_room = level + 5 / 3 * frame.letter <= frame.foot
    side = note_side(near, level, 2 * frame.letter) if has_room else "above"
    return Words(text, frame.end, level + (4 / 3 if side == "below" else -1 / 2) * frame.letter, "end")


def _legend(level: float | None, frame: Frame) -> tuple[Place, Words]:
    """Below the curve's beginning, where there is room as long as the loss falls; above a dotted line down there."""
    space = 5 / 6 * frame.letter
    x, y = frame.left + space, frame.foot - float(frame.letter)
    if level is not None and level > y - 2 * space:
        y = level - space
    return (x, y - frame.letter / 3), Words("held-out", x + space, y, "start")

"""What stands beside a link to a run: its loss, its step and its curve as a PNG of 1200 x 630. Pure.

Most sites that show links take no SVG. There are numbers and our own words in it and no title: Pillow's own letters are
Latin ones, and titles are not always.
"""

import io
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from runs.selectors import Measured, Point
from web.run_picture.chart import ChartFrame, Scale, bounds, labelled, thinned, ticks

CARD = ChartFrame(1200, 630, left=96, right=56, top=190, bottom=84, letter=24)
TWICE = 2  # drawn larger and made smaller, for smooth lines
PAPER, INK, SOFT, LINE, ACCENT = "#ffffff", "#22201d", "#67615a", "#e2ddd5", "#a8431a"
DOT, GAP = 4, 14  # of the dotted line


class Shown(NamedTuple):
    """What is drawn. Losses in nats per token."""

    points: Sequence[Point]
    entropy: float | None
    heldout: Sequence[Measured]
    step: int
    target_steps: int


def curve_png(shown: Shown) -> bytes:
    """The image; before the first step it says so."""
    image = Image.new("RGB", (TWICE * CARD.width, TWICE * CARD.height), PAPER)
    pen = Pen(ImageDraw.Draw(image))
    points = thinned([point for point in shown.points if math.isfinite(point.loss)])
    _headline(pen, shown, points[-1].loss if points else None)
    if points:
        _curve(pen, shown, points)
    file = io.BytesIO()
    image.reduce(TWICE).quantize(64, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


class Pen:
    """Draws in units of the card."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self.draw = draw

    def line(self, places: Sequence[tuple[float, float]], ink: str, width: float) -> None:
        """Through all the places."""
        scaled = [(TWICE * x, TWICE * y) for x, y in places]
        self.draw.line(scaled, fill=ink, width=round(TWICE * width), joint="curve")

    def circle(self, x: float, y: float, radius: float, ink: str, *, hollow: bool = False) -> None:
        """Filled, or an outline on paper."""
        box = [TWICE * (x - radius), TWICE * (y - radius), TWICE * (x + radius), TWICE * (y + radius)]
        self.draw.ellipse(box, fill=PAPER if hollow else ink, outline=ink, width=TWICE * 3)

    def text(self, place: tuple[float, float], words: str, size: int, ink: str, anchor: str) -> float:
        """Words on paper; how wide they are. `anchor` as Pillow has it: l, m, r and s for the line they stand on."""
        scaled, font = (TWICE * place[0], TWICE * place[1]), letters(TWICE * size)
        self.draw.rectangle(self.draw.textbbox(scaled, words, font=font, anchor=anchor), fill=PAPER)
        self.draw.text(scaled, words, fill=ink, font=font, anchor=anchor)
        return self.draw.textlength(words, font=font) / TWICE


@cache
def letters(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, so that no machine needs one."""
    return ImageFont.load_default(size=size)


def _headline(pen: Pen, shown: Shown, loss: float | None) -> None:
    right = CARD.width - CARD.right
    pen.text((right, 72), "Manyhands", 30, SOFT, "rs")
    pen.text((right, 124), f"step {shown.step:,} of {shown.target_steps:,}", 36, INK, "rs")
    if loss is None:
        pen.text((56, 124), "No step is made yet", 64, INK, "ls")
        pen.text((CARD.width / 2, 410), "Many hands make light work.", 48, SOFT, "ms")
    else:
        width = pen.text((56, 124), "Loss", 40, INK, "ls")
        pen.text((56 + width + 20, 124), f"{loss:.2f}", 96, INK, "ls")
    part = min(1.0, shown.step / shown.target_steps)
    pen.line([(56, 152), (right, 152)], LINE, 8)
    pen.line([(56, 152), (56 + part * (right - 56), 152)], ACCENT, 8)


def _curve(pen: Pen, shown: Shown, points: Sequence[Point]) -> None:
    left, right, foot = CARD.left, CARD.width - CARD.right, CARD.height - CARD.bottom
    held = [point for point in shown.heldout if point.step <= points[-1].step]
    low, high = bounds([*(point.loss for point in points), *(point.loss for point in held)], shown.entropy)
    x = Scale(min(points[0].step, 1), max(points[-1].step, 2), left, right)
    y = Scale(low, high, foot, CARD.top)
    for value, words in labelled(ticks(low, high)):
        pen.line([(left, y(value)), (right, y(value))], LINE, 2)
        pen.text((left - 14, y(value) + 8), words, CARD.letter, SOFT, "rs")
    for value in ticks(x.low, x.high):
        if value == round(value):
            pen.text((x(value), CARD.height - 40), f"{value:,.0f}", CARD.letter, SOFT, "ms" if value < x.high else "rs")
    if shown.entropy is not None:
        _unigram(pen, shown.entropy, y, points[-1].loss)
    places = [(x(point.step), y(point.loss)) for point in points]
    if len(places) > 1:
        pen.line(places, ACCENT, 5)
    for point in held:
        pen.circle(x(point.step), y(point.loss), 8, SOFT, hollow=True)
    pen.circle(*places[-1], 9, ACCENT)


def _unigram(pen: Pen, entropy: float, y: Scale, last: float) -> None:
    left, right, level = CARD.left, CARD.width - CARD.right, y(entropy)
    for start, _ in pairwise(range(left, right + GAP, GAP)):
        pen.line([(start, level), (min(right, start + DOT), level)], SOFT, 3)
    is_close = 0 <= level - y(last) < 2 * CARD.letter and level + 2 * CARD.letter < CARD.height - CARD.bottom
    foot = level + CARD.letter + 8 if is_close else level - 12
    pen.text((right, foot), f"unigram {entropy:.2f}", CARD.letter, SOFT, "rs")

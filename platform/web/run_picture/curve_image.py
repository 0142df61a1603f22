"""What stands beside a link to a run: its loss, its step and its curve as a PNG of 1200 x 630. Pure.

Most sites that show links take no SVG. There are numbers and our own words in it and no title: Pillow's own letters are
Latin ones, and titles are not always.
"""

import io
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from peer_agent.plot.layout import Frame, Layout, Words
from peer_agent.plot.palette import ACCENT, INK, LINE, SHEET, SOFT
from runs.progress import typical_loss
from runs.selectors import Measured, Point
from web.run_picture.chart import laid_out

CARD = Frame(1200, 630, left=96, right=56, top=190, bottom=84, letter=24)
TWICE = 2  # drawn larger and made smaller, for smooth lines
DOT, GAP = 4, 14  # of the dotted line
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # in Pillow's words


class Shown(NamedTuple):
    """What is drawn. Losses in nats per token."""

    points: Sequence[Point]
    entropy: float | None
    heldout: Sequence[Measured]
    step: int
    target_steps: int


def site_png() -> bytes:
    """What stands beside a link to the site itself."""
    image = Image.new("RGB", (TWICE * CARD.width, TWICE * CARD.height), SHEET)
    pen = Pen(ImageDraw.Draw(image))
    pen.text((72, 130), "Manyhands", 40, SOFT, "ls")
    pen.text((72, 230), "Train AI models together,", 72, INK, "ls")
    pen.text((72, 316), "on the computers you already have", 60, INK, "ls")
    places = [(72 + 10.56 * place, 400 + 150 * (1 - math.exp(-place / 22))) for place in range(101)]
    pen.line(places, ACCENT, 6)
    pen.circle(*places[-1], 12, ACCENT)
    return _saved(image)


def figure_png(figure: str, unit: str, below: str) -> bytes:
    """What stands beside a link to a person: one figure."""
    image = Image.new("RGB", (TWICE * CARD.width, TWICE * CARD.height), SHEET)
    pen = Pen(ImageDraw.Draw(image))
    pen.text((72, 130), "Manyhands", 40, SOFT, "ls")
    width = pen.text((72, 350), figure, 132, INK, "ls")
    pen.text((72 + width + 24, 350), unit, 56, SOFT, "ls")
    pen.text((72, 440), below, 56, INK, "ls")
    pen.line([(72, 520), (CARD.width - 72, 520)], ACCENT, 8)
    return _saved(image)


def curve_png(shown: Shown) -> bytes:
    """The image; before the first step it says so."""
    image = Image.new("RGB", (TWICE * CARD.width, TWICE * CARD.height), SHEET)
    pen = Pen(ImageDraw.Draw(image))
    layout = laid_out(shown.points, shown.entropy, CARD, shown.heldout)
    _headline(pen, shown)
    if layout:
        _curve(pen, layout)
    return _saved(image)


def _saved(image: Image.Image) -> bytes:
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
        self.draw.ellipse(box, fill=SHEET if hollow else ink, outline=ink, width=TWICE * 3)

    def text(self, place: tuple[float, float], words: str, size: int, ink: str, anchor: str) -> float:
        """Words on paper; how wide they are. `anchor` as Pillow has it: l, m, r and s for the line they stand on."""
        scaled, font = (TWICE * place[0], TWICE * place[1]), letters(TWICE * size)
        self.draw.rectangle(self.draw.textbbox(scaled, words, font=font, anchor=anchor), fill=SHEET)
        self.draw.text(scaled, words, fill=ink, font=font, anchor=anchor)
        return self.draw.textlength(words, font=font) / TWICE


@cache
def letters(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, so that no machine needs one."""
    return ImageFont.load_default(size=size)


def _headline(pen: Pen, shown: Shown) -> None:
    """The number that leads on the page too: the newest held-out loss, else the training loss of the last steps."""
    name, loss = "Held-out loss", shown.heldout[-1].loss if shown.heldout else None
    if loss is None:
        name, loss = "Training loss", typical_loss(shown.points)
    right = CARD.width - CARD.right
    pen.text((right, 72), "Manyhands", 30, SOFT, "rs")
    pen.text((right, 124), f"step {shown.step:,} of {shown.target_steps:,}", 36, INK, "rs")
    if loss is None:
        pen.text((56, 124), "No steps yet", 64, INK, "ls")
        pen.text((CARD.width / 2, 410), "Many hands make light work.", 48, SOFT, "ms")
    else:
        width = pen.text((56, 124), name, 40, INK, "ls")
        pen.text((56 + width + 20, 124), f"{loss:.2f}", 96, INK, "ls")
    part = min(1.0, shown.step / shown.target_steps)
    pen.line([(56, 152), (right, 152)], LINE, 8)
    pen.line([(56, 152), (56 + part * (right - 56), 152)], ACCENT, 8)


def _curve(pen: Pen, layout: Layout) -> None:
    for level in layout.levels:
        pen.line([(CARD.left, level), (CARD.end, level)], LINE, 2)
    for label in layout.labels:
        _words(pen, label)
    if layout.unigram is not None:
        for start in range(CARD.left, CARD.end, GAP):
            pen.line([(start, layout.unigram), (min(CARD.end, start + DOT), layout.unigram)], SOFT, 3)
    if layout.note:
        _words(pen, layout.note)
    if len(layout.curve) > 1:
        pen.line(layout.curve, ACCENT, 5)
    for place in layout.heldout:
        pen.circle(*place, 8, SOFT, hollow=True)
    if layout.legend:
        circle, words = layout.legend
        pen.circle(*circle, 8, SOFT, hollow=True)
        _words(pen, words)
    pen.circle(*layout.curve[-1], 9, ACCENT)


def _words(pen: Pen, words: Words) -> None:
    pen.text((words.x, words.y), words.text, CARD.letter, SOFT, ANCHORS[words.anchor])

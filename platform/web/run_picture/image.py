"""Preview images for links: 1200 x 630 PNGs, because most sites that show links do not accept SVG. Pure functions."""

import io
import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from notices.words import NAMELESS, one_line
from peer_agent.plot import ACCENT, INK, LINE, PAPER, SOFT, Frame, Layout, Words
from runs.selectors import Measured, Point, typical_loss
from web.run_picture.curves import laid_out

CARD = Frame(1200, 630, left=96, right=56, top=256, bottom=76, letter=24)
EDGE = 56  # margin on the left and right, and above the curve
ROOM = CARD.width - 2 * EDGE
HEAD, LEADING = 78, 1.16  # baseline of the first line, and line spacing of the title
TWICE = 2  # images are drawn larger by this factor, then reduced for smooth lines
DOT, GAP = 4, 14  # length and spacing of the dots in a dotted line
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}  # Pillow's names for anchors
SIZES = ((60, 1), (46, 2))  # font sizes, and how many lines each allows
CHECKED = 20  # font size at which the shapes of letters are compared
END = "…"


# Titles and names written by people: can the font draw them, and at what size?

# Pillow's own font has ASCII and a few more characters. A machine may lack other fonts, and Bengali or Arabic text in
# the wrong font is worse than none. A title that cannot be drawn is left out of the image; `og:title` has it.


class Lines(NamedTuple):
    size: int
    lines: Sequence[str]


@cache
def letters(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font, so that no font needs to be installed."""
    return ImageFont.load_default(size=size)


def drawable(text: str) -> str:
    """Return a name on one line, without invisible characters, or "" if the font lacks one of its letters."""
    line = one_line(text)
    if line == NAMELESS and NAMELESS not in text:
        return ""
    return line if all(_is_drawn(letter) for letter in line) else ""


@lru_cache(maxsize=4096)
def _is_drawn(letter: str) -> bool:
    """Return True if the font has the letter. Letters that it lacks all have the same shape."""
    return letter == " " or _shape(letter) != _shape("\uffff")


def _shape(letter: str) -> tuple[tuple[int, ...], bytes]:
    mask = letters(CHECKED).getmask(letter)
    return tuple(mask.size), bytes(mask)


def width_of(text: str, size: int) -> float:
    return letters(size).getlength(text)


def fitted(text: str, room: float) -> Lines:
    """Return the text at the larger size if it fits on one line, otherwise at the smaller size on up to two lines.

    Text that is too long even for that is cut and ends in “…”.
    """
    for size, most in SIZES:
        lines = _broken(text, size, room)
        if len(lines) <= most:
            return Lines(size, lines)
    size, most = SIZES[-1]
    shown = lines[:most]
    while width_of(shown[-1] + END, size) > room:
        shown[-1] = shown[-1][:-1].rstrip()
    return Lines(size, [*shown[:-1], shown[-1] + END])


def _broken(text: str, size: int, room: float) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if width_of(longer, size) <= room:
            lines[-1] = longer
            continue
        pieces = _pieces(word, size, room)
        lines[len(lines) if lines[-1] else 0 :] = pieces
    return lines


def _pieces(word: str, size: int, room: float) -> list[str]:
    pieces = [""]
    for letter in word:
        if width_of(pieces[-1] + letter, size) > room:
            pieces.append("")
        pieces[-1] += letter
    return pieces


class Shown(NamedTuple):
    """The content of a run's preview image.

    Losses are in nats per token. `people` says who is training. `is_alive` is True if the run is advancing.
    """

    points: Sequence[Point]
    entropy: float | None
    heldout: Sequence[Measured]
    step: int
    target_steps: int
    title: str = ""
    state: str = ""
    is_alive: bool = False
    people: str = ""


def site_png(people: str = "") -> bytes:
    """Return the site's preview image. `people` says who is training now."""
    image, pen = _paper()
    pen.text((72, 130), "Manyhands", 40, SOFT, "ls")
    pen.text((72, 230), "Train AI models together,", 72, INK, "ls")
    pen.text((72, 316), "on the computers you already have", 60, INK, "ls")
    places = [(72 + 10.56 * place, 390 + 120 * (1 - math.exp(-place / 22))) for place in range(101)]
    pen.line(places, ACCENT, 6)
    pen.circle(*places[-1], 12, ACCENT)
    if people:
        pen.text((72, 576), people, 40, SOFT, "ls")
    return _saved(image)


def figure_png(figure: str, unit: str, below: str, name: str = "") -> bytes:
    """Return the preview image of a person or a team: one figure, and the name if the font can draw it."""
    image, pen = _paper()
    title = drawable(name)
    if title:
        lines = fitted(title, CARD.width - 144)
        pen.text((72, 148), lines.lines[0], lines.size, INK, "ls")
        pen.text((CARD.width - 72, 590), "Manyhands", 36, SOFT, "rs")
    else:
        pen.text((72, 130), "Manyhands", 40, SOFT, "ls")
    width = pen.text((72, 350), figure, 132, INK, "ls")
    pen.text((72 + width + 24, 350), unit, 56, SOFT, "ls")
    pen.text((72, 440), below, 56, INK, "ls")
    pen.line([(72, 520), (CARD.width - 72, 520)], ACCENT, 8)
    return _saved(image)


def curve_png(shown: Shown) -> bytes:
    image, pen = _paper()
    title = drawable(shown.title)
    lines = fitted(title, ROOM) if title else None
    down = _title(pen, shown, lines)
    _headline(pen, shown, down)
    layout = laid_out(shown.points, shown.entropy, CARD._replace(top=CARD.top + down), shown.heldout)
    if layout:
        _curve(pen, layout)
    return _saved(image)


def _paper() -> "tuple[Image.Image, Pen]":
    image = Image.new("RGB", (TWICE * CARD.width, TWICE * CARD.height), PAPER)
    return image, Pen(ImageDraw.Draw(image))


def _saved(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.reduce(TWICE).quantize(64, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


class Pen:
    """A pen that draws on the image in units of `CARD`."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self.draw = draw

    def line(self, places: Sequence[tuple[float, float]], ink: str, width: float) -> None:
        scaled = [(TWICE * x, TWICE * y) for x, y in places]
        self.draw.line(scaled, fill=ink, width=round(TWICE * width), joint="curve")

    def circle(self, x: float, y: float, radius: float, ink: str, *, hollow: bool = False) -> None:
        box = [TWICE * (x - radius), TWICE * (y - radius), TWICE * (x + radius), TWICE * (y + radius)]
        self.draw.ellipse(box, fill=PAPER if hollow else ink, outline=ink, width=TWICE * 3)

    def text(self, place: tuple[float, float], words: str, size: int, ink: str, anchor: str) -> float:
        """Draw words on a blank box and return their width. `anchor` is l, m or r, followed by s for the baseline."""
        scaled, font = (TWICE * place[0], TWICE * place[1]), letters(TWICE * size)
        self.draw.rectangle(self.draw.textbbox(scaled, words, font=font, anchor=anchor), fill=PAPER)
        self.draw.text(scaled, words, fill=ink, font=font, anchor=anchor)
        return self.draw.textlength(words, font=font) / TWICE


def _title(pen: Pen, shown: Shown, title: Lines | None) -> int:
    """Draw the site's name, the state and the title. Return the height that the title takes up."""
    right = CARD.width - EDGE
    pen.text((EDGE, HEAD), "Manyhands", 30, SOFT, "ls")
    width = pen.text((right, HEAD), shown.state, 32, INK if shown.is_alive else SOFT, "rs")
    if shown.is_alive:
        pen.circle(right - width - 22, HEAD - 11, 9, ACCENT)
    if title is None:
        return 0
    foot = HEAD + 14.0
    for line in title.lines:
        foot += LEADING * title.size
        pen.text((EDGE, foot), line, title.size, INK, "ls")
    return round(foot - HEAD + 4)


def _headline(pen: Pen, shown: Shown, down: int) -> None:
    """Draw the main number: the latest held-out loss or, without one, the training loss over the last steps."""
    name, loss = "Held-out loss", shown.heldout[-1].loss if shown.heldout else None
    if loss is None:
        name, loss = "Training loss", typical_loss(shown.points)
    right, foot = CARD.width - EDGE, 164 + down
    pen.text((right, foot - 40), shown.people, 28, SOFT, "rs")
    pen.text((right, foot), f"step {shown.step:,} of {shown.target_steps:,}", 32, INK, "rs")
    if loss is None:
        pen.text((EDGE, foot), "No steps yet", 60, INK, "ls")
        pen.text((CARD.width / 2, 450), "Many hands make light work.", 48, SOFT, "ms")
    else:
        width = pen.text((EDGE, foot), name, 36, INK, "ls")
        pen.text((EDGE + width + 20, foot), f"{loss:.2f}", 76, INK, "ls")
    part = min(1.0, shown.step / shown.target_steps)
    pen.line([(EDGE, foot + 26), (right, foot + 26)], LINE, 8)
    pen.line([(EDGE, foot + 26), (EDGE + part * (right - EDGE), foot + 26)], ACCENT, 8)


def _curve(pen: Pen, layout: Layout) -> None:
    for level in layout.levels:
        pen.line([(CARD.left, level), (CARD.end, level)], LINE, 2)
    for label in layout.labels:
        _words(pen, label)
    if layout.unigram is not None:
        _dotted(pen, CARD.left, CARD.end, layout.unigram)
    if len(layout.curve) > 1:
        pen.line(layout.curve, ACCENT, 5)
    for place in layout.heldout:
        pen.circle(*place, 8, SOFT, hollow=True)
    pen.circle(*layout.curve[-1], 9, ACCENT)
    for mark, words in layout.key:
        _mark(pen, mark, words.x - 2 * CARD.letter, words.x - CARD.letter / 2, words.y - CARD.letter / 3)
        _words(pen, words)


def _mark(pen: Pen, mark: str, begin: float, end: float, y: float) -> None:
    """Draw what an entry of the key explains: a line, a dotted line or a circle."""
    if mark == "curve":
        pen.line([(begin, y), (end, y)], ACCENT, 5)
    elif mark == "held":
        pen.circle((begin + end) / 2, y, 8, SOFT, hollow=True)
    elif mark == "unigram":
        _dotted(pen, begin, end, y)


def _dotted(pen: Pen, begin: float, end: float, y: float) -> None:
    for start in range(round(begin), round(end), GAP):
        pen.line([(start, y), (min(end, start + DOT), y)], SOFT, 3)


def _words(pen: Pen, words: Words) -> None:
    pen.text((words.x, words.y), words.text, CARD.letter, SOFT, ANCHORS[words.anchor])

"""What of strangers' words can be drawn, and how it fits. Pure.

Pillow's own font has ASCII and a few marks more. A machine may have other fonts or none, and Bengali or Arabic drawn
with the wrong one is worse than absent: such a title is left out of the picture, and stands beside it in `og:title`.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from PIL import ImageFont

from notices.words import NAMELESS, one_line

SIZES = ((60, 1), (46, 2))  # height of a letter, and lines at most
CHECKED = 20  # the size at which letters are looked for
END = "…"


class Lines(NamedTuple):
    """A title as it is set."""

    size: int
    lines: Sequence[str]


@cache
def letters(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, so that no machine needs one."""
    return ImageFont.load_default(size=size)


def drawable(text: str) -> str:
    """A name on one line without what is invisible; empty where the font lacks a letter of it."""
    line = one_line(text)
    if line == NAMELESS and NAMELESS not in text:
        return ""
    return line if all(_is_drawn(letter) for letter in line) else ""


@lru_cache(maxsize=4096)
def _is_drawn(letter: str) -> bool:
    """Whether the font draws something else than its box for letters that it lacks."""
    return letter == " " or _shape(letter) != _shape("\uffff")


def _shape(letter: str) -> tuple[tuple[int, ...], bytes]:
    mask = letters(CHECKED).getmask(letter)
    return tuple(mask.size), bytes(mask)


def width_of(text: str, size: int) -> float:
    """How wide a line is."""
    return letters(size).getlength(text)


def fitted(text: str, room: float) -> Lines:
    """The words at the largest size at which they fit, over two lines at most; what is too long ends in “…”."""
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
    """Lines that fit, broken between words, and within one that is wider than a line."""
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

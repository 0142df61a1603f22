"""The curve as a file of its own: the page's chart with colours in it, since no style sheet comes along. Pure."""

from collections.abc import Sequence

from runs.selectors import Measured, Point
from web.chart import Frame, loss_chart

CARD = Frame(1200, 630, left=72, right=40, top=40, bottom=48, letter=18)
INKS = {
    "grid": 'stroke="#e2ddd5"',
    "tick": 'fill="#67615a" font-family="sans-serif" font-size="18"',
    "note": 'fill="#67615a" font-family="sans-serif" font-size="18"',
    "unigram": 'stroke="#67615a" stroke-width="3" stroke-dasharray="1 8" stroke-linecap="round"',
    "curve": 'fill="none" stroke="#a8431a" stroke-width="5" stroke-linejoin="round"',
    "now": 'fill="#a8431a"',
    "held": 'fill="#ffffff" stroke="#67615a" stroke-width="3"',
    "under": 'fill="#ffffff"',
}


def curve_svg(points: Sequence[Point], entropy: float | None, heldout: Sequence[Measured] = ()) -> str:
    """A standalone image, on paper; without points only the paper."""
    drawing = loss_chart(points, entropy, CARD, heldout)
    for name, ink in INKS.items():
        drawing = drawing.replace(f'class="{name}"', ink)
    size = f'viewBox="0 0 {CARD.width} {CARD.height}" width="{CARD.width}" height="{CARD.height}"'
    inner = drawing.partition(">")[2].removesuffix("</svg>")
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{paper}{inner}</svg>'

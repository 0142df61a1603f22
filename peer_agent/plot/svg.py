"""The loss curve as SVG: of names that a style sheet colours, or with its own inks as a file that needs nothing else.

It is made of numbers and fixed words alone, so that it can stand in any page.
"""

import re

from peer_agent.plot.layout import Layout, Place, Words, width_of
from peer_agent.plot.palette import ACCENT, INK, LINE, SHEET, SOFT

LOOKS: dict[str, dict[str, str]] = {  # as `.chart` has it in frontend/static/manyhands.css
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
    "held": {"fill": SHEET, "stroke": SOFT, "stroke-width": "1.5"},
    "under": {"fill": SHEET},
}


def chart_svg(layout: Layout, summary: str) -> str:
    """An `<svg>` for a page. `summary`: what the curve says, for those who do not see it."""
    frame = layout.frame
    size = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return f'<svg class="chart" {size} role="img" aria-label="{summary}">{_drawn(layout)}</svg>'


def standing_svg(layout: Layout, summary: str, title: str) -> str:
    """A file, on paper and with a title above the plot."""
    frame = layout.frame
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{summary}" font-family="system-ui, sans-serif" font-size="{frame.letter}">\n'
        f'<rect width="{frame.width}" height="{frame.height}" fill="{SHEET}"/>\n'
        f'<text x="{frame.left}" y="{frame.letter * 4 / 3:.0f}" fill="{INK}">{title}</text>\n'
        f"{_inked(_drawn(layout))}\n</svg>\n"
    )


def _inked(drawing: str) -> str:
    """Attributes in place of the names that a style sheet would know."""

    def attributes(match: re.Match[str]) -> str:
        return " ".join(f'{name}="{value}"' for name, value in LOOKS[match[1]].items())

    return re.sub(r'class="(\w+)"', attributes, drawing)


def _drawn(layout: Layout) -> str:
    parts = [
        *(_across("grid", y, layout) for y in layout.levels),
        *(_words("tick", label) for label in layout.labels),
        "" if layout.unigram is None else _across("unigram", layout.unigram, layout),
        _under(layout.note, layout) + _words("note", layout.note) if layout.note else "",
        _line(layout.curve),
        _circle("now", layout.curve[-1]),
        *(_circle("held", place) for place in layout.heldout),
    ]
    if layout.legend:
        circle, words = layout.legend
        parts += [_circle("held", circle), _words("note", words)]
    return "".join(parts)


def _across(name: str, y: float, layout: Layout) -> str:
    return f'<line class="{name}" x1="{layout.frame.left}" x2="{layout.frame.end}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _words(name: str, words: Words) -> str:
    place = f'x="{words.x:.1f}" y="{words.y:.1f}"'
    return f'<text class="{name}" {place} text-anchor="{words.anchor}">{words.text}</text>'


def _under(note: Words, layout: Layout) -> str:
    width, letter = width_of(note.text, layout.frame), layout.frame.letter
    place = f'x="{note.x - width:.1f}" y="{note.y - letter:.1f}"'
    return f'<rect class="under" {place} width="{width:.1f}" height="{letter + 4}"/>'


def _line(places: list[Place]) -> str:
    return f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'


def _circle(name: str, place: Place) -> str:
    return f'<circle class="{name}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="3.5"/>'

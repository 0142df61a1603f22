"""The same drawing twice: with names for a style sheet, and with inks of its own. The inks are the style sheet's."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from peer_agent.plot import palette
from peer_agent.plot.layout import Frame, lay_out
from peer_agent.plot.svg import LOOKS, chart_svg, standing_svg
from tests.test_house import ROOT

STATIC: Path = ROOT / "frontend" / "static"
CURVE = [(step, 8 - step / 100) for step in range(1, 401)]
LAYOUT = lay_out(CURVE, 6.1, Frame(720, 280), heldout=[(100, 7.2), (400, 4.1)])
assert LAYOUT is not None
PAGE, FILE = chart_svg(LAYOUT, "It fell."), standing_svg(LAYOUT, "It fell.", "Loss")


def style_sheet() -> str:
    return (STATIC / "manyhands.css").read_text()


def declarations(block: str) -> dict[str, str]:
    return dict(re.findall(r"([\w-]+):\s*([^;]+);", block))


def test_the_inks_are_those_of_the_style_sheet_by_daylight() -> None:
    daylight = declarations(style_sheet().partition(":root {")[2].partition("}")[0])
    inks = {name.lower(): ink for name, ink in vars(palette).items() if name.isupper()}
    assert inks == {name: daylight[f"--{name}"] for name in ("sheet", "ink", "soft", "line", "accent")}
    assert f'fill="{palette.ACCENT}"' in (STATIC / "hand.svg").read_text()


def test_every_part_looks_as_the_style_sheet_has_it() -> None:
    for name, look in LOOKS.items():
        blocks = re.findall(
            rf"^\.chart [^{{]*\.{name}\b[^{{]*{{([^}}]*)}}|^\.chart \.{name} {{([^}}]*)}}", style_sheet(), re.MULTILINE
        )
        (block,) = [first or second for first, second in blocks]
        inked = re.sub(r"var\(--(\w+)\)", lambda match: str(getattr(palette, match[1].upper())), block)
        assert declarations(inked) == look, name


def test_every_part_has_a_look() -> None:
    assert set(re.findall(r'class="(\w+)"', PAGE)) == {"chart", *LOOKS}


def test_a_page_colours_it_itself_and_a_file_needs_nothing() -> None:
    assert not re.search(r"style=|<style|<script|\son\w+=|#[0-9a-f]{6}", PAGE)
    assert not re.search(r"class=|style=|<style|<script|href", FILE)
    for drawing in (PAGE, FILE):
        assert ET.fromstring(drawing).attrib["aria-label"] == "It fell."


def test_both_draw_the_same() -> None:
    places = ("points", "x1", "x2", "y1", "y2", "cx", "cy", "x", "y")
    page, file = (
        [{name: part.get(name) for name in places} for part in ET.fromstring(drawing)] for drawing in (PAGE, FILE)
    )
    assert file[2:] == page, "but for its paper and its title"


def test_held_out_losses_are_open_circles_with_a_word() -> None:
    drawing = ET.fromstring(PAGE)
    assert len([part for part in drawing if part.get("class") == "held"]) == 3, "two losses, one beside the word"
    assert [part.text for part in drawing if part.get("class") == "note"] == ["unigram 6.10", "held-out"]


def test_the_paper_lies_under_the_words() -> None:
    drawing = list(ET.fromstring(PAGE))
    under = next(index for index, part in enumerate(drawing) if part.get("class") == "under")
    paper, note = drawing[under], drawing[under + 1]
    top = float(paper.attrib["y"])
    assert note.get("class") == "note"
    assert top < float(note.attrib["y"]) < top + float(paper.attrib["height"])
    assert float(paper.attrib["x"]) + float(paper.attrib["width"]) == float(note.attrib["x"])


def blocks() -> tuple[str, str]:
    """The inks of a dark system, and those of a reader who chose the dark theme."""
    sheet = (STATIC / "manyhands.css").read_text()
    system = re.search(r":root:not\(\[data-theme=\"light\"\]\) \{(.*?)\}", sheet, re.DOTALL)
    chosen = re.search(r":root\[data-theme=\"dark\"\] \{(.*?)\}", sheet, re.DOTALL)
    assert system is not None
    assert chosen is not None
    return system[1], chosen[1]


def test_a_chosen_dark_theme_is_that_of_a_dark_system() -> None:
    system, chosen = (dict(re.findall(r"(--[\w-]+): ([^;]+);", block)) for block in blocks())
    assert system == chosen
    sheet = (STATIC / "manyhands.css").read_text()
    used = set(re.findall(r"\.tint-\d \{ color: var\((--tint-\d)\); \}", sheet))
    assert used == {f"--tint-{number}" for number in range(8)} <= chosen.keys(), "tints follow the theme too"

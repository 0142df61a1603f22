"""A notice in words. Pure. Names are strangers' words: on one line, and nothing in them is unseen."""

import unicodedata
from typing import NamedTuple

from notices.models import Event

LONGEST = 120  # characters of a name
MOST_MARKS = 4  # above and below one letter
JOINERS = "\u200c\u200d"  # part of how Bengali, Persian and Hindi are written
# Letters and marks by their category that show nothing.
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {chr(mark) for mark in range(0xE0100, 0xE01F0)}
RIGHT_TO_LEFT = frozenset({"R", "AL"})
NAMELESS = "untitled"


class Words(NamedTuple):
    """What one reads: a headline, and a sentence or two below it."""

    headline: str
    text: str


def one_line(name: str, most: int = LONGEST) -> str:
    """A name without what is invisible: control and formatting characters, line breaks, blank letters, piles of marks.

    Joiners stay where letters of a joining script are around them.
    """
    kept: list[str] = []
    marks = 0
    composed = unicodedata.normalize("NFC", name)
    for place, letter in enumerate(composed):
        if letter.isspace():
            kept.append(" ")
            continue
        if letter in JOINERS:
            kept += letter if _joins(composed[place - 1 : place]) and _joins(composed[place + 1 : place + 2]) else ""
            continue
        category = unicodedata.category(letter)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if category[0] != "C" and letter not in BLANK and marks <= MOST_MARKS:
            kept.append(letter)
    found = " ".join("".join(kept).split())
    return (found if len(found) <= most else f"{found[: most - 1].rstrip()}…") or NAMELESS


def _joins(letter: str) -> bool:
    """Whether a joiner beside this letter is spelling: letters without case, and their marks."""
    return bool(letter) and unicodedata.category(letter) in ("Lo", "Mn", "Mc") and letter not in BLANK


def quoted(name: str) -> str:
    """A name within our words; writing from right to left stays within its quotes (Unicode isolates)."""
    line = one_line(name)
    turns = any(unicodedata.bidirectional(letter) in RIGHT_TO_LEFT for letter in line)
    return f"“\u2068{line}\u2069”" if turns else f"“{line}”"


def words_of(event: str, *, title: str = "", machine: str = "") -> Words:
    """What a notice says. `title` is of the run, for SWITCHED_OFF the last problem."""
    run = quoted(title)
    match event:
        case Event.NEEDED:
            return Words(
                f"{run} needs volunteers", "Nobody is training right now. It continues as soon as a machine joins."
            )
        case Event.FINISHED:
            return Words(f"{run} is finished", "Its model can be downloaded.")
        case Event.STOPPED:
            return Words(f"{quoted(machine)} stopped", f"Your machine worked for {run} and has been away for a while.")
        case Event.REQUEST:
            return Words(f"New requests to join {run}", "Accept or decline them on the page where you manage the run.")
        case Event.ACCEPTED:
            return Words(f"You can join {run}", "Your request was accepted. The run's page shows how a machine joins.")
        case Event.DECLINED:
            return Words(f"{run} declined your request to join", "You can ask again a week from now.")
        case Event.CONFIRM:
            return Words(
                "Confirm your e-mail address",
                f"{one_line(title)} on this site asked for notifications at this address. Open the link below to "
                "confirm it. If that was not you, do nothing: no further e-mail is sent.",
            )
        case Event.SWITCHED_OFF:
            return Words("Your webhook was switched off", f"It failed for a day. {one_line(title)}")
        case _:
            return Words("A test from Manyhands", "Notifications reach you here.")

"""Show the code that the user enters in a browser to approve this machine."""

import asyncio
import contextlib
import os
import sys
import webbrowser
from typing import TextIO

from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import ngettext
from peer_agent.site.enrolment import Code


def show_code(code: Code, lead: str = "") -> None:
    """Show the code and the address for approving this machine. Also open a browser if there is a screen."""
    lead = lead or _("To approve this machine, open")
    for line in code_in_words(code, sys.stdout, lead):
        print(line, flush=True)
    if has_screen():
        asyncio.get_running_loop().run_in_executor(None, _open_browser, code.verification_uri_complete)


def code_in_words(code: Code, stream: TextIO, lead: str) -> list[str]:
    """Return the approval message as lines for an 80-column terminal. `lead`: the sentence before the address."""
    large = in_large_letters(code.user_code, "█" if _writes(stream, "█") else "#") if stream.isatty() else []
    minutes = round(code.expires_in / 60)
    waiting = ngettext(
        "Waiting for approval ({minutes} minute left). Press Ctrl-C to stop.",
        "Waiting for approval ({minutes} minutes left). Press Ctrl-C to stop.",
        minutes,
    )
    return [
        lead,
        "",
        f"    {code.verification_uri_complete}",
        "",
        _("and check that the page shows this code:"),
        "",
        *(f"    {line}".rstrip() for line in large),
        *([""] if large else []),
        f"    {code.user_code}",
        "",
        _("You can also enter it at {address}").format(address=code.verification_uri),
        waiting.format(minutes=minutes),
    ]


def has_screen() -> bool:
    """Return True if this terminal is interactive and a browser can open on its screen."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or "SSH_CONNECTION" in os.environ:
        return False
    if sys.platform in {"win32", "darwin"}:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open_browser(address: str) -> None:
    with contextlib.suppress(webbrowser.Error, OSError):  # the user can still copy the address from the terminal
        webbrowser.open(address)


def _writes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


ROWS = 5
# Each letter has five rows from top to bottom. A row has five bits, with the leftmost as the highest.
SHAPES = {
    "A": (14, 17, 31, 17, 17),
    "B": (30, 17, 30, 17, 30),
    "C": (15, 16, 16, 16, 15),
    "D": (30, 17, 17, 17, 30),
    "E": (31, 16, 30, 16, 31),
    "F": (31, 16, 30, 16, 16),
    "G": (15, 16, 19, 17, 15),
    "H": (17, 17, 31, 17, 17),
    "I": (14, 4, 4, 4, 14),
    "J": (7, 2, 2, 18, 12),
    "K": (17, 18, 28, 18, 17),
    "L": (16, 16, 16, 16, 31),
    "M": (17, 27, 21, 17, 17),
    "N": (17, 25, 21, 19, 17),
    "O": (14, 17, 17, 17, 14),
    "P": (30, 17, 30, 16, 16),
    "Q": (14, 17, 17, 18, 13),
    "R": (30, 17, 30, 18, 17),
    "S": (15, 16, 14, 1, 30),
    "T": (31, 4, 4, 4, 4),
    "U": (17, 17, 17, 17, 14),
    "V": (17, 17, 17, 10, 4),
    "W": (17, 17, 21, 27, 17),
    "X": (17, 10, 4, 10, 17),
    "Y": (17, 10, 4, 4, 4),
    "Z": (31, 2, 4, 8, 31),
    "-": (0, 0, 14, 0, 0),
}


def in_large_letters(code: str, ink: str = "█") -> list[str]:
    """Return a code in large letters, seven columns each. Return [] if SHAPES lacks any of the letters."""
    if any(letter not in SHAPES for letter in code):
        return []
    return ["  ".join(_row(SHAPES[letter][row], ink) for letter in code).rstrip() for row in range(ROWS)]


def _row(bits: int, ink: str) -> str:
    return "".join(ink if bits >> place & 1 else " " for place in range(4, -1, -1))

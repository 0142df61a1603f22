"""The code that a person enters in a browser to approve this machine."""

import asyncio
import contextlib
import os
import sys
import webbrowser
from typing import TextIO

from peer_agent.display.big_letters import in_large_letters
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import ngettext
from peer_agent.site.enrolment import Code


def show_code(code: Code, lead: str = "") -> None:
    """The code, large, where to enter it, and a browser where a person sits in front of one; `lead` asks for it."""
    lead = lead or _("To let this machine work for you, open")
    for line in code_in_words(code, sys.stdout, lead):
        print(line, flush=True)
    if has_screen():
        asyncio.get_running_loop().run_in_executor(None, _open_browser, code.verification_uri_complete)


def code_in_words(code: Code, stream: TextIO, lead: str) -> list[str]:
    """Lines for a terminal of 80 columns."""
    large = in_large_letters(code.user_code, "█" if _writes(stream, "█") else "#") if stream.isatty() else []
    minutes = round(code.expires_in / 60)
    waiting = ngettext(
        "Waiting for your approval for {minutes} minute. Ctrl-C stops.",
        "Waiting for your approval for {minutes} minutes. Ctrl-C stops.",
        minutes,
    )
    return [
        lead,
        "",
        f"    {code.verification_uri_complete}",
        "",
        _("and see that it shows this code (or enter it at {address}):").format(address=code.verification_uri),
        "",
        *(f"    {line}".rstrip() for line in large),
        *([""] if large else []),
        f"    {code.user_code}",
        "",
        waiting.format(minutes=minutes),
    ]


def has_screen() -> bool:
    """Whether a person sits at this terminal in front of a screen that can show a browser."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or "SSH_CONNECTION" in os.environ:
        return False
    if sys.platform in {"win32", "darwin"}:
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open_browser(address: str) -> None:
    with contextlib.suppress(webbrowser.Error, OSError):  # the address is on the terminal as well
        webbrowser.open(address)


def _writes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

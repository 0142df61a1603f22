"""From a command to a passport: known sites, tokens, and where there is neither, a person's approval in the browser."""

import asyncio
import contextlib
import os
import sys
import webbrowser
from typing import TextIO

from peer_agent.approval import Code, get_approved
from peer_agent.config import Home, KnownSite
from peer_agent.lettering import in_large_letters
from peer_agent.passport import Passport, log_in, site_of
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem

ASK_AGAIN = frozenset({"E101", "E214"})  # a person can mend these by approving the machine (again)


async def enter(home: Home, url: str, token: str, *, run: str = "") -> KnownSite:
    """Make this machine known to the site of `url`, by a token or else by a person's approval. Raises Problem."""
    return await log_in(home, url, token) if token else await get_approved(home, url, run=run, show=show_code)


async def passport_for(home: Home, url: str, slug: str, token: str) -> Passport:
    """A passport with a fresh credential for the run `slug`.

    A machine that is new to the site, or was revoked there, asks for approval first. Raises Problem.
    """
    known = home.sites().get(site_of(url))
    if known is None or token:
        return await _renewed(home, await enter(home, url, token, run=slug), slug)
    try:
        return await _renewed(home, known, slug)
    except Problem as problem:
        if problem.fault.code not in ASK_AGAIN:
            raise
        print(problem.fault.text.split(". ")[0] + ". It can be approved again now.", flush=True)
    return await _renewed(home, await enter(home, url, "", run=slug), slug)


async def _renewed(home: Home, known: KnownSite, slug: str) -> Passport:
    passport = Passport(home, known, Role.TRAINER, slug)
    await passport.renew()
    return passport


def show_code(code: Code) -> None:
    """The code, large, where to enter it, and a browser where a person sits in front of one."""
    for line in code_in_words(code, sys.stdout):
        print(line, flush=True)
    if has_screen():
        asyncio.get_running_loop().run_in_executor(None, _open_browser, code.verification_uri_complete)


def code_in_words(code: Code, stream: TextIO) -> list[str]:
    """Lines for a terminal of 80 columns."""
    large = in_large_letters(code.user_code, "█" if _writes(stream, "█") else "#") if stream.isatty() else []
    return [
        "To let this machine work for you, open",
        "",
        f"    {code.verification_uri_complete}",
        "",
        f"and see that it shows this code (or enter it at {code.verification_uri}):",
        "",
        *(f"    {line}".rstrip() for line in large),
        *([""] if large else []),
        f"    {code.user_code}",
        "",
        f"Waiting for your yes, for {round(code.expires_in / 60)} minutes. Ctrl-C stops.",
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

"""From a command to a passport: known sites, tokens, and where there is neither, a person's approval in the browser."""

import asyncio
import contextlib
import os
import sys
import webbrowser
from collections.abc import Callable
from typing import TextIO

from msgspec import Struct

from peer_agent.display.big_letters import in_large_letters
from peer_agent.machine.home import Home, KnownSite
from peer_agent.machine.sanitize import plain
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.site.credential import Passport, log_in, site_of
from peer_agent.site.device_login import Code, get_approved
from peer_agent.site.login_token import token_of_environment

KINDS = {Role.TRAINER: "agent", Role.RELAY: "relay"}
# A person can mend these by approving the machine (again); E213: it was approved, and not as a relay. Not E214: whoever
# revoked it takes that back where it was done, for a key that was shut out gets no second approval (E227).
ASK_AGAIN = {Role.TRAINER: frozenset({"E101"}), Role.RELAY: frozenset({"E101", "E213"})}


def show_code(code: Code, lead: str = "To let this machine work for you, open") -> None:
    """The code, large, where to enter it, and a browser where a person sits in front of one."""
    for line in code_in_words(code, sys.stdout, lead):
        print(line, flush=True)
    if has_screen():
        asyncio.get_running_loop().run_in_executor(None, _open_browser, code.verification_uri_complete)


class Door(Struct, frozen=True):
    """How a machine gets in where it is not known yet. `token`: a one-time token, or empty; else `show` shows a code.

    `run`: the slug of the run that it asks for.
    """

    role: Role = Role.TRAINER
    run: str = ""
    token: str = ""
    show: Callable[[Code], None] = show_code
    say: Callable[[str], None] = lambda text: print(plain(text), flush=True)

    async def enter(self, home: Home, url: str) -> KnownSite:
        """Make this machine known to the site of `url`, by a token or else by a person's approval. Raises Problem."""
        kind = KINDS[self.role]
        if token := self.token or token_of_environment():
            return await log_in(home, url, token, kind=kind, name="relay" if self.role is Role.RELAY else "")
        return await get_approved(home, url, kind=kind, run=self.run, show=self.show)


async def passport_for(home: Home, url: str, door: Door) -> Passport:
    """A passport with a fresh credential.

    A machine that is new to the site, or was no relay there yet, asks for approval first. Raises
    Problem.
    """
    known = home.sites().get(site_of(url))
    if known is None or door.token:
        return await _renewed(home, await door.enter(home, url), door)
    try:
        return await _renewed(home, known, door)
    except Problem as problem:
        if problem.fault.code not in ASK_AGAIN[door.role]:
            raise
        door.say(f"{problem.fault.text.split('. ')[0]}. It can be approved again now.")
    return await _renewed(home, await door.enter(home, url), door)


async def _renewed(home: Home, known: KnownSite, door: Door) -> Passport:
    passport = Passport(home, known, door.role, door.run)
    await passport.renew()
    return passport


def code_in_words(code: Code, stream: TextIO, lead: str) -> list[str]:
    """Lines for a terminal of 80 columns."""
    large = in_large_letters(code.user_code, "█" if _writes(stream, "█") else "#") if stream.isatty() else []
    return [
        lead,
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

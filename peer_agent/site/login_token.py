"""How a one-time token comes in without being told to everybody who lists this machine's processes.

Not as an argument: `ps` shows those to every account of the machine. The environment and files are its owner's alone.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path

from peer_agent.machine.language import gettext as _
from peer_agent.protocol.credentials import TOKEN_PREFIX
from peer_agent.protocol.errors import Problem

VARIABLE = "MANYHANDS_TOKEN"  # of the environment: for servers, where nobody approves anything
STANDARD_INPUT = "-"
BYTE_ORDER_MARK = "\ufeff"  # with which some editors begin a file
MOST = 512  # characters; a token has 46
_taken = ""


def take_variable(environment: MutableMapping[str, str]) -> None:
    """Keep the environment's token here alone, so that no child of this process inherits it."""
    global _taken  # noqa: PLW0603 (what was taken away has to be kept somewhere)
    _taken = environment.pop(VARIABLE, "")


def token_of_environment() -> str:
    """The token that the environment brings or brought; empty without one. Raises Problem E133."""
    token = os.environ.get(VARIABLE, "") or _taken
    return _checked(token, VARIABLE) if token else ""


def refuse_argument(value: str) -> str:
    """Raises Problem E132 where a token was an argument; by now it has been read by whoever looked."""
    if value:
        raise Problem.of("E132")
    return value


def token_in(path: str) -> str:
    """The token in the first line of a file, or of standard input; empty without a path. Raises Problem E133."""
    if not path:
        return ""
    where = _("Standard input") if path == STANDARD_INPUT else _("The file {path}").format(path=path)
    try:
        line = _first_line(path)
    except (OSError, UnicodeDecodeError) as error:
        raise Problem.of("E133", where=where, reason=error) from error
    return _checked(line, where)


def _checked(line: str, where: str) -> str:
    """The token that a line is. Raises Problem E133, in which nothing of it stands."""
    token = line.strip().removeprefix(BYTE_ORDER_MARK)
    if not re.fullmatch(rf"{TOKEN_PREFIX}[\w-]+", token, re.ASCII):
        reason = _("it is not {prefix} followed by letters, digits, dashes and underscores")
        raise Problem.of("E133", where=where, reason=reason.format(prefix=TOKEN_PREFIX))
    return token


def _first_line(path: str) -> str:
    """Read no further than that: the rest of standard input says when to leave (--attached)."""
    if path == STANDARD_INPUT:
        line = bytearray()
        while len(line) < MOST and (letter := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
            line += letter
        return line.decode()
    with Path(path).open(encoding="utf-8") as file:
        return file.readline(MOST)

"""Reads a one-time token without revealing it to other users of this computer. A token is never passed as an argument,
because `ps` shows arguments to every account. It comes from the environment or a file.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path

from peer_agent.machine.language import gettext as _
from peer_agent.protocol.credentials import TOKEN_PREFIX
from peer_agent.protocol.errors import Problem

VARIABLE = "MANYHANDS_TOKEN"  # the environment variable, for servers where nobody can approve the machine
STANDARD_INPUT = "-"
BYTE_ORDER_MARK = "\ufeff"  # some editors write it at the start of a file
MOST = 512  # in characters; a token has 46
_taken = ""


def take_variable(environment: MutableMapping[str, str]) -> None:
    """Move the token from the environment to this process's memory, so that no child process inherits it."""
    global _taken  # noqa: PLW0603 (the removed value is needed later)
    _taken = environment.pop(VARIABLE, "")


def token_of_environment() -> str:
    """Return the token from the environment, or "" if there is none. Raises Problem E133 if it is not a token."""
    token = os.environ.get(VARIABLE, "") or _taken
    return _checked(token, VARIABLE) if token else ""


def refuse_argument(value: str) -> str:
    """Raise Problem E132 if a token was passed as an argument, because other users may have read it."""
    if value:
        raise Problem.of("E132")
    return value


def token_in(path: str) -> str:
    """Return the token in the first line of a file or standard input, or "" if `path` is empty.

    Raises Problem E133 if the input cannot be read or is not a token.
    """
    if not path:
        return ""
    where = _("Standard input") if path == STANDARD_INPUT else _("The file {path}").format(path=path)
    try:
        line = _first_line(path)
    except (OSError, UnicodeDecodeError) as error:
        raise Problem.of("E133", where=where, reason=error) from error
    return _checked(line, where)


def _checked(line: str, where: str) -> str:
    """Return the token in a line. Raises Problem E133 if it is not a token. The message does not quote the line."""
    token = line.strip().removeprefix(BYTE_ORDER_MARK)
    if not re.fullmatch(rf"{TOKEN_PREFIX}[\w-]+", token, re.ASCII):
        reason = _("it is not {prefix} followed by letters, digits, dashes and underscores")
        raise Problem.of("E133", where=where, reason=reason.format(prefix=TOKEN_PREFIX))
    return token


def _first_line(path: str) -> str:
    """Return the first line of a file or of standard input.

    Do not read standard input beyond that line: with --attached, `on_end_of_input` reads the rest.
    """
    if path == STANDARD_INPUT:
        line = bytearray()
        while len(line) < MOST and (letter := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
            line += letter
        return line.decode()
    with Path(path).open(encoding="utf-8") as file:
        return file.readline(MOST)

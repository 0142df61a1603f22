"""Input of a one-time token that other users cannot see in the process list.

A token is never an argument, because `ps` shows those to every account. Environment and files are private.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path

from peer_agent.machine.language import gettext as _
from peer_agent.protocol.credentials import TOKEN_PREFIX
from peer_agent.protocol.errors import Problem

VARIABLE = "MANYHANDS_TOKEN"  # environment variable, for servers without a person to approve
STANDARD_INPUT = "-"
BYTE_ORDER_MARK = "\ufeff"  # begins files of some editors
MOST = 512  # characters; a token has 46
_taken = ""


def take_variable(environment: MutableMapping[str, str]) -> None:
    """Move the environment's token here, so that no child process inherits it."""
    global _taken  # noqa: PLW0603 (the removed value must be kept)
    _taken = environment.pop(VARIABLE, "")


def token_of_environment() -> str:
    """Return the environment's token, or "". Raises Problem E133."""
    token = os.environ.get(VARIABLE, "") or _taken
    return _checked(token, VARIABLE) if token else ""


def refuse_argument(value: str) -> str:
    """Raise Problem E132 if a token was an argument, where others may have read it."""
    if value:
        raise Problem.of("E132")
    return value


def token_in(path: str) -> str:
    """Return the token in the first line of a file or of standard input, "" without a path. Raises Problem E133."""
    if not path:
        return ""
    where = _("Standard input") if path == STANDARD_INPUT else _("The file {path}").format(path=path)
    try:
        line = _first_line(path)
    except (OSError, UnicodeDecodeError) as error:
        raise Problem.of("E133", where=where, reason=error) from error
    return _checked(line, where)


def _checked(line: str, where: str) -> str:
    """Return the token in a line. Raises Problem E133, which quotes nothing of it."""
    token = line.strip().removeprefix(BYTE_ORDER_MARK)
    if not re.fullmatch(rf"{TOKEN_PREFIX}[\w-]+", token, re.ASCII):
        reason = _("it is not {prefix} followed by letters, digits, dashes and underscores")
        raise Problem.of("E133", where=where, reason=reason.format(prefix=TOKEN_PREFIX))
    return token


def _first_line(path: str) -> str:
    """Read only the first line: with --attached, the rest of standard input tells when to leave."""
    if path == STANDARD_INPUT:
        line = bytearray()
        while len(line) < MOST and (letter := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
            line += letter
        return line.decode()
    with Path(path).open(encoding="utf-8") as file:
        return file.readline(MOST)

"""What a command of `python -m peer_agent.publishing` says last, and how whoever started it reads that.

Facts are a JSON object on the last line of its output; an error is one on the last line of its errors, with status 1.
"""

import sys
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Fault

CAME = "came "
TOLD_BYTES = 1 << 16  # at which they are told
LONGEST_NUMBER = 16


def succeed(facts: Struct) -> int:
    """Say the facts; the status to end with."""
    print(msgspec.json.encode(facts).decode(), flush=True)
    return 0


def fail(fault: Fault) -> int:
    """Say the error; the status to end with."""
    print(msgspec.json.encode(fault).decode(), file=sys.stderr, flush=True)
    return 1


def telling_of_bytes() -> Callable[[int], None]:
    """Says how many bytes have come, and waits until whoever started the command has answered with a line."""
    untold = 0

    def tell(count: int) -> None:
        nonlocal untold
        untold += count
        if untold >= TOLD_BYTES:
            print(f"{CAME}{untold}", flush=True)
            untold = 0
            sys.stdin.readline()

    return tell


def bytes_in(line: str) -> int:
    """How many have come, by a line of the output; 0 where it says something else."""
    said = line.removeprefix(CAME).strip()
    return int(said) if line.startswith(CAME) and said.isdecimal() and len(said) < LONGEST_NUMBER else 0


def facts_of(output: str) -> dict[str, Any]:
    """The facts of a command that has succeeded. Raises DecodeError where there are none."""
    return msgspec.json.decode(_last_line(output), type=dict[str, Any])


def fault_of(errors: str) -> Fault | None:
    """The error of a command that has failed; None where it died without a word."""
    try:
        return msgspec.json.decode(_last_line(errors), type=Fault)
    except msgspec.DecodeError:
        return None


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]

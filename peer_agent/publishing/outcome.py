"""What a command of `python -m peer_agent.publishing` says last, and how whoever started it reads that.

Facts are a JSON object on the last line of its output; an error is one on the last line of its errors, with status 1.
"""

import sys
from typing import Any

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Fault


def succeed(facts: Struct) -> int:
    """Say the facts; the status to end with."""
    print(msgspec.json.encode(facts).decode(), flush=True)
    return 0


def fail(fault: Fault) -> int:
    """Say the error; the status to end with."""
    print(msgspec.json.encode(fault).decode(), file=sys.stderr, flush=True)
    return 1


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

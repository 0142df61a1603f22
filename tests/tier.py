"""How much of a test runs: `make check` sets MANYHANDS_CHECK, and worlds and searches are at full length."""

import os

IN_CHECK = os.environ.get("MANYHANDS_CHECK") == "1"


def length(full: int, short: int) -> int:
    """Return the full length in `make check`, else the short one."""
    return full if IN_CHECK else short

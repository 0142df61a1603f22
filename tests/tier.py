"""The length of test runs: `make check` sets MANYHANDS_CHECK, which selects the full lengths."""

import os

IN_CHECK = os.environ.get("MANYHANDS_CHECK") == "1"


def length(full: int, short: int) -> int:
    return full if IN_CHECK else short

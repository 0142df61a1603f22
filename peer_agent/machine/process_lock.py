"""A file that one process holds, as long as it lives, and that says which."""

import os
from typing import IO

from filelock import lock_descriptor


def try_lock(file: IO[str]) -> bool:
    """Hold a file that was opened to append and read, until it is closed; False where another process holds it.

    Raises OSError where its disk knows no locks.
    """
    return lock_descriptor(file.fileno(), blocking=False)


def sign_lock(file: IO[str]) -> None:
    """Say that this process holds it."""
    file.truncate(0)
    file.write(f" \n{os.getpid()}")  # filelock locks the first byte, which on Windows nobody else can read then
    file.flush()


def read_holder(file: IO[str]) -> int:
    """The process that holds it, or did; 0 where it does not say."""
    file.seek(1)
    _, _, said = file.read().partition("\n")
    return int(said) if said.isascii() and said.isdigit() else 0

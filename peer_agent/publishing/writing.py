"""A released model continues what a visitor has written, within bounds of time and memory."""

import contextlib
from pathlib import Path

from msgspec import Struct

from peer_agent.protocol.errors import Problem


class Written(Struct, frozen=True, kw_only=True):
    """What comes after a prompt. `is_whole`: the model has read all of that, and not its end alone."""

    text: str
    is_whole: bool


def write(folder: Path, prompt: str, *, tokens: int, seconds: float, seed: int, memory: int = 0) -> Written:
    """By the model of a release's folder, of at most so many tokens. Raises Problem E327.

    `memory`: bytes that this process may have, where the system can hold it to that; 0 for any number.
    """
    bound_memory(memory)
    try:
        from peer_agent.recipes.text.next_token import continuation  # takes memory too

        text, is_whole = continuation(folder, prompt, most=tokens, seconds=seconds, seed=seed)
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        raise Problem.of("E327", reason=type(error).__name__) from error  # its words may name folders
    return Written(text=text, is_whole=is_whole)


def bound_memory(size: int) -> None:
    """Hold this process to so many bytes of its own from now on, where the system can."""
    if not size:
        return
    with contextlib.suppress(ImportError, OSError, ValueError):  # Windows; a system that knows no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (size, size))

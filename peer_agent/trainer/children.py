"""Commands of `python -m peer_agent.publishing` beside training, in processes of their own."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.publishing.outcome import bytes_in, facts_of, fault_of


async def run_child(
    arguments: Sequence[str], *, secret: str = "", came: Callable[[int], Awaitable[None]] | None = None
) -> dict[str, Any]:
    """What a command says in the end. It reads `secret` from its standard input. Raises Problem with what it says.

    `came` is awaited for bytes that the command has received, and the command waits for it.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "peer_agent.publishing", *arguments),
        env=_environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said = child.communicate(secret.encode()) if came is None else _answered(child, came)
        output, errors = await said
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()  # Windows removes no file that it has open
    if child.returncode:
        raise Problem(_fault_in(errors.decode(errors="replace")))
    return facts_of(output.decode())


async def _answered(child: Process, came: Callable[[int], Awaitable[None]]) -> tuple[bytes, bytes]:
    """The last line of its output, and its errors; each line that tells of bytes gets its answer."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    last, errors = b"", asyncio.create_task(child.stderr.read())
    async for line in child.stdout:
        last = line
        if count := bytes_in(line.decode(errors="replace")):
            await came(count)
            with contextlib.suppress(ConnectionError):  # it has ended
                child.stdin.write(b"\n")
                await child.stdin.drain()
    await child.wait()
    return last, await errors


def _environment() -> dict[str, str]:
    """Ours, without a token, and with one thread: training has the others."""
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_HUB_OFFLINE")}
    return {**kept, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def _fault_in(errors: str) -> Fault:
    return fault_of(errors) or Fault.of("E347", reason=errors.strip()[-300:])

"""A command of `python -m peer_agent.publishing` as a child process: what it says last, and how that is read.

Facts are a JSON object on the last line of its output; an error is one on the last line of its errors, with status 1.
"""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from peer_agent.protocol.errors import Fault, Problem

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


async def run_child(
    arguments: Sequence[str], *, secret: str = "", came: Callable[[int], Awaitable[None]] | None = None
) -> dict[str, Any]:
    """Run a command beside training; what it says in the end. It reads `secret` from its standard input.

    `came` is awaited for bytes that the command has received, and the command waits for it. Raises Problem with what
    the command says.
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

"""Commands of `python -m peer_agent.publishing` as child processes, and their output format. On success, the last line
of output is a JSON object with the facts. On failure, the last line of the error output is a JSON object with the
error, and the exit status is 1.
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
TOLD_BYTES = 1 << 16  # received bytes are reported each time they reach this number
LONGEST_NUMBER = 16


def succeed(facts: Struct) -> int:
    """Print a successful command's facts. Return its exit status."""
    print(msgspec.json.encode(facts).decode(), flush=True)
    return 0


def fail(fault: Fault) -> int:
    """Print a failed command's error. Return its exit status."""
    print(msgspec.json.encode(fault).decode(), file=sys.stderr, flush=True)
    return 1


def telling_of_bytes() -> Callable[[int], None]:
    """Return a function that counts received bytes. From time to time, it reports them to the parent process and waits
    for the parent's answer.
    """
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
    """Return how many received bytes a line of output reports, or 0 if it is some other line."""
    said = line.removeprefix(CAME).strip()
    return int(said) if line.startswith(CAME) and said.isdecimal() and len(said) < LONGEST_NUMBER else 0


def facts_of(output: str) -> dict[str, Any]:
    """Return the facts printed by a successful command. Raises DecodeError if there are none."""
    return msgspec.json.decode(_last_line(output), type=dict[str, Any])


def fault_of(errors: str) -> Fault | None:
    """Return the error printed by a failed command, or None if it printed none."""
    try:
        return msgspec.json.decode(_last_line(errors), type=Fault)
    except msgspec.DecodeError:
        return None


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


async def run_child(
    arguments: Sequence[str], *, secret: str = "", came: Callable[[int], Awaitable[None]] | None = None
) -> dict[str, Any]:
    """Run a command in a child process during training and return its facts. If the command fails, raises Problem with
    its error. `secret`: passed on standard input. `came`: called with the number of bytes received; the command waits
    until the call returns.
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
            await child.wait()  # Windows cannot delete files that the child still has open
    if child.returncode:
        raise Problem(_fault_in(errors.decode(errors="replace")))
    return facts_of(output.decode())


async def _answered(child: Process, came: Callable[[int], Awaitable[None]]) -> tuple[bytes, bytes]:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    last, errors = b"", asyncio.create_task(child.stderr.read())
    async for line in child.stdout:
        last = line
        if count := bytes_in(line.decode(errors="replace")):
            await came(count)
            with contextlib.suppress(ConnectionError):  # the child has ended
                child.stdin.write(b"\n")
                await child.stdin.drain()
    await child.wait()
    return last, await errors


def _environment() -> dict[str, str]:
    """Return the environment without Hub tokens, and with only one thread, because training uses the others."""
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_HUB_OFFLINE")}
    return {**kept, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def _fault_in(errors: str) -> Fault:
    return fault_of(errors) or Fault.of("E347", reason=errors.strip()[-300:])

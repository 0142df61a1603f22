"""Commands of `python -m peer_agent.publishing` beside training, in processes of their own."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.publishing.outcome import facts_of, fault_of


async def run_child(arguments: Sequence[str], *, secret: str = "") -> dict[str, Any]:
    """What a command says in the end. It reads `secret` from its standard input. Raises Problem with what it says."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "peer_agent.publishing", *arguments),
        env=_environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await child.communicate(secret.encode())
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode:
        raise Problem(_fault_in(errors.decode(errors="replace")))
    return facts_of(output.decode())


def _environment() -> dict[str, str]:
    """Ours, without a token, and with one thread: training has the others."""
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_HUB_OFFLINE")}
    return {**kept, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def _fault_in(errors: str) -> Fault:
    return fault_of(errors) or Fault.of("E347", reason=errors.strip()[-300:])

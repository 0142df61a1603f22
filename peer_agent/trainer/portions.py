"""Shards of texts that stay on the Hub, made on this machine of what their files say."""

import asyncio
import contextlib
import os
from pathlib import Path

from peer_agent.display.lines import View
from peer_agent.network.traffic import TRAFFIC
from peer_agent.network.uplink import DOWNLINK
from peer_agent.protocol.errors import Problem
from peer_agent.publishing.hub.names import hub_endpoint
from peer_agent.trainer.children import run_child

AWAY = "E346"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # before the Hub is asked again, doubling
LONGEST_S = 1800.0  # of one try


async def make_of_portion(path: Path, tokenizer: Path, view: View | None = None) -> None:
    """Put the shard in the place of the file that says what it is made of. A Hub that is away is waited for, and told.

    Raises Problem E106, E397, E414.
    """
    pause_s, out = FIRST_PAUSE_S, path.with_suffix(f".made-{os.getpid()}")
    command = ["shard", *map(str, (path, tokenizer, out)), "--endpoint", hub_endpoint()]
    while True:
        try:
            async with asyncio.timeout(LONGEST_S):
                await run_child(command, came=_came)
        except TimeoutError:
            problem = Problem.of(AWAY, endpoint=hub_endpoint(), reason="it is too slow")
        except Problem as raised:
            if raised.fault.code != AWAY:
                raise
            problem = raised
        else:
            await asyncio.to_thread(out.replace, path)
            if view is not None:
                view.ended(AWAY)
            return
        finally:
            for left in out.parent.glob(f"{out.name}*"):  # of a child that was ended
                with contextlib.suppress(OSError):
                    left.unlink()
        if view is not None:
            view.began(problem.fault)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _came(count: int) -> None:
    """Bytes of the Hub count as all others do, and wait as they do."""
    TRAFFIC.add(received=count)
    await DOWNLINK.came(count)

"""Shards of texts that stay on the Hub, made on this machine of what their files say."""

import asyncio
import contextlib
import os
from pathlib import Path

from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.network.uplink import DOWNLINK, TRAFFIC
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.errors.disk import disk_errors
from peer_agent.publishing.hub.names import hub_endpoint
from peer_agent.recipes.text.portion import portion_in
from peer_agent.site.credential import RunAccess
from peer_agent.trainer.children import run_child
from peer_agent.trainer.files import fetch_tokenizer

AWAY = "E346"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # before the Hub is asked again, doubling
SILENT_S = 900.0  # without a byte of it, while rows are cut too, after which one try is given up
MADE = ".made-"  # in the names of what is not whole yet


class Portions:
    """Makes one at a time. `view` is told while the Hub is away."""

    def __init__(self, home: Home, access: RunAccess, view: View | None = None) -> None:
        self.home, self.access, self.view = home, access, view
        self._making = asyncio.Lock()

    def sweep(self) -> None:
        """Remove what an agent that was killed had begun: nobody else uses this home."""
        for path in (self.home.cache / "shards").glob(f"*{MADE}*"):
            with contextlib.suppress(OSError):
                path.unlink()

    async def made(self, path: Path) -> Path:
        """A shard's file, in the place of one that says what it is made of. Raises Problem E106, E397, E414, E416."""
        async with self._making:
            portion = await asyncio.to_thread(portion_in, path)
            if portion is not None:
                tokenizer = await fetch_tokenizer(self.home, self.access, portion.cutting.tokenizer)
                await self._make(path, tokenizer)
        return path

    async def _make(self, path: Path, tokenizer: Path) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while (problem := await self._try(path, tokenizer)) is not None:
                if self.view is not None:
                    self.view.began(problem.fault)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            if self.view is not None:
                self.view.ended(AWAY)

    async def _try(self, path: Path, tokenizer: Path) -> Problem | None:
        """What makes another try worth while, if it came to nothing."""
        out = path.with_suffix(f"{MADE}{os.getpid()}")
        command = ["shard", *map(str, (path, tokenizer, out)), "--endpoint", hub_endpoint()]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SILENT_S) as limit:

                async def came(count: int) -> None:
                    """Bytes of the Hub count as all others do, and wait as they do."""
                    TRAFFIC.add(received=count)
                    await DOWNLINK.came(count)
                    limit.reschedule(loop.time() + SILENT_S)

                await run_child(command, came=came)
            with disk_errors(path):
                await asyncio.to_thread(out.replace, path)
        except TimeoutError:
            return Problem.of(AWAY, endpoint=hub_endpoint(), reason="it sends nothing")
        except Problem as problem:
            if problem.fault.code != AWAY:
                raise
            return problem
        finally:
            for left in out.parent.glob(f"{out.name}*"):
                with contextlib.suppress(OSError):
                    left.unlink()
        return None

"""A run's shards on this machine, prefetched within disk and memory limits."""

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, wait
from itertools import islice
from pathlib import Path
from typing import Any

from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.network.uplink import DOWNLINK, TRAFFIC
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Problem, codes, disk_errors
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.child import run_child
from peer_agent.publishing.hub_client import hub_endpoint
from peer_agent.recipes.text.portion import portion_in
from peer_agent.recipes.training import training_of
from peer_agent.site.credential import RunAccess
from peer_agent.trainer.files import fetch_shard, fetch_tokenizer

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # pauses before asking the Hub again, each twice as long as the last
SILENT_S = 900.0  # an attempt ends after this long without a byte from the Hub, including time to tokenize rows
MADE = ".made-"  # part of unfinished files' names


class Portions:
    """Builds shards one at a time from texts that stay on the Hub. While the Hub is unreachable, `view` shows a
    fault.
    """

    def __init__(self, home: Home, access: RunAccess, view: View | None = None) -> None:
        self.home, self.access, self.view = home, access, view
        self._making = asyncio.Lock()

    def sweep(self) -> None:
        """Delete unfinished files left by a killed agent. This is safe, because only one agent uses this home."""
        for path in (self.home.cache / "shards").glob(f"*{MADE}*"):
            with contextlib.suppress(OSError):
                path.unlink()

    async def made(self, path: Path) -> Path:
        """If the file is a portion, replace it with the shard built from the portion's texts. Return `path`. Raises
        Problem E347 or E397 if the Hub does not provide the texts, or E414 if they have changed. Raises Problem E416 if
        this machine cannot read them, or E106 if the disk fails.
        """
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
                self.view.ended(codes.HUB_AWAY)

    async def _try(self, path: Path, tokenizer: Path) -> Problem | None:
        """Try to build a shard. Return the problem if another attempt may succeed, or None on success."""
        out = path.with_suffix(f"{MADE}{os.getpid()}")
        command = ["shard", *map(str, (path, tokenizer, out)), "--endpoint", hub_endpoint()]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SILENT_S) as limit:

                async def came(count: int) -> None:
                    """Count bytes from the Hub as traffic, and apply the owner's download limit."""
                    TRAFFIC.add(received=count)
                    await DOWNLINK.came(count)
                    limit.reschedule(loop.time() + SILENT_S)

                await run_child(command, came=came)
            with disk_errors(path):
                await asyncio.to_thread(out.replace, path)
        except TimeoutError:
            return Problem.of(codes.HUB_AWAY, endpoint=hub_endpoint(), reason="it sends no data")
        except Problem as problem:
            if problem.fault.code != codes.HUB_AWAY:
                raise
            return problem
        finally:
            for left in out.parent.glob(f"{out.name}*"):
                with contextlib.suppress(OSError):
                    left.unlink()
        return None


LOOK_S = 0.5  # seconds between checks that the agent is still running
AHEAD = 4  # shards to fetch in advance: the next two of each of two sources
OPEN_BYTES = 1 << 30  # limit on shards in memory, by the size of their files; the shard in use always stays


class Shards:
    """A run's shards by number. At a memory or disk limit, the least recently used shards are removed first."""

    def __init__(
        self,
        home: Home,
        access: RunAccess,
        recipe: Recipe,
        shards: tuple[m.Shard, ...],
        loop: asyncio.AbstractEventLoop,
        *,
        disk_bytes: int,
        view: View | None = None,
    ) -> None:
        """Prepare a run's shards. `disk_bytes`: the limit on all shards in this home, including other runs'."""
        self.home, self.access, self.recipe, self.shards, self.loop = home, access, recipe, shards, loop
        self.disk_bytes = disk_bytes
        self._portions = Portions(home, access, view)
        self._portions.sweep()
        self._load = training_of(recipe).load_shard
        # By number: a shard's content, and the size of its file
        self._open: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._fetching: dict[int, asyncio.Task[Path]] = {}
        self._ahead: list[int] = []  # numbers of shards to prefetch, in order
        self._fetcher: asyncio.Task[None] | None = None  # the task that prefetches them

    def __getitem__(self, shard: int, /) -> Any:
        """Return a shard, fetching it if necessary. Call this only from the thread that makes batches."""
        if shard not in self._open:
            path = self._waited_for(asyncio.run_coroutine_threadsafe(self._fetched(shard), self.loop))
            try:
                self._open[shard] = self._load(path), path.stat().st_size
            except Problem:
                path.unlink(missing_ok=True)  # so that the next attempt refetches it
                raise
        self._open.move_to_end(shard)
        while len(self._open) > 1 and sum(size for _, size in self._open.values()) > OPEN_BYTES:
            self._open.popitem(last=False)
        return self._open[shard][0]

    async def ready(self, shards: Iterable[int], is_wanted: Callable[[], bool]) -> bool:
        """Fetch these shards' files. Return False as soon as `is_wanted` returns False. Call this from the event
        loop.
        """
        for shard in dict.fromkeys(shards):
            fetched = asyncio.create_task(self._fetched(shard)) if shard not in self._open else None
            while fetched is not None and not (await asyncio.wait([fetched], timeout=LOOK_S))[0]:
                if not is_wanted():
                    fetched.cancel()  # the download itself goes on, because other callers share it
                    return False
            if fetched is not None:
                fetched.result()
        return True

    def is_open(self, shard: int) -> bool:
        return shard in self._open

    def _waited_for(self, fetched: "Future[Path]") -> Path:
        """Wait for a download. Raises CancelledError if the agent ends, even if its event loop has stopped."""
        while not wait([fetched], LOOK_S).done:
            if not self.loop.is_running():
                raise CancelledError
        return fetched.result()

    def prefetch(self, coming: Iterable[int]) -> None:
        """Start to fetch the next `AHEAD` shards that are not in memory. They are fetched one by one, so that none
        delays an earlier one. Call this from the event loop.
        """
        known = (shard for shard in dict.fromkeys(coming) if shard < len(self.shards))  # the site may name any number
        self._ahead = list(islice((shard for shard in known if shard not in self._open), AHEAD))
        if self._ahead and (self._fetcher is None or self._fetcher.done()):
            self._fetcher = self.loop.create_task(self._fetch_ahead())

    def close(self) -> None:
        """Cancel all downloads. A later download resumes from the partial files."""
        self._ahead.clear()
        for task in [*self._fetching.values(), *([self._fetcher] if self._fetcher is not None else [])]:
            task.cancel()

    async def _fetch_ahead(self) -> None:
        while self._ahead:
            await asyncio.wait([self._begin(self._ahead.pop(0))])

    async def _fetched(self, shard: int) -> Path:
        return await asyncio.shield(self._begin(shard))

    def _begin(self, shard: int) -> asyncio.Task[Path]:
        if shard not in self._fetching:
            task = self._fetching[shard] = self.loop.create_task(self._fetch(shard))
            task.add_done_callback(lambda done: self._ended(shard, done))
        return self._fetching[shard]

    def _ended(self, shard: int, task: asyncio.Task[Path]) -> None:
        del self._fetching[shard]
        if not task.cancelled():
            task.exception()  # marks the error as handled; the next request for this shard raises its own

    async def _fetch(self, shard: int) -> Path:
        path = await fetch_shard(self.home, self.access, self.recipe, self.shards[shard])
        await self._portions.made(path)
        await asyncio.to_thread(self._used, path)
        return path

    def _used(self, path: Path) -> None:
        """Mark a file as the most recently used. Delete the least recently used files until the limit is met."""
        os.utime(path)
        wanted = {self.shards[number].digest for number in (*self._fetching, *list(self._open)[-1:])}
        found = [(file.stat(), file) for file in path.parent.glob("*.safetensors")]
        left = sum(about.st_size for about, _ in found)
        for about, file in sorted(found, key=lambda pair: pair[0].st_mtime):
            if left <= self.disk_bytes:
                return
            if file.stem not in wanted:
                with contextlib.suppress(OSError):  # another program has the file open
                    file.unlink()
                    left -= about.st_size

"""The run's shards on this machine: fetched before they are needed, so many kept on disk, so many open in memory."""

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

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # before the Hub is asked again, doubling
SILENT_S = 900.0  # without a byte of it, while rows are cut too, after which one try is given up
MADE = ".made-"  # in the names of what is not whole yet


class Portions:
    """Shards of texts that stay on the Hub, made on this machine of what their files say.

    Makes one at a time. `view` is told while the Hub is away.
    """

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
                self.view.ended(codes.HUB_AWAY)

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


LOOK_S = 0.5  # between looks whether the agent still runs
AHEAD = 4  # shards that are fetched before a unit of them is begun: the next two of two sources
OPEN_BYTES = 1 << 30  # of files whose content is held in memory; the one in use is held whatever its size


class Shards:
    """Shards by position. What was used longest ago leaves first, memory and disk each by its own bound."""

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
        """`disk_bytes`: of shards that lie in this home, those of other runs too. `view`: told if the Hub is away."""
        self.home, self.access, self.recipe, self.shards, self.loop = home, access, recipe, shards, loop
        self.disk_bytes = disk_bytes
        self._portions = Portions(home, access, view)
        self._portions.sweep()
        self._load = training_of(recipe).load_shard
        self._open: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # content, and the size of its file
        self._fetching: dict[int, asyncio.Task[Path]] = {}
        self._ahead: list[int] = []  # that are to be fetched before anybody asks, the first of them first
        self._fetcher: asyncio.Task[None] | None = None  # of those

    def __getitem__(self, shard: int, /) -> Any:
        """What it holds. Raises Problem. Asked from one thread, that which makes batches."""
        if shard not in self._open:
            path = self._waited_for(asyncio.run_coroutine_threadsafe(self._fetched(shard), self.loop))
            try:
                self._open[shard] = self._load(path), path.stat().st_size
            except Problem:
                path.unlink(missing_ok=True)  # so that it is fetched anew
                raise
        self._open.move_to_end(shard)
        while len(self._open) > 1 and sum(size for _, size in self._open.values()) > OPEN_BYTES:
            self._open.popitem(last=False)
        return self._open[shard][0]

    async def ready(self, shards: Iterable[int], is_wanted: Callable[[], bool]) -> bool:
        """Have the files of these here; False where nobody wants them any more. Raises Problem. From the event loop."""
        for shard in dict.fromkeys(shards):
            fetched = asyncio.create_task(self._fetched(shard)) if shard not in self._open else None
            while fetched is not None and not (await asyncio.wait([fetched], timeout=LOOK_S))[0]:
                if not is_wanted():
                    fetched.cancel()  # not what fetches it: what is on its way goes on
                    return False
            if fetched is not None:
                fetched.result()
        return True

    def is_open(self, shard: int) -> bool:
        return shard in self._open

    def _waited_for(self, fetched: "Future[Path]") -> Path:
        """Raises CancelledError where the agent ends meanwhile, also where nobody is left to say so."""
        while not wait([fetched], LOOK_S).done:
            if not self.loop.is_running():
                raise CancelledError
        return fetched.result()

    def prefetch(self, coming: Iterable[int]) -> None:
        """Fetch the first few of these that are not open, in this order and one after another. From the event loop.

        Were they fetched at once, each would come in twice its time, also the one that is needed before the others.
        """
        known = (shard for shard in dict.fromkeys(coming) if shard < len(self.shards))  # the site says which
        self._ahead = list(islice((shard for shard in known if shard not in self._open), AHEAD))
        if self._ahead and (self._fetcher is None or self._fetcher.done()):
            self._fetcher = self.loop.create_task(self._fetch_ahead())

    def close(self) -> None:
        """Nobody waits for what is on its way; what came of it is gone on with another time."""
        self._ahead.clear()
        for task in [*self._fetching.values(), *([self._fetcher] if self._fetcher is not None else [])]:
            task.cancel()

    async def _fetch_ahead(self) -> None:
        while self._ahead:
            await asyncio.wait([self._begin(self._ahead.pop(0))])

    async def _fetched(self, shard: int) -> Path:
        """The file of a shard. Raises Problem."""
        return await asyncio.shield(self._begin(shard))

    def _begin(self, shard: int) -> asyncio.Task[Path]:
        if shard not in self._fetching:
            task = self._fetching[shard] = self.loop.create_task(self._fetch(shard))
            task.add_done_callback(lambda done: self._ended(shard, done))
        return self._fetching[shard]

    def _ended(self, shard: int, task: asyncio.Task[Path]) -> None:
        del self._fetching[shard]
        if not task.cancelled():
            task.exception()  # whoever needs the shard asks again, and is told then

    async def _fetch(self, shard: int) -> Path:
        path = await fetch_shard(self.home, self.access, self.recipe, self.shards[shard])
        await self._portions.made(path)
        await asyncio.to_thread(self._used, path)
        return path

    def _used(self, path: Path) -> None:
        """It is the newest now; the oldest leave the disk where there are too many."""
        os.utime(path)
        wanted = {self.shards[number].digest for number in (*self._fetching, *list(self._open)[-1:])}
        found = [(file.stat(), file) for file in path.parent.glob("*.safetensors")]
        left = sum(about.st_size for about, _ in found)
        for about, file in sorted(found, key=lambda pair: pair[0].st_mtime):
            if left <= self.disk_bytes:
                return
            if file.stem not in wanted:
                with contextlib.suppress(OSError):  # another program has it open
                    file.unlink()
                    left -= about.st_size

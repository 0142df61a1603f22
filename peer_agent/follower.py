"""A replica that follows the log, in the only two ways in which it moves: a snapshot is loaded, a record is applied."""

import asyncio
import contextlib

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.codecs import Floats
from peer_agent.config import Home
from peer_agent.data_links import DataLinks
from peer_agent.passport import Passport
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.records import Record
from peer_agent.site_files import fetch_snapshot
from peer_agent.training.replica import Replica

FETCH_TRIES = 8
PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


class Follower:
    """`busy`: forward and backward read the parameters, which change here.

    `step`, `index` (log entries) and `digest` are of the last whole state. The replica itself is ahead of them while a
    thread changes it: whoever reported its step then would name work of the update before as new.
    """

    def __init__(self, home: Home, passport: Passport, links: DataLinks, replica: Replica) -> None:
        self.home, self.passport, self.links, self.replica = home, passport, links, replica
        self.busy = asyncio.Lock()
        self.step, self.index, self.digest = replica.step, replica.index, ""

    async def _arrive(self) -> None:
        digest = await asyncio.to_thread(self.replica.digest)
        self.step, self.index, self.digest = self.replica.step, self.replica.index, digest

    async def load(self, snapshot: m.Snapshot) -> None:
        """Take over a verified state. Raises Problem E111, E310 where the file is another, E106, E110."""
        path = await fetch_snapshot(self.home, self.passport, snapshot)
        try:
            async with self.busy:
                await asyncio.to_thread(self.replica.load, path)
                await self._arrive()
            if self.digest != snapshot.state_digest:
                raise Problem.of("E111", name=path.name, url=self.passport.site.url)
        except Problem:
            path.unlink(missing_ok=True)  # so that it is fetched anew
            raise

    async def apply(self, record: Record, digest: str, assembly: Assembly, *, patient: bool) -> bool:
        """The averaged bytes that the record names, through the optimizer (rule 6). False where nobody has them."""
        gradient = await self._gradient(assembly, record, FETCH_TRIES if patient else 1)
        if gradient is None:
            return False
        async with self.busy:
            await asyncio.to_thread(self.replica.apply, record, digest, gradient)
            await self._arrive()
        return True

    async def _gradient(self, assembly: Assembly, record: Record, tries: int) -> Floats | None:
        """[P], with what has not come fetched from a relay's log."""
        for attempt in range(tries):
            for entry in assembly.missing(record):
                payloads = await self.links.fetch(
                    record.run, record.index, entry.span, entry.stop - entry.first, entry.reducer
                )
                if payloads is not None:
                    with contextlib.suppress(Problem):  # damaged at that relay: another may have it whole
                        await asyncio.to_thread(assembly.fill, entry, payloads)
            gradient = assembly.gradient(record)
            if not isinstance(gradient, list):
                return gradient
            await asyncio.sleep(min(PAUSE_S * 2**attempt, LONGEST_PAUSE_S))
        return None

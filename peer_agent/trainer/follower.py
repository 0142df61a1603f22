"""A replica that follows the log, in the only two ways in which it moves: a snapshot is loaded, a record is applied."""

import asyncio

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.codecs import Floats
from peer_agent.machine.home import Home
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import RecordHead
from peer_agent.site.credential import RunAccess
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.averages import gather
from peer_agent.trainer.files import fetch_snapshot
from peer_agent.training.replica import Replica


class Follower:
    """`busy`: forward and backward read the parameters, which change here.

    A state is not spoken of before its digest is there: whoever reported the step of a replica that a thread is just
    changing would name work of the update before as new.
    """

    def __init__(self, home: Home, access: RunAccess, links: DataLinks, replica: Replica) -> None:
        self.home, self.access, self.links, self.replica = home, access, links, replica
        self.busy = asyncio.Lock()

    async def load(self, snapshot: m.Snapshot) -> str:
        """Take over a verified state; its digest. Raises Problem E111, E310 where the file is another, E106, E110."""
        path = await fetch_snapshot(self.home, self.access, snapshot)
        try:
            async with self.busy:
                await asyncio.to_thread(self.replica.load, path)
                digest = await asyncio.to_thread(self.replica.digest)
            if digest != snapshot.state_digest:
                raise Problem.of("E111", name=path.name, url=self.access.site.url)
        except Problem:
            path.unlink(missing_ok=True)  # so that it is fetched anew
            raise
        return digest

    async def apply(self, record: RecordHead, digest: str, gradient: Floats) -> str:
        """The averages [P] that the record names, through the optimizer (rule 6); the digest of the state then."""
        async with self.busy:
            await asyncio.to_thread(self.replica.apply, record, digest, gradient)
            return await asyncio.to_thread(self.replica.digest)

    async def gather(self, record: RecordHead, assembly: Assembly, *, patient: bool) -> Floats | None:
        """[P], with what has not come fetched from a relay's log. None where nobody has these bytes."""
        return await gather(self.links, record, assembly, patient=patient)

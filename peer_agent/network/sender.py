"""In which order a contributor's chunks go to several reducers over one uplink (rule 18)."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Message
from peer_agent.protocol.wire import Frame

AHEAD = 2  # chunks of one reducer that may be on their way into its socket
PATIENCE_S = 1.0  # how long the others wait for one that does not take its next chunk


def interleave(queues: Mapping[PeerId, Sequence[int]]) -> Iterator[tuple[PeerId, int]]:
    """(reducer, index of its next chunk), by deficit round robin in proportion to each reducer's bytes.

    `queues` holds chunk sizes in bytes. Everyone's last chunk comes at about the same time, each one's in ascending
    order. Each turn adds to a reducer's deficit its share of what would let the largest send its largest chunk.
    """
    totals = {peer: sum(sizes) for peer, sizes in queues.items() if sizes}
    most = max(totals.values(), default=0)
    quantum = max((max(queues[peer]) for peer in totals), default=0)
    deficit, index = dict.fromkeys(totals, 0), dict.fromkeys(totals, 0)
    waiting = list(totals)
    while waiting:
        for peer in waiting:
            sizes = queues[peer]
            deficit[peer] += quantum * totals[peer]  # in units of 1/most bytes, so that it stays an integer
            while index[peer] < len(sizes) and sizes[index[peer]] * most <= deficit[peer]:
                deficit[peer] -= sizes[index[peer]] * most
                yield peer, index[peer]
                index[peer] += 1
        waiting = [peer for peer in waiting if index[peer] < len(queues[peer])]


async def send_chunks(
    connections: Mapping[PeerId, Connection],
    chunks: Mapping[PeerId, Sequence[Frame]],
    *,
    first: Mapping[PeerId, Message] | None = None,
    patience_s: float = PATIENCE_S,
) -> dict[PeerId, LinkLost | Refused]:
    """Send every reducer its chunks, after what is to be said `first`. Returns who was lost on the way, and how.

    Each reducer has its own writer. One that does not take its next chunk within `patience_s` goes on at its own
    pace and no longer has a say in the order. Cancelling stops after the chunk in hand.
    """
    lanes = {peer: _Lane(connections[peer], frames, (first or {}).get(peer)) for peer, frames in chunks.items()}
    async with asyncio.TaskGroup() as writers:
        for lane in lanes.values():
            writers.create_task(lane.run())
        sizes = {peer: [len(frame.payload) for frame in frames] for peer, frames in chunks.items()}
        for peer, _ in interleave(sizes):
            await lanes[peer].grant(patience_s)
    return {peer: lane.lost for peer, lane in lanes.items() if lane.lost is not None}


class _Lane:
    """The writer for one reducer."""

    def __init__(self, connection: Connection, frames: Sequence[Frame], first: Message | None) -> None:
        self._connection, self._frames, self._first = connection, frames, first
        self._granted = asyncio.Semaphore(0)
        self._room = asyncio.Semaphore(AHEAD)
        self._on_its_own = False
        self.lost: LinkLost | Refused | None = None

    async def run(self) -> None:
        try:
            if self._first is not None:
                await self._connection.send(self._first)
            for frame in self._frames:
                await self._granted.acquire()
                await self._connection.send(frame)
                self._room.release()
        except (LinkLost, Refused) as error:
            self.lost = error
            self._room.release()

    async def grant(self, patience_s: float) -> None:
        """Let it send one more chunk, as soon as there is room for it."""
        if not self._on_its_own and self.lost is None:
            try:
                async with asyncio.timeout(patience_s):
                    await self._room.acquire()
            except TimeoutError:
                self._on_its_own = True
        self._granted.release()

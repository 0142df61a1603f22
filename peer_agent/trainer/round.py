"""A trainer's part in one open round: what it sends to the reducers and receives from them."""

import asyncio
import contextlib
import time
from typing import Any

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.contributor import Sending
from peer_agent.network.sending import send_chunks
from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.counting import Arrived, arrivals_of, count, departures_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.log.records import RecordHead
from peer_agent.protocol.timing import coming_s
from peer_agent.protocol.trainer.events import Gathered
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.site.relay_links import DataLinks

GATHER_S = 0.05  # longest wait for more requests, so that reducers asking at about the same time are served together
OPENS = 1000  # most requests in the queue: a run's maximum number of relays


class OpenRound:
    """A round's data from the cut until commit or void: this machine's chunks to send, and the averages received so
    far.
    """

    def __init__(self, cut: m.Cut | m.SitOut | m.PlanHead, assembly: Assembly) -> None:
        """Open a round. `cut`: the message that began the round, or the plan if this machine was not asked to take
        part.
        """
        self.cut, self.assembly = cut, assembly
        self.sending: Sending | None = None
        self.plan: m.PlanHead | None = None
        self.slot: int | None = None
        self.task: asyncio.Task[Any] | None = None
        self.opens: asyncio.Queue[tuple[PeerId, m.Open]] = asyncio.Queue(OPENS)
        self.arrived = asyncio.Event()
        self._early_frames: list[Frame] = []
        self._planned_at = 0.0
        self._reducers: dict[int, PeerId] = {}  # by span
        self._arrived: dict[PeerId, Arrived] = {}
        self.full_s: dict[PeerId, float] = {}  # by reducer: seconds for which its link accepted no more data

    def is_of(self, record: RecordHead) -> bool:
        """Return True if the averages received in this round belong to the record."""
        is_next = (record.step, record.fence) == (self.cut.step + 1, self.cut.fence)
        return is_next and self.plan is not None and record.codec == self.assembly.codec

    def follow(self, plan: m.PlanHead, slot: int | None) -> None:
        """Follow a new plan. Accept its averages, including any that arrived before the plan."""
        self.stop_sending()
        self.plan, self.slot = plan, slot
        self._planned_at, self._arrived, self.full_s = time.monotonic(), {}, {}
        self._reducers = {span.span: span.reducer for span in plan.spans}
        if plan.codec_down != self.assembly.codec:  # a round may use a codec other than the recipe's
            self.assembly = Assembly(self.assembly.grid, plan.codec_down)
        self.assembly.follow(plan)
        frames, self._early_frames = self._early_frames, []
        for frame in frames:
            self.keep_chunk(frame)

    def keep_chunk(self, frame: Frame) -> bool:
        """Store an averaged chunk. Return True if it is new. A chunk that arrives before its plan waits for the
        plan.
        """
        if (frame.step, frame.fence) != (self.cut.step, self.cut.fence):
            return False
        if self.plan is None or frame.attempt > self.plan.attempt:
            if len(self._early_frames) < self.assembly.grid.chunks:
                self._early_frames.append(frame)
            return False
        is_new = self.assembly.keep_chunk(frame)
        if is_new and frame.attempt == self.plan.attempt:
            count(self._arrived, self._reducers[frame.span], len(frame.payload), time.monotonic())
        return is_new

    def gathered(self) -> Gathered | None:
        """Return an event with timings once all of this attempt's averages have arrived, or None while any are
        missing.
        """
        holds = self.assembly.holds() if self.plan is not None else None
        if self.plan is None or holds is None:
            return None
        came = arrivals_of(self._arrived, self._planned_at)
        return Gathered(self.plan.attempt, holds, came, departures_of(self.full_s))

    def serve(self, peer: PeerId, message: m.Open) -> None:
        """Queue a reducer's request for chunks. If the queue is full, drop the request; the reducer repeats it on a new
        link.
        """
        with contextlib.suppress(asyncio.QueueFull):
            self.opens.put_nowait((peer, message))

    async def wait_for_chunks(self, record: RecordHead, patience_s: float) -> None:
        """Wait until all the record's averaged chunks have arrived, or until none has arrived for `patience_s`."""
        while self.assembly.missing(record):
            self.arrived.clear()
            try:
                async with asyncio.timeout(patience_s):
                    await self.arrived.wait()
            except TimeoutError:
                return

    def material(self) -> tuple[Sending, m.PlanHead, int]:
        """Return the gradient to send, its plan and its slot. Raises RuntimeError if this machine contributes
        nothing.
        """
        if self.sending is None or self.plan is None or self.slot is None:
            raise RuntimeError("this machine contributes nothing to the round")
        return self.sending, self.plan, self.slot

    def stop(self) -> None:
        """End the round: stop sending, and drop stored chunks."""
        self.stop_sending()
        self._early_frames = []

    def stop_sending(self) -> None:
        """Stop sending this machine's gradient."""
        if self.task is not None:
            self.task.cancel()
            self.task = None
        while not self.opens.empty():
            self.opens.get_nowait()


async def contribute(round_: OpenRound, links: DataLinks) -> None:
    """Until cancelled, send chunks to each reducer that requests them, even if it asks late or again after a lost link.
    Serve a late reducer at once, because it would otherwise suspect that this trainer has failed. The writers are plain
    tasks, because a TaskGroup's errors would keep the round's data in memory until garbage collection.
    """
    writers: set[asyncio.Task[None]] = set()
    try:
        while True:
            ready = await _gathered(round_)
            writers.add(asyncio.create_task(_send(round_, links, ready)))
            for writer in [writer for writer in writers if writer.done()]:
                writers.remove(writer)
                writer.result()
    finally:
        for writer in writers:
            writer.cancel()


async def _gathered(round_: OpenRound) -> dict[PeerId, m.Open]:
    """Wait for a reducer's request, then up to `GATHER_S` seconds for requests by the plan's other reducers. Return all
    of the requests.
    """
    ready = dict([await round_.opens.get()])
    wanted = {span.reducer for span in round_.material()[1].spans if not span.root}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GATHER_S):
            while not wanted <= ready.keys():
                peer, message = await round_.opens.get()
                ready[peer] = message
    return ready


async def _send(round_: OpenRound, links: DataLinks, ready: dict[PeerId, m.Open]) -> None:
    connections = {peer: links.open[peer] for peer in ready if peer in links.open}
    frames = {peer: _frames(round_, peer, set(ready[peer].received)) for peer in connections}
    first = dict.fromkeys(connections, _leaves(round_))
    pace = _pace(*round_.material()[:2])
    await send_chunks(connections, frames, first=first, pace=pace, full_s=round_.full_s)


def _pace(sending: Sending, plan: m.PlanHead) -> float:
    """Return this machine's sending limit in bytes per second, or 0 for no limit. Sending faster would delay slower
    machines.
    """
    chunks = (chunk for span in plan.spans if not span.root for chunk in range(span.first, span.stop))
    seconds = coming_s(plan)
    return plan.pace * sum(len(sending.payloads[chunk]) for chunk in chunks) / seconds if seconds else 0.0


def _leaves(round_: OpenRound) -> m.Leaves:
    sending, plan, slot = round_.material()
    return m.Leaves(
        run=plan.run,
        step=plan.step,
        fence=plan.fence,
        attempt=plan.attempt,
        slot=slot,
        leaves=pack_leaves(sending.leaves),
    )


def _frames(round_: OpenRound, peer: PeerId, received: set[int]) -> list[Frame]:
    """Return the chunks for one reducer in ascending order, without those that it already has."""
    sending, plan, slot = round_.material()
    spans = sorted((span for span in plan.spans if span.reducer == peer and not span.root), key=lambda s: s.first)
    return [
        Frame(
            Kind.GRADIENT,
            plan.run,
            plan.step,
            plan.fence,
            plan.attempt,
            span.span,
            chunk,
            slot,
            sending.payloads[chunk],
        )
        for span in spans
        for chunk in range(span.first, span.stop)
        if chunk not in received
    ]

"""A trainer's side of one open round: what it sends to the reducers, and what it gets back."""

import asyncio
import contextlib
import time
from typing import Any

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.contributor import Sending
from peer_agent.network.sending import send_chunks
from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.counting import Arrived, arrivals_of, count, departures_of
from peer_agent.protocol.deadlines import coming_s
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.log.records import RecordHead
from peer_agent.protocol.trainer.events import Gathered
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.site.relay_links import DataLinks

GATHER_S = 0.05  # at most, for reducers that open at about the same time to be served together
OPENS = 1000  # that wait to be served; as many as there can be relays


class OpenRound:
    """The bytes of a round, from the cut to commit or void: ours on their way out, averaged ones as they come."""

    def __init__(self, cut: m.Cut | m.SitOut | m.PlanHead, assembly: Assembly) -> None:
        """`cut`: what it began with; of a round to which this machine was not asked, its plan."""
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
        self.full_s: dict[PeerId, float] = {}  # in which the way to a reducer took no more

    def is_of(self, record: RecordHead) -> bool:
        """Whether the record's averages are those that come in here."""
        is_next = (record.step, record.fence) == (self.cut.step + 1, self.cut.fence)
        return is_next and self.plan is not None and record.codec == self.assembly.codec

    def follow(self, plan: m.PlanHead, slot: int | None) -> None:
        """Take an attempt's averages from now on, and those that came before the plan; send what `slot` is asked."""
        self.stop_sending()
        self.plan, self.slot = plan, slot
        self._planned_at, self._arrived, self.full_s = time.monotonic(), {}, {}
        self._reducers = {span.span: span.reducer for span in plan.spans}
        if plan.codec_down != self.assembly.codec:  # the plan names another than the recipe; it holds for the round
            self.assembly = Assembly(self.assembly.grid, plan.codec_down)
        self.assembly.follow(plan)
        frames, self._early_frames = self._early_frames, []
        for frame in frames:
            self.keep_chunk(frame)

    def keep_chunk(self, frame: Frame) -> bool:
        """Keep an averaged chunk. One that is ahead of our plan waits for it."""
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
        """That all averages of the attempt are here, and how they came; None while one is missing."""
        holds = self.assembly.holds() if self.plan is not None else None
        if self.plan is None or holds is None:
            return None
        came = arrivals_of(self._arrived, self._planned_at)
        return Gathered(self.plan.attempt, holds, came, departures_of(self.full_s))

    def serve(self, peer: PeerId, message: m.Open) -> None:
        """Send to this reducer what it has not. One that opens without end is served when the link is anew."""
        with contextlib.suppress(asyncio.QueueFull):
            self.opens.put_nowait((peer, message))

    async def wait_for_chunks(self, record: RecordHead, patience_s: float) -> None:
        """Wait for averaged chunks that are on their way, as long as they keep coming."""
        while self.assembly.missing(record):
            self.arrived.clear()
            try:
                async with asyncio.timeout(patience_s):
                    await self.arrived.wait()
            except TimeoutError:
                return

    def material(self) -> tuple[Sending, m.PlanHead, int]:
        """What is sent, by which plan, from which slot. Only for a contributor of the plan."""
        if self.sending is None or self.plan is None or self.slot is None:
            raise RuntimeError("this machine contributes nothing to the round")
        return self.sending, self.plan, self.slot

    def stop(self) -> None:
        """The round is over: let go of what it held."""
        self.stop_sending()
        self._early_frames = []

    def stop_sending(self) -> None:
        """Nothing more of our gradient goes out in this attempt."""
        if self.task is not None:
            self.task.cancel()
            self.task = None
        while not self.opens.empty():
            self.opens.get_nowait()


async def contribute(round_: OpenRound, links: DataLinks) -> None:
    """Serve every reducer that opens, now or after a lost link, until the round ends.

    One that opens later does not wait until the others have everything: its relay would take us for lost. Plain tasks
    and no TaskGroup, whose cancelled errors would hold the round's bytes until the collector comes by.
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
    """The reducers that are ready: all that the plan gives us, or those that open within a moment of one another."""
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
    """Bytes per second at which our chunks go: 0 is as fast as they can.

    Who is far ahead of the plan fills the ways into the reducers, where those who are slow by plan would come too late.
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
    """Our chunks for one reducer in ascending order, without those that it has."""
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

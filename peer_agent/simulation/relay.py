"""A virtual relay: averages nothing; collects chunks at the senders' pace and holds spans under made-up roots."""

import hashlib
from typing import TYPE_CHECKING, Any

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Message, PlannedSpan
from peer_agent.protocol.records import Included
from peer_agent.simulation.peer import Peer

if TYPE_CHECKING:
    from peer_agent.simulation.world import World

POLL_S = 0.4


class Relay(Peer):
    """One relay, reducing the chunks of its open spans in ascending order; a chunk closes when all slots have come."""

    role = Role.RELAY

    def __init__(self, world: "World", peer: PeerId, *, latency_s: float, bytes_per_s: int) -> None:
        super().__init__(world, peer, latency_s)
        self.bytes_per_s = bytes_per_s
        self.index = 0  # of the log on its disk, which outlives its process
        self.forget()

    def forget(self) -> None:
        """What lay in memory is gone."""
        self.plan: m.Plan | None = None
        self.accumulator = self.new_accumulator()

    def hello(self) -> m.Hello:
        """Where it listens and how far its log goes."""
        return m.Hello(
            run=self.world.run_id,
            accumulator=self.accumulator,
            fence=self.fence,
            url=f"ws://{self.peer[:8]}",
            log_index=self.index,
            upload_bps=self.bytes_per_s,
            download_bps=self.bytes_per_s,
        )

    def receive(self, message: Message | m.Plan) -> None:
        """React to the host, as the real relay does."""
        if getattr(message, "fence", self.fence) < self.fence:
            return
        match message:
            case m.Greeting():
                if message.fence > self.fence:
                    self.fence, self.plan = message.fence, None
            case m.Plan():
                self._open(message)
            case m.Drop():
                if self.plan is not None and message.attempt == self.plan.attempt:
                    self.dropped.add(message.slot)
            case m.Void():
                self.plan = None
            case m.Commit():
                self.plan = None
                record = self.world.database.record_of(message.record)
                if record.index == self.index + 1:
                    self.index = record.index
                elif record.index > self.index:
                    self.say(self.hello())
            case _:
                pass

    def _open(self, plan: m.Plan) -> None:
        self.plan = plan
        self.spans = [span for span in plan.spans if span.reducer == self.peer and not span.root]
        self.chunks = [chunk for span in self.spans for chunk in range(span.first, span.stop)]
        self.received = [0.0] * len(plan.slots)
        self.included: list[tuple[int, ...]] = []
        self.dropped: set[int] = set()
        self.after(POLL_S, lambda: self._poll(plan))

    def _poll(self, plan: m.Plan) -> None:
        if self.plan is not plan or not self.spans:
            return
        self._collect(plan)
        counts = tuple((slot, int(count)) for slot, count in enumerate(self.received))
        self.say(m.Progress(**_place(plan), received=counts))
        closed = len(self.included)
        while self.spans and closed >= self._stop_of(self.spans[0]):
            self.say(self._done(plan, self.spans.pop(0)))
        self.after(POLL_S, lambda: self._poll(plan))

    def _collect(self, plan: m.Plan) -> None:
        for number, slot in enumerate(plan.slots):
            sender = self.world.trainers[slot.peer]
            if number in self.dropped or not sender.sends(plan, slot):
                continue
            if sender.damaged and not self.received[number]:
                self.say(m.SlotRefused(**_place(plan), slot=number, chunk=self.chunks[0], code="E211"))
                continue
            self.received[number] = min(len(self.chunks), self.received[number] + sender.chunks_per_s * POLL_S)
        awaited = [number for number in range(len(plan.slots)) if number not in self.dropped]
        while len(self.included) < len(self.chunks) and awaited:
            if any(self.received[number] < len(self.included) + 1 for number in awaited):
                break
            self.included.append(tuple(awaited))

    def _stop_of(self, span: PlannedSpan) -> int:
        return self.chunks.index(span.stop - 1) + 1

    def _done(self, plan: m.Plan, span: PlannedSpan) -> m.SpanDone:
        start = self._stop_of(span) - (span.stop - span.first)
        parts: list[Included] = []
        for chunk in range(span.first, span.stop):
            slots = self.included[start + chunk - span.first]
            if parts and parts[-1].slots == slots:
                parts[-1] = Included(parts[-1].first, chunk + 1, slots)
            else:
                parts.append(Included(chunk, chunk + 1, slots))
        root = hashlib.sha256(repr((plan.step, span, [slot.root for slot in plan.slots], parts)).encode()).digest()
        return m.SpanDone(**_place(plan), span=span.span, root=root, sum_squares=0.5, included=tuple(parts))


def _place(plan: m.Plan) -> dict[str, Any]:
    return {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}

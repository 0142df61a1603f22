"""A virtual relay: a real relay's state machine, without payloads.

Chunks arrive at the senders' speed, and roots are fake.
"""

import hashlib
from collections.abc import Mapping

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import codes
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import Leaf
from peer_agent.protocol.log.records import Entry
from peer_agent.protocol.messages import Message
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.advance import advance, hello
from peer_agent.protocol.relay.opened import OpenCommit, OpenPlan, Place
from peer_agent.protocol.relay.state import Attempt, Keeper, Phase, Reducer, RelayState
from peer_agent.simulation.site import Peer, Surroundings, sketch_of
from peer_agent.simulation.trainer import Trainer

POLL_S = 0.4  # seconds between checks for chunks that have arrived
TICK_S = 0.5
DISK_S = 0.01
FULL_S = 1.0  # seconds between attempts to write to a full disk


class Relay(Peer):
    """A virtual relay. Each sender sends the relay the chunks of all its open spans, in ascending order."""

    role = Role.RELAY

    def __init__(
        self, world: Surroundings, peer: PeerId, trainers: Mapping[PeerId, Trainer], *, latency_s: float
    ) -> None:
        super().__init__(world, peer, latency_s)
        self.trainers = trainers
        self.index = 0  # index of the log on disk, which outlives the process
        self.forget()

    def forget(self) -> None:
        self.core = RelayState(
            run=self.world.run_id,
            me=self.peer,
            url=f"ws://{self.peer[:8]}",
            reducer=Reducer(),
            keeper=Keeper(index=self.index, appending=self.index),
        )
        self.sent: list[float] = []  # by slot: number of chunks that have arrived; the last may be incomplete
        self.after(TICK_S * self.world.chance.random(), self._tick)

    def hello(self) -> m.Hello:
        self.core.joined = True
        return hello(self.core)

    def disconnect(self) -> None:
        super().disconnect()
        self._take(e.ControlLost())

    def receive(self, message: Message | m.Plan) -> None:
        """Handle a message from the host, decoded as a real relay decodes it."""
        if isinstance(message, m.Plan):
            self._take(e.Heard(OpenPlan(message, message.slots)))
        elif isinstance(message, m.Commit):
            record = self.world.database.record_of(message.record)
            self._take(e.Heard(OpenCommit(message.fence, record, Entry(message.record))))
        else:
            assert isinstance(message, m.TO_PEER)
            assert not isinstance(message, m.Planned | m.Commit)  # the virtual host signs no plans
            self._take(e.Heard(message))

    def _tick(self) -> None:
        self._take(e.Ticked())
        self.after(TICK_S, self._tick)

    def _take(self, event: e.Event) -> None:
        for action in advance(self.core, event, self.world.clock.now):
            self._do(action)
        self.fence = self.core.fence

    def _do(self, action: e.Action) -> None:
        """Carry out an action.

        Links carry no bytes, so the relay polls its senders, and fetches nothing from other relays.
        """
        match action:
            case e.Say():
                self.say(action.message)
            case e.Begin():
                self.sent = [0.0] * len(action.plan.slots)
                self.after(POLL_S, lambda: self._poll(action.plan))
            case e.WriteSpan():
                self._write(action)
            case e.Append():
                self.after(DISK_S, lambda: self._append(action))
            case e.Scan():
                self._take(e.Scanned(action.stop, ()))  # nothing needs copying, because there are no bytes
            case _:
                pass

    def _append(self, action: e.Append) -> None:
        if self.disk_full:
            self.after(FULL_S, lambda: self._append(action))
            return
        if action.index <= self.index + 1:
            self.index = max(self.index, action.index)
            self._take(e.Appended(self.index))
        else:
            self._take(e.AppendFailed(action.index))

    def _write(self, action: e.WriteSpan) -> None:
        attempt = self._attempt()
        if attempt is None:
            return
        if self.disk_full:
            self.after(FULL_S, lambda: self._write(action))
            return
        plan, place = attempt.plan.plan, attempt.place
        parts = (plan.step, action.span, [slot.root for slot in plan.slots], list(action.included))
        part = (action.span.stop - action.span.first) / attempt.plan.grid.chunks
        norm = min(slot.scale * slot.norm for slot in plan.slots)  # no mean of the slots is smaller
        leaf = Leaf(hashlib.sha256(repr(parts).encode()).digest(), part * norm**2)
        sketches = self._sketches(plan, action)
        self.after(DISK_S, lambda: self._written(place, action.span, leaf, sketches))

    def _sketches(self, plan: m.Plan, action: e.WriteSpan) -> tuple[bytes, ...]:
        if not plan.seed:
            return ()
        there = {slot for part in action.included for slot in part.slots}
        names = [self.world.gradients.get(slot.root, "") for slot in plan.slots]
        chunks = action.span.stop - action.span.first
        return tuple(sketch_of(name, chunks) if number in there else b"" for number, name in enumerate(names))

    def _written(self, place: Place, span: m.PlannedSpan, leaf: Leaf, sketches: tuple[bytes, ...]) -> None:
        """Report a written span, and deliver its averages to the trainers.

        A real relay sends each average before its span is written.
        """
        self._take(e.SpanWritten(place, span.span, leaf.digest, leaf.sum_squares, sketches))
        for trainer in self.trainers.values():
            if self.world.reaches(trainer.peer, self.peer):
                trainer.after(self.latency_s, lambda trainer=trainer: trainer.gather(place, span, leaf))  # type: ignore[misc]

    def _attempt(self) -> Attempt | None:
        return self.core.reducer.attempt if self.core.reducer is not None else None

    def _poll(self, plan: OpenPlan) -> None:
        attempt = self._attempt()
        if attempt is None or attempt.plan is not plan or self.core.reducer is None:
            return
        if self.core.reducer.phase is not Phase.REDUCE:
            return
        for number, slot in enumerate(plan.slots):
            self._collect(attempt, number, slot)
        self.after(POLL_S, lambda: self._poll(plan))

    def _collect(self, attempt: Attempt, number: int, slot: m.Slot) -> None:
        """Add the chunks of a slot that have arrived since the last poll. Refuse a sender with damaged memory."""
        sender, chunks = self.trainers[slot.peer], attempt.coverage.chunks
        if number in attempt.refused or not sender.sends(attempt.plan.plan, slot):
            return
        if not self.world.reaches(slot.peer, self.peer):
            return
        before = self.sent[number]
        after = min(float(len(chunks)), before + sender.chunks_of(slot.codec) * self.pace * POLL_S)
        self.sent[number] = after
        for chunk in chunks[int(before) : int(after)]:
            if sender.damaged:
                self._take(e.ChunkRefused(attempt.place, number, chunk, codes.CHUNK_DIFFERS))
                return
            self._take(e.ChunkAdded(attempt.place, number, chunk))

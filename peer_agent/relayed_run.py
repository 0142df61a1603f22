"""One run as a relay serves it: reduces its spans of each plan, gives out the averages, keeps the log.

Ties `averaging` to `network`; decides nothing: plans, drops, voids and commits come from the coordinator.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from peer_agent.averaging.reducer import Closed, ClosedChunk, ClosedSpan, Reduction
from peer_agent.averaging.update_log import UpdateLog
from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.network.outbox import Outbox
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import PLAN, Role, is_signed_by
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.records import Record
from peer_agent.protocol.wire import LOGGED, Frame, Kind

log = logging.getLogger(__name__)

INLINE_BYTES = 256 * 1024  # larger chunks are hashed and added in a thread, so that the loop stays awake (rule 37)
RECORDS_AT_ONCE = 64
COPY_TRIES, COPY_PAUSE_S, COPIES_AT_ONCE = 5, 1.0, 4
Say = Callable[[m.Message], Awaitable[None]]
Speak = Callable[[], Awaitable[Any]]
Held = tuple[m.Plan, ClosedSpan, list[bytes]]
Fetch = Callable[[RunId, int, int], Awaitable[list[bytes] | None]]


class RelayedRun:
    """`say` speaks to the coordinator, `fetch` asks another relay for a span of the log."""

    def __init__(
        self, run: RunId, me: PeerId, site_key: bytes, update_log: UpdateLog, *, say: Say, fetch: Fetch
    ) -> None:
        self.run, self.me, self.site_key, self.log = run, me, site_key, update_log
        self.say, self.fetch = say, fetch
        self.reduction: Reduction | None = None
        self.outbox: Outbox | None = None
        self.links: dict[PeerId, Connection] = {}
        self.covered = 0  # a snapshot covers the log up to this index: nobody needs those bytes
        self.newest = (0, 0, 0)  # step, fence, attempt: anything lower is dropped (rule 2)
        self._payloads: dict[int, bytes] = {}  # by chunk, of the open attempt's spans
        self._refused: set[int] = set()  # slots; the coordinator was told and does without them
        self._openers: dict[PeerId, asyncio.Task[None]] = {}
        self._followers: dict[PeerId, asyncio.Task[None]] = {}
        self._closing = asyncio.Lock()  # chunks are given out in the order in which they close
        self._copies: dict[int, asyncio.Task[None]] = {}  # by index
        self._copying = asyncio.Semaphore(COPIES_AT_ONCE)  # else a relay that was away would hold all it missed at once

    # --- what the coordinator says ------------------------------------------------------------------------------

    async def plan(self, planned: m.Planned) -> None:
        """Begin an attempt: open to its contributors."""
        if not is_signed_by(self.site_key, PLAN, planned.plan):
            raise Problem.of("E218")
        plan = msgspec.msgpack.decode(planned.plan.payload, type=m.Plan)
        if not self._is_news(plan.step, plan.fence, plan.attempt):
            return
        if self.outbox is None or self.reduction is None or self.reduction.plan.step != plan.step:
            self._new_outbox(plan)
        self._begin(Reduction(plan, self.me))
        for peer, link in self.links.items():
            # Not in our own time: one contributor that takes nothing, or is lost now, must not hold up the others.
            _replace(self._openers, peer, partial(self._open, peer, link))

    def _is_news(self, step: int, fence: int, attempt: int) -> bool:
        """Fences count first: after a restart of the host the same step is planned anew."""
        place = (fence, step, attempt)
        if place <= self.newest:
            return False
        self.newest = place
        return True

    def _begin(self, reduction: Reduction | None) -> None:
        """Whatever was reduced before is over."""
        self.reduction, self._payloads, self._refused = reduction, {}, set()

    def _new_outbox(self, plan: m.Plan) -> None:
        self._end_outbox()
        self.outbox = Outbox(max_bytes=64 * (plan.elements * 4 + 65536))
        for peer, link in self.links.items():
            self._follow(peer, link)

    def _end_outbox(self) -> None:
        if self.outbox is not None:
            self.outbox.close()
        self.outbox = None

    async def drop(self, message: m.Drop) -> None:
        """Go on without a slot."""
        reduction = self.reduction
        if reduction is not None and _same(reduction.plan, message):
            async with self._closing:
                spans = self._give_out(reduction, reduction.drop(message.slot))
            await self._hold(spans)

    async def void(self, message: m.Void) -> None:
        """Forget an attempt."""
        if self.reduction is not None and _same(self.reduction.plan, message):
            self.end()
        await asyncio.to_thread(self.log.void, self.run, message.step, message.fence, message.attempt)

    def end(self) -> None:
        """Nothing is open any more."""
        self._begin(None)
        self._end_outbox()

    def greeted(self, greeting: m.Greeting) -> None:
        """What a host knows. A new one has voided, without a word, what the one before it had not committed."""
        self.covered = max(self.covered, greeting.snapshot.index)
        plan = self.reduction.plan if self.reduction is not None else None
        if plan is not None and greeting.fence > plan.fence and greeting.step == plan.step:
            self.end()

    async def commit(self, message: m.Commit) -> None:
        """Append the record; fetch what others averaged, so that the log outlives any one relay."""
        record = await asyncio.to_thread(self.log.append, message.record)
        if self.reduction is not None and self.reduction.plan.step < record.step:
            self._begin(None)
        if record.index > self.covered and record.index not in self._copies:
            copying = self._copies[record.index] = asyncio.create_task(self._replicate(record))
            copying.add_done_callback(lambda _: self._copies.pop(record.index))

    async def _replicate(self, record: Record) -> None:
        """Fetch the spans of a committed entry that others reduced; they may learn of the commit after us."""
        for _ in range(COPY_TRIES):
            try:
                async with self._copying:
                    if await self._has_copied(record):
                        return
            except Problem as problem:
                log.warning("run %s: entry %s is not copied: %s", self.run, record.index, problem)
            await asyncio.sleep(COPY_PAUSE_S)

    async def _has_copied(self, record: Record) -> bool:
        missing = await asyncio.to_thread(self.log.missing, self.run, record.index)
        for entry in missing:
            if record.index <= self.covered:
                return True
            payloads = await self.fetch(self.run, record.index, entry.span)
            if payloads is not None:
                await asyncio.to_thread(self.log.store, self.run, record.index, entry.span, payloads)
        return not missing

    async def forget(self, keep_after: int) -> None:
        """A verified snapshot covers the log up to here: records stay, bytes go."""
        self.covered = max(self.covered, keep_after)
        await asyncio.to_thread(self.log.forget, self.run, keep_after)

    async def report_progress(self) -> None:
        """Tell the coordinator how far each slot is, while something is open."""
        if self.reduction is not None:
            plan = self.reduction.plan
            await self.say(m.Progress(**_place(plan), received=self.reduction.progress()))

    # --- what peers say -----------------------------------------------------------------------------------------

    async def serve(self, peer: PeerId, role: Role, link: Connection) -> None:
        """One data link, until it ends."""
        self.links[peer] = link
        try:
            if role is Role.TRAINER:
                self._follow(peer, link)
            await self._open(peer, link)
            while True:
                await self._take(peer, link, await link.receive())
        finally:
            if self.links.get(peer) is link:
                del self.links[peer]
                for speaking in (self._openers, self._followers):
                    if task := speaking.pop(peer, None):
                        task.cancel()

    def _follow(self, peer: PeerId, link: Connection) -> None:
        if self.outbox is not None:
            _replace(self._followers, peer, partial(self.outbox.follow, link))

    async def _open(self, peer: PeerId, link: Connection) -> None:
        """Ask a contributor for its chunks, saying which have come already (rule 19)."""
        if self.reduction is None:
            return
        plan = self.reduction.plan
        for number, slot in enumerate(plan.slots):
            if slot.peer == peer:
                received = self.reduction.received(number)
                await link.send(m.Open(**_place(plan), slot=number, received=received))

    async def _take(self, peer: PeerId, link: Connection, body: m.AnyMessage | Frame) -> None:
        match body:
            case Frame():
                await self._add(peer, link, body)
            case m.Leaves():
                await self._leaves(peer, link, body)
            case m.FetchSpan() | m.FetchRecords():
                await self.give(link, body)

    async def _leaves(self, peer: PeerId, link: Connection, body: m.Leaves) -> None:
        reduction = self.reduction
        if reduction is None or not _same(reduction.plan, body) or not self._may_speak(reduction, body.slot, peer):
            return
        fault = reduction.leaves(body.slot, body.leaves)
        if fault is not None:
            await self._refuse(reduction.plan, link, body.slot, 0, fault)

    async def _add(self, peer: PeerId, link: Connection, frame: Frame) -> None:
        reduction = self.reduction
        if reduction is None or not self._may_speak(reduction, frame.slot, peer):
            return
        async with self._closing:
            large = len(frame.payload) > INLINE_BYTES
            result = await asyncio.to_thread(reduction.add, frame) if large else reduction.add(frame)
            spans = self._give_out(reduction, [] if isinstance(result, Fault) else result)
        if isinstance(result, Fault) and reduction is self.reduction:
            await self._refuse(reduction.plan, link, frame.slot, frame.chunk, result)
        await self._hold(spans)

    def _may_speak(self, reduction: Reduction, slot: int, peer: PeerId) -> bool:
        """A slot is spoken for by its peer alone, until it is refused."""
        slots = reduction.plan.slots
        return slot < len(slots) and slots[slot].peer == peer and slot not in self._refused

    async def _refuse(self, plan: m.Plan, link: Connection, slot: int, chunk: int, fault: Fault) -> None:
        self._refused.add(slot)  # its other chunks would only be refused again, one message each
        log.warning("run %s: slot %s refused: %s", self.run, slot, fault)
        message = m.SlotRefused(**_place(plan), slot=slot, chunk=chunk, code=fault.code)
        await self.say(message)
        await link.send(message)

    def _give_out(self, reduction: Reduction, closed: list[Closed]) -> list[Held]:
        """Publish closed chunks; the spans that are complete, with their bytes, are still to be held."""
        if reduction is not self.reduction:
            return []  # another attempt has begun meanwhile
        spans: list[Held] = []
        for part in closed:
            match part:
                case ClosedChunk():
                    self._payloads[part.chunk] = part.payload
                    self._publish(reduction.plan, part)
                case ClosedSpan():
                    payloads = [self._payloads.pop(chunk) for chunk in range(part.first, part.stop)]
                    spans.append((reduction.plan, part, payloads))
        return spans

    def _publish(self, plan: m.Plan, part: ClosedChunk) -> None:
        if self.outbox is not None:
            place = (plan.run, plan.step, plan.fence, plan.attempt, part.span, part.chunk, 0)
            self.outbox.publish(Frame(Kind.AVERAGE, *place, part.payload))

    async def _hold(self, spans: list[Held]) -> None:
        """Report a span once it is on the disk."""
        for plan, span, payloads in spans:
            place = (plan.run, plan.step, plan.fence, plan.attempt)
            await asyncio.to_thread(self.log.hold, *place, span, payloads)
            done = m.SpanDone(
                **_place(plan), span=span.span, root=span.root, sum_squares=span.sum_squares, included=span.included
            )
            await self.say(done)

    # --- the log ------------------------------------------------------------------------------------------------

    async def give(self, link: Connection, wanted: m.FetchSpan | m.FetchRecords) -> None:
        """Answer out of the log."""
        if isinstance(wanted, m.FetchSpan):
            await self._give_span(link, wanted)
        else:
            await self._give_records(link, wanted)

    async def _give_span(self, link: Connection, wanted: m.FetchSpan) -> None:
        stored = await asyncio.to_thread(self.log.span, self.run, wanted.index, wanted.span)
        if stored is None:
            await link.send(m.SpanMissing(run=self.run, index=wanted.index, span=wanted.span))
            return
        record = await asyncio.to_thread(self.log.record, self.run, wanted.index)
        entry = next(entry for entry in record.spans if entry.span == wanted.span)
        for chunk, payload in enumerate(stored.payloads, entry.first):
            # The header of a logged chunk says where it is in the log: its index stands where a step stands.
            frame = Frame(Kind.AVERAGE, self.run, wanted.index, LOGGED, 0, wanted.span, chunk, 0, payload)
            await link.send(frame)

    async def _give_records(self, link: Connection, wanted: m.FetchRecords) -> None:
        sealed = await asyncio.to_thread(self.log.records, self.run, wanted.first, RECORDS_AT_ONCE)
        last = await asyncio.to_thread(self.log.last_index, self.run)
        await link.send(m.Records(run=self.run, first=wanted.first, last=last, records=tuple(sealed)))


def _place(plan: m.Plan) -> dict[str, Any]:
    return {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}


def _same(plan: m.Plan, message: m.Attempted) -> bool:
    place = (message.run, message.step, message.fence, message.attempt)
    return place == (plan.run, plan.step, plan.fence, plan.attempt)


def _replace(tasks: dict[PeerId, asyncio.Task[None]], peer: PeerId, speak: Speak) -> None:
    """Speak to a peer beside everything else, instead of what was last said to it in this way."""
    if before := tasks.pop(peer, None):
        before.cancel()
    tasks[peer] = asyncio.create_task(_quietly(speak))


async def _quietly(speak: Speak) -> None:
    """A link that ends is noticed by whoever reads it."""
    try:
        await speak()
    except (LinkLost, Refused):
        return

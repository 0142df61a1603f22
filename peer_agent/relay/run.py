"""One run in a relay's process. It passes events to `protocol.relay` and carries out the resulting actions. Events are
handled one at a time, with all their actions. Disk and network actions run in background tasks, with writes in order.
Their outcomes become new events.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, assert_never

from msgspec import Struct

from peer_agent.averaging.codecs import INLINE_BYTES
from peer_agent.averaging.reducer import Reduction, Residuals, received_span
from peer_agent.averaging.update_log import Forked, UpdateLog
from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.network.probing import Prober
from peer_agent.network.sending import Outbox, send_frames
from peer_agent.protocol import messages as m
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.merkle import LEAF
from peer_agent.protocol.log.records import RecordHead, SpanEntry
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.advance import advance
from peer_agent.protocol.relay.opened import OpenPlan
from peer_agent.protocol.relay.reducing import has_deadlines, is_ahead
from peer_agent.protocol.relay.state import Keeper, Reducer, RelayState, place_of
from peer_agent.protocol.wire import HEADER, LOGGED, Frame, Kind

log = logging.getLogger(__name__)

RECORDS_AT_ONCE = 64
HAND_IN_S = 1.0  # seconds between pages of records of replaced branches
LOOK_AGAIN_S = 0.02  # seconds between checks on whether other slots have caught up
EARLY_BYTES = 64 * 1024 * 1024  # Limit on averages that arrive before their plan. Others are copied after the commit.
RECEIVERS = frozenset({Role.TRAINER, Role.RELAY, Role.AUXILIARY})  # roles that receive a round's averages
BESIDE_A_CHUNK = 1024  # bytes in a message besides its chunk or leaves
Ask = Callable[[PeerId, RecordHead, SpanEntry], Awaitable[list[bytes] | None]]
Answer = e.Tell | e.GiveSpan | e.GiveRecords
Check = e.KeepLeaves | e.AddChunk
Write = e.WriteReceived | e.WriteSpan | e.Append | e.Discard | e.Forget | e.Scan
Bound = e.Begin | e.End | e.Settle
Doing = e.Say | e.Follow | Bound | Check | e.CloseChunk | e.CutLink | e.CopySpan | e.HandIn | e.KeepAverage | Write
Speak = Callable[[], Awaitable[Any]]


class Around(Struct, frozen=True):
    """A run's callbacks to its process.

    `say` sends a message to the coordinator, or drops it. `ask` fetches a span from another relay's log. `follow` names
    the listeners that the run needs links to. `failed` receives errors from background tasks.
    """

    say: Callable[[m.TO_SITE], None]
    ask: Ask
    follow: Callable[[RunId, tuple[m.Listener, ...]], None]
    failed: Callable[[RunId, Exception], None]


class RelayedRun:
    """One run in this process. `gets_all`: True in a trainer's process, which receives all averages."""

    def __init__(
        self,
        run: RunId,
        me: PeerId,
        update_log: UpdateLog,
        around: Around,
        *,
        url: str = "",
        fingerprint: str = "",
        reserve_percent: int = 0,
        gets_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run, self.log, self.around = run, update_log, around
        index = update_log.last_index(run)
        self.state = RelayState(run=run, me=me, url=url, fingerprint=fingerprint, reducer=Reducer(), keeper=None)
        self.state.reserve_percent = reserve_percent
        keeper, self.state.gets_all = Keeper(index=index, appending=index), gets_all
        self.state.keeper, self.state.spare = (None, keeper) if gets_all else (keeper, None)
        self.reduction: Reduction | None = None
        self.residuals = Residuals()
        self.received: dict[int, dict[int, bytes]] = {}  # averages from other reducers: payloads by span and chunk
        self.outbox: Outbox | None = None
        self.prober = Prober(run, around.say)
        self._early: list[tuple[PeerId, Frame]] = []
        self._early_bytes = 0
        self.links: dict[PeerId, Connection] = {}
        self._clock = clock
        self._limit = 0  # the longest message, in bytes, that the plan lets a contributor send
        self._turn = asyncio.Lock()
        self._disk = asyncio.Lock()  # ensures that writes happen in the order requested
        self._is_handing_in = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._openers: dict[PeerId, asyncio.Task[None]] = {}
        self._followers: dict[PeerId, asyncio.Task[None]] = {}

    @property
    def has_deadlines(self) -> bool:
        """True if an open round has deadlines, in which case the run needs frequent ticks."""
        return self.state.reducer is not None and has_deadlines(self.state.reducer)

    async def handle(self, event: e.Event) -> None:
        """Handle an event. Each peer's answers are sent in a background task, so that no peer delays another."""
        answers: dict[PeerId, list[Answer]] = {}
        for answer in await self._take(event):
            answers.setdefault(answer.peer, []).append(answer)
        for peer in answers.keys() & self.links.keys():
            self._replace(self._openers, peer, partial(self._give_all, self.links[peer], answers[peer]))

    async def close(self, fault: Fault | None = None) -> None:
        """End all the run's tasks. If `fault` is given, also close the links with it."""
        self.prober.close()
        tasks = [*self._tasks, *self._openers.values(), *self._followers.values()]
        for task in tasks:
            task.cancel()
        self._end(silent=True)
        links = list(self.links.values()) if fault is not None else []
        await asyncio.gather(*tasks, *(link.close(fault) for link in links), return_exceptions=True)

    # --- data links ---------------------------------------------------------------------------------------------

    async def serve(self, peer: PeerId, role: Role, link: Connection) -> None:
        self.links[peer] = link
        try:
            link.allow(self._limit)
            answers = await self._take(e.Linked(peer, role))
            if role in RECEIVERS:  # only after the event, because the event may begin a new outbox
                self._follow(peer, link)
            await self._give_all(link, answers)
            while True:
                body = await link.receive()
                if self._is_of_a_probe(peer, body, link):
                    continue
                await self._answer(link, e.FrameCame(peer, body) if isinstance(body, Frame) else _asked(peer, body))
                if isinstance(body, Frame) and peer != self.state.me:
                    await self._hold_back(body)
        finally:
            if self.links.get(peer) is link:
                del self.links[peer]
                for speaking in (self._openers, self._followers):
                    if task := speaking.pop(peer, None):
                        task.cancel()
                self._beside(partial(self.handle, e.Unlinked(peer)))

    async def _hold_back(self, frame: Frame) -> None:
        """Stop reading from a slot while it is ahead of the others.

        Its sender must then wait, which frees this machine's downlink for the others.
        """
        place = place_of(frame)
        while (
            (reducer := self.state.reducer) is not None
            and place == reducer.newest
            and is_ahead(reducer, frame.slot, began := self._clock())
        ):
            await asyncio.sleep(LOOK_AGAIN_S)
            await self.handle(e.HeldBack(place, frame.slot, self._clock() - began))

    def probe(self, message: m.Probe) -> None:
        """Measure the bandwidth to a peer that dialled this machine, at the coordinator's request."""
        self.prober.hear(message, self.links.get(message.partner))

    def _is_of_a_probe(self, peer: PeerId, body: m.AnyMessage | Frame, link: Connection) -> bool:
        if isinstance(body, Frame) and body.kind is Kind.PROBE:
            self.prober.frame_came(peer, body)
        elif isinstance(body, m.Probing):
            self.prober.begun(peer, body, link)
        else:
            return False
        return True

    async def hear_average(self, peer: PeerId, frame: Frame) -> None:
        """Handle an average from a peer that this machine dialled.

        If its plan has not arrived yet, store the average, up to a total of `EARLY_BYTES`.
        """
        reducer = self.state.reducer
        if reducer is None or frame.run != self.run:
            return
        if place_of(frame) <= reducer.newest:
            await self.handle(e.AverageCame(peer, frame))
        elif self._early_bytes + len(frame.payload) <= EARLY_BYTES:
            self._early.append((peer, frame))
            self._early_bytes += len(frame.payload)

    async def _hear_early(self) -> None:
        early, self._early, self._early_bytes = self._early, [], 0
        for peer, frame in early:
            await self.hear_average(peer, frame)

    async def _answer(self, link: Connection, event: e.Event) -> None:
        """Send the answers to a peer's event in the link's own task, so that a slow peer delays only itself."""
        await self._give_all(link, await self._take(event))

    async def _give_all(self, link: Connection, answers: list[Answer]) -> None:
        for answer in answers:
            await self._give(link, answer)

    async def _give(self, link: Connection, answer: Answer) -> None:
        match answer:
            case e.Tell():
                await link.send(answer.message)
            case e.GiveSpan():
                await self.give_span(link, answer.index, answer.span)
            case e.GiveRecords():
                await self.give_records(link, answer.first)

    async def give_span(self, link: Connection, index: int, span: int) -> None:
        """Send a span from the log, or a message that it is missing. A damaged record counts as missing."""
        try:
            stored = await asyncio.to_thread(self.log.span, self.run, index, span)
        except Problem as problem:
            log.warning("run %s: %s", self.run, problem)
            stored = None
        if stored is None:
            await link.send(m.SpanMissing(run=self.run, index=index, span=span))
            return
        # In a logged chunk's header, the log entry's index replaces the step.
        frames = [
            Frame(Kind.AVERAGE, self.run, index, LOGGED, 0, span, chunk, 0, payload)
            for chunk, payload in enumerate(stored.payloads, stored.entry.first)
        ]
        await send_frames(link, frames)

    async def give_records(self, link: Connection, first: int) -> None:
        sealed = await asyncio.to_thread(self.log.records, self.run, first, RECORDS_AT_ONCE)
        last = self.log.last_index(self.run)
        await link.send(m.Records(run=self.run, first=first, last=last, records=tuple(sealed)))

    def _follow(self, peer: PeerId, link: Connection) -> None:
        if self.outbox is not None:
            self._replace(self._followers, peer, partial(self.outbox.follow, link))

    def _replace(self, tasks: dict[PeerId, asyncio.Task[None]], peer: PeerId, speak: Speak) -> None:
        if before := tasks.pop(peer, None):
            before.cancel()
        tasks[peer] = asyncio.create_task(_quietly(speak))

    # --- events and actions -------------------------------------------------------------------------------------

    async def _take(self, event: e.Event) -> list[Answer]:
        """Handle an event and all its consequences. Return the answers to send to peers."""
        payload = event.frame.payload if isinstance(event, e.FrameCame | e.AverageCame) else b""
        async with self._turn:
            return await self._carry_out(self._advance(event), payload)

    def _advance(self, event: e.Event) -> list[e.Action]:
        return advance(self.state, event, self._clock())

    async def _carry_out(self, actions: Iterable[e.Action], payload: bytes | memoryview = b"") -> list[Answer]:
        answers: list[Answer] = []
        for action in actions:
            if isinstance(action, e.Tell | e.GiveSpan | e.GiveRecords):
                answers.append(action)
            elif (outcome := await self._do(action, payload)) is not None:
                answers += await self._carry_out(self._advance(outcome))
        return answers

    async def _do(self, action: Doing, payload: bytes | memoryview) -> e.Event | None:
        """Carry out an action and return its outcome. Disk and network actions are merely started."""
        match action:
            case e.Say():
                self.around.say(action.message)
            case e.Follow():
                self.around.follow(self.run, action.listeners)
            case e.Begin() | e.End() | e.Settle():
                self._begin_or_end(action)
            case e.KeepLeaves() | e.AddChunk():
                return await self._check(action, payload)
            case e.CloseChunk():
                await self._close_chunk(action)
            case e.KeepAverage():
                self.received.setdefault(action.span, {})[action.chunk] = bytes(payload)
            case e.CutLink():
                if (idle := self.links.get(action.peer)) is not None:
                    idle.abort()
            case e.CopySpan():
                self._beside(partial(self._copy, action))
            case e.HandIn():
                self._beside(partial(self._hand_in, action.first))
            case e.WriteReceived() | e.WriteSpan() | e.Append() | e.Discard() | e.Forget() | e.Scan():
                self._beside(partial(self._write, action, self._taken(action)))
            case _:
                assert_never(action)
        return None

    def _begin_or_end(self, action: Bound) -> None:
        match action:
            case e.Begin():
                self._begin(action)
            case e.End():
                self._end(silent=action.silent)
            case e.Settle():
                parts = ((span.attempt, span.first, span.stop) for span in action.spans)
                self.residuals.commit(action.index, action.fence, action.step, parts)

    def _begin(self, action: e.Begin) -> None:
        self.reduction, self.received = Reduction(action.plan, self.residuals), {}
        self._beside(self._hear_early)
        self._limit = _message_bytes(action.plan)
        for link in self.links.values():
            link.allow(self._limit)
        if action.fresh or self.outbox is None:
            self._end_outbox()
            plan = action.plan.plan
            chunk_bytes = encoded_size(plan.codec_down, plan.chunk_elements)
            room, ours = action.plan.grid.chunks, action.plan.given_to(self.state.me).values()
            planned = sum(span.stop - span.first for span in ours)
            self.outbox = Outbox(max_bytes=room * chunk_bytes, planned=planned * chunk_bytes)
            for peer, link in self.links.items():
                if self.state.links.get(peer) in RECEIVERS:
                    self._follow(peer, link)
        self.outbox.begin_attempt({span.span for span in action.plan.plan.spans if span.root})

    def _end(self, *, silent: bool) -> None:
        self.reduction, self.received = None, {}
        if silent:
            self.residuals.void()
            self._end_outbox()

    def _end_outbox(self) -> None:
        if self.outbox is not None:
            self.outbox.close()
        self.outbox = None

    async def _check(self, action: Check, payload: bytes | memoryview) -> e.Event:
        assert self.reduction is not None
        reduction, place = self.reduction, self.reduction.plan.place
        fault: Fault | None
        if isinstance(action, e.KeepLeaves):
            fault = await _compute(len(action.leaves), reduction.leaves, action.slot, action.leaves)
            chunk, kept = 0, e.LeavesKept(place, action.slot)
        else:
            fault = await _compute(len(payload), reduction.add, action.slot, action.chunk, payload, again=action.again)
            chunk, kept = action.chunk, e.ChunkAdded(place, action.slot, action.chunk)  # type: ignore[assignment]
        if fault is None:
            return kept
        log.warning("run %s: slot %s refused: %s", self.run, action.slot, fault)
        return e.ChunkRefused(place, action.slot, chunk, fault.code)

    async def _close_chunk(self, action: e.CloseChunk) -> None:
        assert self.reduction is not None
        plan = self.reduction.plan.plan
        payload = await _compute(4 * plan.chunk_elements, self.reduction.close, action.chunk, action.tokens)
        if self.outbox is not None:
            place = (plan.run, plan.step, plan.fence, plan.attempt, action.span, action.chunk, 0)
            self.outbox.publish(Frame(Kind.AVERAGE, *place, payload))

    # --- the disk -----------------------------------------------------------------------------------------------

    def _taken(self, action: Write) -> Any:
        """Detach the data to be written from the reduction, since the reduction may finish before the write begins."""
        if isinstance(action, e.WriteSpan):
            assert self.reduction is not None
            return self.reduction.plan.place, self.reduction.take_span(action.span, action.included)
        if isinstance(action, e.WriteReceived):
            assert self.reduction is not None
            payloads = self.received.pop(action.span.span)
            return self.reduction.plan, [payloads[chunk] for chunk in sorted(payloads)]
        return None

    async def _write(self, action: Write, taken: Any) -> None:
        async with self._disk:
            outcome = await asyncio.to_thread(self._written, action, taken)
        if outcome is not None:
            await self.handle(outcome)

    def _written(self, action: Write, taken: Any) -> e.Event | None:
        """Perform one write and return its outcome. Call this in a thread. Raises Problem E106 if the disk fails."""
        match action:
            case e.WriteSpan():
                place, closed = taken
                if self.state.keeper is not None:
                    self.log.hold(self.run, place.step, place.fence, place.attempt, closed)
                return e.SpanWritten(place, closed.span, closed.root, closed.sum_squares, closed.sketches)
            case e.WriteReceived():
                plan, payloads = taken
                closed = received_span(plan, action.span, payloads)
                self.log.hold(self.run, plan.place.step, plan.place.fence, plan.place.attempt, closed)
                return e.SpanReceived(plan.place, closed.span, closed.root, closed.sum_squares)
            case e.Append():
                return self._append(action)
            case e.Discard(place=place):
                self.log.void(self.run, place.step, place.fence, place.attempt)
            case e.Forget():
                self.log.forget(self.run, action.keep_after)
            case e.Scan():
                return self._scan(action)
        return None

    def _append(self, action: e.Append) -> e.Event:
        """Append an entry to the log, and return the outcome.

        If the entry does not fit, the log stays unchanged. Raises Problem E106 if the disk fails.
        """
        try:
            return e.Appended(action.index, self.log.append(action.sealed))
        except Forked as problem:
            log.warning("run %s: %s", self.run, problem)
            return e.AppendFailed(action.index, forks=True)
        except Problem as problem:
            if problem.fault.code == codes.DISK_FULL:
                raise
            log.warning("run %s: %s", self.run, problem)
            return e.AppendFailed(action.index)

    def _scan(self, action: e.Scan) -> e.Scanned:
        missing: list[e.Missing] = []
        for index in range(action.first, action.stop):
            try:
                missing += [e.Missing(index, entry) for entry in self.log.missing(self.run, index)]
            except Problem as problem:  # other relays may serve a record that is damaged here
                log.warning("run %s: %s", self.run, problem)
        return e.Scanned(action.stop, tuple(missing))

    async def _hand_in(self, first: int) -> None:
        """Send the site records that its database lacks: a page of the log, or those of replaced branches."""
        if first == 0:
            await self._hand_in_lost()
        elif page := await asyncio.to_thread(self.log.page, self.run, first):
            self.around.say(m.Records(run=self.run, first=first, last=self.log.last_index(self.run), records=page))

    async def _hand_in_lost(self) -> None:
        """Send the site the records of replaced branches, one page a second, so that they never fill its mailbox.

        A page counts as given if the site is still connected a second later. The next greeting continues.
        """
        if self._is_handing_in:
            return
        self._is_handing_in = True
        try:
            while (lost := await asyncio.to_thread(self.log.lost_page, self.run)).paths:
                last = self.log.last_index(self.run)
                self.around.say(m.Records(run=self.run, first=0, last=last, records=lost.records))
                await asyncio.sleep(HAND_IN_S)
                if not self.state.joined:
                    return
                await asyncio.to_thread(self.log.put_aside, self.run, lost)
        finally:
            self._is_handing_in = False

    async def _copy(self, action: e.CopySpan) -> None:
        """Copy a span from another relay and verify it. If that fails, the state machine asks another relay."""
        index, span = action.index, action.entry.span
        try:
            record = await asyncio.to_thread(self.log.record, self.run, index)
            payloads = await self.around.ask(action.peer, record, action.entry)
            if payloads is not None:
                await asyncio.to_thread(self.log.store, self.run, index, span, payloads)
                await self.handle(e.Copied(index, span))
                return
        except Problem as problem:
            if problem.fault.code == codes.DISK_FULL:
                raise
            log.warning("run %s: entry %s is not copied from %s: %s", self.run, index, action.peer[:8], problem)
        await self.handle(e.CopyFailed(index, span, action.peer))

    # --- tasks --------------------------------------------------------------------------------------------------

    def _beside(self, do: Speak) -> None:
        task = asyncio.create_task(self._told_if_it_fails(do))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _told_if_it_fails(self, do: Speak) -> None:
        try:
            await do()
        except Exception as error:  # noqa: BLE001 (the process decides whether the run can continue)
            self.around.failed(self.run, error)


def _asked(peer: PeerId, body: m.AnyMessage) -> e.Asked:
    assert isinstance(body, m.TO_RELAY)  # the session accepts no other message
    return e.Asked(peer, body)


def _message_bytes(plan: OpenPlan) -> int:
    """Return the size of the longest message that the plan needs: one chunk, or all of a slot's leaves (rule 40)."""
    chunks = [encoded_size(codec, plan.grid.chunk_elements) for codec in {slot.codec for slot in plan.slots}]
    return BESIDE_A_CHUNK + max(LEAF.size * plan.grid.chunks, HEADER.size + max(chunks, default=0))


async def _compute(size: int, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `work`, in a thread if its data is large."""
    if size > INLINE_BYTES:
        return await asyncio.to_thread(work, *args, **kwargs)
    return work(*args, **kwargs)


async def _quietly(speak: Speak) -> None:
    """Send to a peer. Ignore a lost link, because the link's reader handles the loss."""
    try:
        await speak()
    except (LinkLost, Refused):
        return

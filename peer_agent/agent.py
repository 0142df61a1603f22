"""The trainer's agent: one replica of one run, driven by what the coordinator says.

Messages of the control link are taken one after another, so that the agent's state has one writer. Forward and
backward, the optimizer, encoding and files run in threads. A peer never takes a step alone: parameters change by what
`Follower` does, and by nothing else.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Coroutine
from random import Random
from typing import Any

import msgspec

from peer_agent.averaging.assembly import Assembly
from peer_agent.config import Home
from peer_agent.contributing import OpenRound, contribute
from peer_agent.data_links import DataLinks
from peer_agent.follower import Follower
from peer_agent.leaving import see_through
from peer_agent.limits import Limits
from peer_agent.network.link import Connected, Connection, LinkLost, Refused, Waiting, keep
from peer_agent.passport import Passport
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import PLAN, is_signed_by
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import parse_recipe
from peer_agent.protocol.records import Record, digest_of, open_record
from peer_agent.protocol.wire import Frame
from peer_agent.site_files import Shards, hand_in
from peer_agent.snapshot_publisher import SnapshotPublisher
from peer_agent.training.loop import Computed, NonFinite, Trainer, pick_device
from peer_agent.training.replica import Replica
from peer_agent.view import View
from peer_agent.work import Work, new_accumulator_id

log = logging.getLogger(__name__)

REPORT_S = 0.1  # at most ten reports a second
HEARTBEAT_S = 2.0  # at least one
SETTLE_S = 1.0  # averaged chunks may still be on their way when the commit is here; then the log is asked
ASK_AGAIN_S = 10.0  # for bytes that no relay had
LEAVE_S = 1.0  # for last words to a site that may not listen
INLINE_BYTES = 256 * 1024  # larger chunks are decoded in a thread, so that the loop stays awake (rule 37)


class Agent:
    """One trainer. `run()` returns when the run is finished."""

    def __init__(self, home: Home, passport: Passport, limits: Limits, view: View) -> None:
        self.home, self.passport, self.limits, self.view = home, passport, limits, view
        self.links = DataLinks(passport, self._hear_relay)
        self.control: Connection | None = None
        self.greeting: m.Greeting | None = None
        self.snapshot: m.Snapshot | None = None
        self.follower: Follower | None = None
        self.work: Work | None = None  # from when there is a follower
        self.round: OpenRound | None = None
        self.fence = 0
        self.head = 0  # the newest log index that was heard of
        self._unanswered = 0  # hellos: leases that were granted before them are not those that the host knows of
        self._rehello = False  # say hello again at the head
        self._ask_again_at: float | None = None  # bytes of the log are missing: when to look for them anew
        self._inbox: asyncio.Queue[m.AnyMessage | Frame] = asyncio.Queue()
        self._reported_at = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handing_in: asyncio.Task[Any] | None = None
        self.publisher: SnapshotPublisher | None = None  # where whoever runs this agent publishes the model

    async def run(self) -> None:
        """Join, train, leave. Raises Problem where going on cannot help."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self.passport.renew()
        for part in (self._keep_control(), self._take_all(), self._beat()):
            self._start(part)
        try:
            await self._ended
        finally:
            await self._leave()

    def finish(self) -> None:
        """See through what is in hand, then leave."""
        self._start(self._finish())

    async def _finish(self) -> None:
        await see_through(self)
        if not self._ended.done():
            self._ended.set_result(None)

    def _start(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside everything else. Where it fails, the agent ends with its error."""
        task = asyncio.create_task(part)
        self._tasks.add(task)
        task.add_done_callback(self._stopped)
        return task

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._ended.done():
            self._ended.set_exception(error)

    async def _leave(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.say(m.Leave(run=self.passport.run))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self.links.close(), return_exceptions=True)

    # --- control link -------------------------------------------------------------------------------------------

    async def _keep_control(self) -> None:
        def told(state: Connected | Waiting) -> None:
            if isinstance(state, Waiting):
                log.info("%s; trying again in %.0f s", state.fault, state.delay_s)
                self.view.away(state.fault)
            else:
                self.view.back()

        await keep(self.passport.dial_control, self._hear_site, on_state=told, random=Random())

    async def _hear_site(self, link: Connection) -> None:
        self.control = link
        try:
            while True:
                self._inbox.put_nowait(await link.receive())
        finally:
            self.control = None

    async def say(self, message: m.Message) -> None:
        """To the coordinator; while the link is down nothing is said, and the next hello says it all."""
        if self.control is not None:
            with contextlib.suppress(LinkLost, Refused):
                await self.control.send(message)

    async def _take_all(self) -> None:
        while True:
            await self._take(await self._inbox.get())

    async def _take(self, body: m.AnyMessage | Frame) -> None:
        match body:
            case m.Greeting() | m.Lease() | m.Cut() if body.fence < self.fence:
                return  # of a host that is gone
            case m.Rehello() | m.Greeting() | m.Relays() | m.Snapshotted() | m.Reload() | m.AccumulatorRevoked():
                await self._take_standing(body)
            case m.Lease():
                if self.work is not None and not self._unanswered:
                    self.work.lease(body.units, body.quota)
            case m.Cut():
                await self._offer(body)
            case m.Planned():
                self._contribute(body)
            case m.Void():
                self._void(body)
            case m.Commit():
                await self._committed(body)
            case m.State() | m.Notice():
                self._tell(body)

    async def _take_standing(
        self, body: m.Rehello | m.Greeting | m.Relays | m.Snapshotted | m.Reload | m.AccumulatorRevoked
    ) -> None:
        """Who we are to the run, and where its state is."""
        match body:
            case m.Rehello():
                self.fence = max(self.fence, body.fence)
                self._unanswered = 0  # what was said on another link, or to another host, gets no answer
                await self._hello()
            case m.Greeting():
                await self._greeted(body)
            case m.Relays():
                self.links.follow(body.relays)
            case m.Snapshotted():
                await self._snapshotted(body.snapshot)
            case m.Reload():
                self.view.fault(Fault.of("E109", step=body.step))
                await self._reload()
            case m.AccumulatorRevoked() if self.work is not None and body.accumulator == self.work.accumulator.id:
                self.view.say(f"The site took leased work back: {body.reason}")
                await self._start_over()

    def _tell(self, body: m.State | m.Notice) -> None:
        if isinstance(body, m.Notice):
            self.view.fault(Fault(body.code, body.text))
            return
        self.view.state(body.state, body.reason)
        if body.state == "finished" and not self._ended.done():
            self._ended.set_result(None)

    async def _hello(self) -> None:
        self._rehello = False
        self._unanswered += 1
        await self.say(
            m.Hello(
                run=self.passport.run,
                accumulator=self.work.accumulator.id if self.work else new_accumulator_id(),
                done=self.work.done if self.work else (),
                undone=self.work.undone if self.work else (),
                step=self.follower.step if self.follower else -1,
                digest="",
                fence=self.fence,
                in_doubt=(self.round.doubt(),) if self.round else (),
                log_index=self.follower.index if self.follower else -1,
            )
        )

    # --- the state ----------------------------------------------------------------------------------------------

    async def _greeted(self, greeting: m.Greeting) -> None:
        self._unanswered = max(0, self._unanswered - 1)
        if self.follower is not None and self.greeting is not None and not is_same_run(self.greeting, greeting):
            raise Problem.of("E128")
        self.greeting, self.fence = greeting, greeting.fence
        self.snapshot = greeting.snapshot
        self.head = max(self.head, greeting.index)
        self.links.follow(greeting.relays)
        if self.round is not None and greeting.fence > self.round.cut.fence and greeting.step == self.round.cut.step:
            self._end_round()  # the host that had cut is gone, and nothing was committed
        if self.follower is None:
            await self._become_replica(greeting)
            await self._hello()
        elif greeting.index < self.follower.index:
            self.view.fault(Fault.of("E402", reason=f"the site is at step {greeting.step}, this machine beyond it"))
            self.head = greeting.index
            await self._reload()
        elif greeting.reconciled:
            await self._report(now=True)
        elif self.follower.index >= self.head:
            await self._hello()
        else:
            self._rehello = True  # its leases are judged once it knows which of them are in updates
        self._wake()

    async def _become_replica(self, greeting: m.Greeting) -> None:
        recipe = parse_recipe(greeting.recipe)
        self.view.say(f"Joining “{greeting.title}”: loading the model of step {greeting.snapshot.step}.")
        replica = await asyncio.to_thread(Replica, recipe, pick_device())
        if replica.layout.elements != greeting.elements:
            raise Problem.of("E206", reason="the model built here has another size than the run's; update the agent")
        shards = Shards(self.home, self.passport, greeting.shards, asyncio.get_running_loop())
        trainer = Trainer(replica, greeting.run, shards, threads=self.limits.threads, at_once=self.limits.at_once)
        follower = Follower(self.home, self.passport, self.links, replica)
        if not await self._has_loaded(follower, greeting.snapshot):
            return
        self.follower = follower
        self.work = Work(trainer, grid_of(greeting.elements), follower.busy, self._computed)
        self._start(self.work.compute())

    async def _reload(self) -> None:
        if self.follower is not None and self.snapshot is not None:
            self._end_round()
            await self._has_loaded(self.follower, self.snapshot)
            self._ask_again_at = None
            await self._start_over()

    async def _has_loaded(self, follower: Follower, snapshot: m.Snapshot) -> bool:
        """A machine that slept meanwhile may find the snapshot gone: the answer to the next hello names another."""
        try:
            await follower.load(snapshot)
        except Problem as problem:
            if problem.fault.code != "E326":
                raise
            self.view.say(str(problem))
            return False
        return True

    async def _snapshotted(self, snapshot: m.Snapshot) -> None:
        self.snapshot = snapshot
        await self._leap()

    async def _leap(self) -> None:
        """Whoever lacks bytes that no relay has any more begins again from a newer snapshot."""
        is_newer = self.snapshot is not None and self.follower is not None and self.snapshot.index > self.follower.index
        if self._ask_again_at is not None and is_newer:
            await self._reload()

    async def _start_over(self) -> None:
        """Forget the accumulator and everything leased; begin another."""
        self._end_round()
        if self.work is not None:
            self.work.start_over()
        await self._hello()

    # --- work ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self.work is not None and self.follower is not None:
            self.work.allow(is_open=self.round is None and self.follower.index >= self.head)

    async def _computed(self, result: Computed | NonFinite) -> None:
        if isinstance(result, Computed):
            await self._report()
            return
        unit = result.unit
        self.view.fault(Fault.of("E108", samples=f"{unit.start}-{unit.stop - 1}", shard=unit.shard))
        await self.say(m.UnitsReturned(run=self.passport.run, units=(unit,), reason="non_finite"))

    async def _report(self, *, now: bool = False) -> None:
        """Absolute progress; often enough for the cut, seldom enough for the link."""
        work, clock = self.work, time.monotonic()
        if self.follower is None or work is None or self._rehello:
            return  # a host that does not know our leases yet must not judge them
        if self.round is not None and self.round.sending is None:
            return  # what is held is just being frozen
        if not now and not work.is_full and clock - self._reported_at < REPORT_S:
            return
        self._reported_at = clock
        await self.say(
            m.Report(
                run=self.passport.run,
                accumulator=work.accumulator.id,
                done=work.done,
                loss_tokens=work.accumulator.loss_tokens,
                loss_sum=work.accumulator.loss_sum,
                step=self.follower.step,
                digest=self.follower.digest,
                samples_per_s=work.speed,
            )
        )
        self.view.progress(self.follower.step, work.samples, work.speed)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            clock = time.monotonic()
            if clock - self._reported_at >= HEARTBEAT_S:
                await self._report(now=True)
            if self._ask_again_at is not None and clock >= self._ask_again_at:
                self._ask_again_at = math.inf  # until it is known how that went
                await self._hello()  # the commit comes again, and its bytes are looked for again

    # --- a round ------------------------------------------------------------------------------------------------

    async def _offer(self, cut: m.Cut) -> None:
        """Stop at the last finished micro-batch and say what is held, digest first (rule 1)."""
        work = self.work
        if self.follower is None or work is None or cut.step != self.follower.step:
            return
        self._end_round()
        self.round = OpenRound(cut, Assembly(work.grid, self.follower.replica.recipe.codec_down))
        self._wake()
        try:
            sending = await asyncio.to_thread(work.offer, cut.codec)
        except Problem as problem:
            self.view.fault(problem.fault)
            units = tuple(done.unit for done in work.done)
            await self.say(m.UnitsReturned(run=cut.run, units=units, reason="non_finite"))
            await self._start_over()
            return
        self.round.sending = sending
        await self.say(sending.message(cut.run, cut.step, cut.fence, cut.attempt))

    def _contribute(self, planned: m.Planned) -> None:
        """Follow a signed plan of the open round: take its averages, send what it asks of us."""
        if not is_signed_by(self.passport.site_key, PLAN, planned.plan):
            raise Problem.of("E218")
        plan = msgspec.msgpack.decode(planned.plan.payload, type=m.Plan)
        if self.follower is None or plan.step != self.follower.step or plan.fence < self.fence:
            return
        if self.round is None:  # it joined in mid-round and reads the log afterwards
            return
        is_new = self.round.follow(plan, self.passport.peer)
        if is_new and self.round.slot is not None and self.round.sending is not None:
            self.round.task = self._start(contribute(self.round, self.links))

    async def _hear_relay(self, peer: PeerId, body: m.AnyMessage | Frame) -> None:
        round_ = self.round
        match body:
            case Frame() if round_ is not None:
                large = len(body.payload) > INLINE_BYTES
                if await asyncio.to_thread(round_.take, body) if large else round_.take(body):
                    round_.arrived.set()
            case m.Open() if round_ is not None:
                round_.opened(peer, body)
            case m.SlotRefused():
                words = (
                    f"A relay refused chunk {body.chunk} of this machine's gradient, which is left out of this step."
                )
                self.view.fault(Fault(body.code, words))

    def _end_round(self) -> None:
        if self.round is not None:
            self.round.stop()
            if self.work is not None:
                self.work.release()
        self.round = None
        self._wake()

    def _void(self, void: m.Void) -> None:
        if self.round is not None and self.round.is_ended_by(void):
            self._end_round()
            self.view.say(f"A round was void: {void.reason}. Nothing was lost.")

    # --- commits ------------------------------------------------------------------------------------------------

    async def _committed(self, commit: m.Commit) -> None:
        follower, work = self.follower, self.work
        if follower is None or work is None:
            return
        record = open_record(commit.record, self.passport.site_key)
        self.head = max(self.head, record.index)
        if record.index == follower.index + 1:
            await self._apply(follower, work, record, digest_of(commit.record))
        elif record.index > follower.index + 1:
            if not self._unanswered and self._ask_again_at is None:
                await self._hello()  # something was missed: the commits since come again
            return
        if commit.snapshot and record.index == follower.index:
            await self._hand_in(follower.replica)
        if self._rehello and follower.index >= self.head:
            await self._hello()
        self._wake()

    async def _hand_in(self, replica: Replica) -> None:
        """One at a time: asked again, a slow uplink is still at it."""
        if self._handing_in is None or self._handing_in.done():
            state = await asyncio.to_thread(replica.copy_state)
            self._handing_in = self._start(hand_in(self.home, self.passport, state, self.view))

    async def _apply(self, follower: Follower, work: Work, record: Record, digest: str) -> None:
        round_ = self.round if self.round is not None and self.round.is_behind(record) else None
        grid = Grid(record.elements, record.chunk_elements)
        assembly = round_.assembly if round_ is not None else Assembly(grid, record.codec)
        if round_ is not None:
            await round_.settle(record, SETTLE_S)
        is_covered = self.snapshot is not None and self.snapshot.index >= record.index
        if not await follower.apply(record, digest, assembly, patient=not is_covered):
            if self._ask_again_at is None:
                self.view.fault(Fault.of("E114", step=record.step))
            self._ask_again_at = time.monotonic() + ASK_AGAIN_S
            await self._leap()
            return
        self._ask_again_at = None
        work.settle(record, took_part=self.round is not None)
        if self.round is not None:
            self.round.stop()
            self.round = None
        self.view.step(record, self.passport.peer)
        log.info("step %s: state %s", record.step, follower.digest)
        if self.publisher is not None:
            await self.publisher.committed(follower.replica, record)
        await self._report(now=True)


def is_same_run(known: m.Greeting, now: m.Greeting) -> bool:
    """Whether a replica and its leases still mean the same. A run may become longer; opened anew it may be another."""
    then, longer = parse_recipe(known.recipe), parse_recipe(now.recipe)
    return msgspec.structs.replace(then, target_steps=longer.target_steps) == longer and known.shards == now.shards

"""Runs the jobs that a trainer's core requests, in order. Each job has a number, by which the core decides whether the
job's result still counts.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.codecs import Floats
from peer_agent.averaging.contributor import Accumulator, NotFinite, Sending
from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext as _
from peer_agent.machine.limits import GIGABYTE, Limits
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Problem, codes
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.log.records import Record, RecordHead, SpanEntry, Unit
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.state import TrainerState
from peer_agent.recipes import parse_recipe
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.auditing import PATIENCE, audited
from peer_agent.trainer.collaboration import Collaboration, compute_units
from peer_agent.trainer.files import fetch_averages, fetch_model_files, fetch_snapshot, hand_in
from peer_agent.trainer.round import OpenRound
from peer_agent.trainer.shards import Shards
from peer_agent.training.units import Computed, DeviceBatch, NonFinite

if TYPE_CHECKING:
    from peer_agent.trainer.hub_publisher import HubPublisher
    from peer_agent.training.layers import CompiledLayers
    from peer_agent.training.loop import Elsewhere, Trainer
    from peer_agent.training.replica import Replica

log = logging.getLogger(__name__)

FETCH_TRIES = 8
PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


class Follower:
    """Keeps a replica up to date with the log: it loads a snapshot or applies a record. Nothing else changes the
    replica. `busy` is locked while parameters are read for gradients, and while they change. The core learns of a new
    state only once the state's digest has been computed. Otherwise, a gradient of the old parameters could be reported
    as one of the new parameters.
    """

    def __init__(self, home: Home, access: RunAccess, links: DataLinks, replica: "Replica") -> None:
        self.home, self.access, self.links, self.replica = home, access, links, replica
        self.busy = asyncio.Lock()

    async def load(self, snapshot: m.Snapshot) -> str:
        """Load a snapshot and return the state's digest. Raises Problem E111 or E310 if the file is not the right one,
        E110 if the site sends something unexpected, E326 if the site no longer has the file, or E106 if the disk fails.
        """
        path = await fetch_snapshot(self.home, self.access, snapshot)
        try:
            async with self.busy:
                await asyncio.to_thread(self.replica.load, path)
                digest = await asyncio.to_thread(self.replica.digest)
            if digest != snapshot.state_digest:
                raise Problem.of("E111", name=path.name, url=self.access.site.url)
        except Problem:
            path.unlink(missing_ok=True)  # so that the next attempt refetches it
            raise
        return digest

    async def apply(self, record: RecordHead, digest: str, gradient: Floats) -> str:
        """Apply a record's averaged gradient [P] to the replica (rule 6). Return the new state's digest."""
        async with self.busy:
            await asyncio.to_thread(self.replica.apply, record, digest, gradient)
            return await asyncio.to_thread(self.replica.digest)

    async def gather(self, record: RecordHead, assembly: Assembly, *, patient: bool) -> Floats | None:
        """Return the record's averages [P], fetching missing spans from relays' logs, or else from the site's archive.
        If `patient`, retry several times. Return None if spans are still missing.
        """
        for attempt in range(FETCH_TRIES if patient else 1):
            for entry in assembly.missing(record):
                if await self.links.fetch(record, entry, partial(_fill, assembly, entry)) or not attempt:
                    continue
                payloads = await fetch_averages(self.access, record, entry)
                if payloads is not None:
                    await _fill(assembly, entry, payloads)
            gradient = assembly.gradient(record)
            if not isinstance(gradient, list):
                return gradient
            await asyncio.sleep(min(PAUSE_S * 2**attempt, LONGEST_PAUSE_S))
        return None


async def _fill(assembly: Assembly, entry: SpanEntry, payloads: list[bytes]) -> bool:
    try:
        await asyncio.to_thread(assembly.fill, entry, payloads)
    except Problem as problem:
        log.warning("%s", problem)
        return False
    return True


LOOK_S = 0.2  # seconds between checks that the unit is still wanted
LONGEST_REST_S = 300.0  # longest pause after one unit, for any duty cycle


class Accumulation:
    """Computes one replica's gradients and keeps two sums: the offered one, and the one not yet offered. The core
    decides what happens to these sums. Two are needed, because one may grow while the other is frozen. Together they
    take 8 bytes per parameter (rule 9). `busy` keeps the replica unchanged while a unit is computed.
    """

    def __init__(
        self, trainer: "Trainer", grid: Grid, busy: asyncio.Lock, collaboration: Collaboration | None = None
    ) -> None:
        """Prepare the sums. `collaboration`: another program's loop, or None for the agent's own loop in a thread."""
        self.trainer, self.grid, self.busy = trainer, grid, busy
        self.accumulator = Accumulator(grid)
        self.speed = 0.0  # samples per second
        self.duty_percent = 100  # percentage of the time to spend computing
        self._rests_until = 0.0
        self._computed: Computed | None = None
        self.collaboration = collaboration or _own_loop()
        self._is_own = collaboration is None
        self.device_batch = DeviceBatch()

    def close(self) -> None:
        if self._is_own:
            self.collaboration.end()

    async def compute(self, action: e.Compute, is_wanted: Callable[[int], bool]) -> e.Computed | e.NotFinite | None:
        """Pause as the duty cycle requires, then compute units. Return None if the core no longer wants them. Raises
        Problem E107 if there is too little memory, or E111 if a shard is damaged.
        """
        while (rest_s := self._rests_until - time.monotonic()) > 0:
            await asyncio.sleep(min(rest_s, LOOK_S))
            if not is_wanted(action.job):
                return None
        async with self.busy:
            if not is_wanted(action.job):
                return None
            began = time.monotonic()
            result = await asyncio.wrap_future(self.collaboration.ask(self.trainer.begin, *action.units))
        took_s = max(time.monotonic() - began, 1e-6)
        self._rest_after(took_s)
        samples = [unit.samples for unit in action.units]
        if self.trainer.at_once:  # memory is short, so a smaller batch was necessary
            self.device_batch.fits(self.trainer.at_once // max(samples))
        if not is_wanted(action.job):
            return None
        if not isinstance(result, Computed):
            self.device_batch.was_not_finite(len(samples))
            return e.NotFinite(action.job, self.device_batch.units)
        self.device_batch.took(len(samples), sum(samples), took_s)
        self._computed = result
        rate = sum(samples) / took_s
        self.speed = 0.9 * self.speed + 0.1 * rate if self.speed else rate
        return e.Computed(action.job, result.loss_sum, result.loss_tokens, result.base_step, self.device_batch.units)

    async def compute_elsewhere(self, elsewhere: "Elsewhere", unit: Unit) -> Computed | NonFinite:
        """Compute a unit with a copy of earlier parameters, add its gradient to the copy's sum, and pause as the duty
        cycle requires.
        """
        await asyncio.sleep(max(0.0, self._rests_until - time.monotonic()))
        async with self.busy:
            began = time.monotonic()
            with elsewhere.used():
                result = await asyncio.wrap_future(self.collaboration.ask(self.trainer.try_out, unit))
            if isinstance(result, Computed):
                await asyncio.to_thread(elsewhere.keep)
        self._rest_after(time.monotonic() - began)
        return result

    def _rest_after(self, took_s: float) -> None:
        self._rests_until = time.monotonic() + min(took_s * (100 / self.duty_percent - 1), LONGEST_REST_S)

    def keep(self) -> None:
        """Add the last computed gradient to the sum not yet offered."""
        assert self._computed is not None
        self.trainer.keep(self._computed)

    def discard_held(self) -> None:
        """Discard the offered sum and the residuals of earlier offers."""
        self.accumulator = Accumulator(self.grid)

    def renew(self) -> None:
        self.trainer.discard()
        self.discard_held()

    def freeze(self, action: e.Freeze) -> Sending | None:
        """Merge both sums and encode the offer. Return None if a value is not finite. Call this in a thread."""
        try:
            self.hold()
            return self.accumulator.offer(action.cut.codec, action.weights)
        except NotFinite:
            return None

    def hold(self) -> None:
        """Add the sum not yet offered to the offered sum. Raises NotFinite on overflow."""
        if self.accumulator.sending is None and self.trainer.units:
            self.accumulator.add(self.trainer.take_sum().gradient_sum)

    def release(self) -> None:
        """Unfreeze the offered sum after a void round, keeping it."""
        if self.accumulator.sending is not None:
            self.accumulator.release()

    def remove_averaged(self, action: e.Settle) -> None:
        """Subtract from the offered sum the part that the average included. Keep the rest."""
        if self.accumulator.sending is not None:
            self.accumulator.remove_averaged(action.included)


def _has_room(replica: "Replica") -> bool:
    """Return True if an audit leaves at least as much memory free as it takes."""
    import torch

    from peer_agent.training.loop import Elsewhere

    needed = 2 * Elsewhere.BYTES * replica.layout.elements
    free = psutil.virtual_memory().available
    on_device = torch.cuda.mem_get_info(replica.device)[0] if replica.device.type == "cuda" else free
    return bool(min(free, on_device) >= needed)


def _own_loop() -> Collaboration:
    """Start the agent's own loop in a single thread.

    More threads would use more memory, because glibc keeps freed memory per thread.
    """
    collaboration = Collaboration()
    threading.Thread(target=compute_units, args=[collaboration], name="computing", daemon=True).start()
    return collaboration


SETTLE_S = 1.0  # wait for averaged chunks still on their way at the commit; then fetch them from the log
MOST_JOBS = 10_000  # Most queued jobs. The core requests only one load, one update and one computation at a time.


class Surroundings(Protocol):
    """The parts of the agent that jobs use."""

    home: Home
    access: RunAccess
    owner: MachineControl
    view: View
    links: DataLinks
    core: TrainerState
    publisher: "HubPublisher | None"

    def handle(self, event: e.Event) -> None:
        """Pass a job's result to the core."""

    def say(self, message: m.Message) -> None:
        """Send a message to the site. If there is no link, drop it."""

    def start(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background."""


class Jobs:
    """Runs jobs one after another on the replica and its gradient sums, which the first load creates."""

    def __init__(self, agent: Surroundings) -> None:
        self.agent = agent
        self.follower: Follower | None = None
        self.accumulation: Accumulation | None = None
        self.shards: Shards | None = None
        self.collaboration: Collaboration | None = None  # set if another program's loop does the computing
        self._waiting: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue(MOST_JOBS)
        self._handing_in: asyncio.Task[Any] | None = None
        self._told_of_compiling = False
        self._auditing = False

    async def run(self) -> None:
        try:
            while True:
                await (await self._waiting.get())()
        finally:
            if self.accumulation is not None:
                self.accumulation.close()

    def add(self, job: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        self._waiting.put_nowait(partial(job, *arguments))

    def _there(self) -> tuple[Follower, Accumulation]:
        if self.follower is None or self.accumulation is None:
            raise RuntimeError("there is no replica yet")
        return self.follower, self.accumulation

    # --- state --------------------------------------------------------------------------------------------------

    async def load(self, action: e.Load) -> None:
        """Load a snapshot, building the replica first if necessary. If the site no longer has the snapshot, tell the
        core. Raises the errors of `become_replica` and the other errors of `Follower.load`.
        """
        if self.follower is None:
            self.follower, self.accumulation = await self.become_replica(action.greeting)
        try:
            digest = await self.follower.load(action.snapshot)
        except Problem as problem:
            if problem.fault.code != codes.SNAPSHOT_GONE:
                raise
            self.agent.handle(e.LoadFailed(action.job))
            return
        self.agent.handle(e.Loaded(action.job, digest))

    async def become_replica(self, greeting: m.Greeting) -> tuple[Follower, Accumulation]:
        """Build this run's replica and its gradient sums. Raises Problem E206 if the model's size differs from the
        run's, because the agent is out of date.
        """
        from peer_agent.training.loop import Trainer, pick_device  # also imports torch
        from peer_agent.training.replica import Replica

        agent = self.agent
        recipe = parse_recipe(greeting.recipe)
        files = await fetch_model_files(agent.home, agent.access, recipe)
        replica = await asyncio.to_thread(Replica, recipe, pick_device(), files)
        if replica.layout.elements != greeting.elements:
            raise Problem.of("E206", reason="the model built here differs in size from the run's; update the agent")
        if agent.publisher is not None:
            agent.publisher.shards = greeting.shards
        limits, loop = agent.owner.limits, asyncio.get_running_loop()
        self.shards = Shards(
            agent.home,
            agent.access,
            recipe,
            greeting.shards,
            loop,
            disk_bytes=limits.disk_gb * GIGABYTE,
            view=agent.view,
        )
        # Another program's loop would not handle the compiler's errors.
        compiles = limits.compiles and self.collaboration is None
        if compiles:  # torch's default folder is shared, and another user could put code there
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(agent.home.cache / "compiled"))
        trainer = Trainer(
            replica,
            greeting.run,
            self.shards,
            threads=limits.threads,
            at_once=limits.at_once,
            recomputes=limits.recomputes,
            compiles=compiles,
        )
        follower = Follower(agent.home, agent.access, agent.links, replica)
        accumulation = Accumulation(trainer, grid_of(greeting.elements), follower.busy, self.collaboration)
        accumulation.duty_percent = limits.duty_percent
        if self.collaboration is None:  # another program's loop computes one unit at a time
            accumulation.device_batch = DeviceBatch(trainer.most_units)
        return follower, accumulation

    def take_limits(self, limits: Limits) -> None:
        """Apply changed limits, starting with the next unit."""
        if self.shards is not None and self.accumulation is not None:
            self.shards.disk_bytes = limits.disk_gb * GIGABYTE
            self.accumulation.duty_percent = limits.duty_percent
            self.accumulation.trainer.threads = limits.threads

    def close(self) -> None:
        if self.shards is not None:
            self.shards.close()

    async def fetch(self, action: e.Apply, round_: OpenRound | None) -> None:
        """Gather an update's averages from the open round or the logs, then queue the update. Runs in the
        background.
        """
        follower, _ = self._there()
        record = action.record.record
        if round_ is not None and round_.is_of(record):
            await round_.wait_for_chunks(record, SETTLE_S)
            assembly = round_.assembly
        else:
            assembly = Assembly(Grid(record.elements, record.chunk_elements), record.codec)
        gradient = await follower.gather(record, assembly, patient=action.patient)
        if gradient is None:
            self.agent.handle(e.BytesMissing(action.job))
        else:
            self.add(self.apply, action, gradient)

    async def apply(self, action: e.Apply, gradient: Floats) -> None:
        """Apply an update once the current unit is finished. Do nothing if the core has since requested another state
        or update.
        """
        follower, _ = self._there()
        if self.agent.core.job == action.job:
            digest = await follower.apply(action.record.record, action.record.digest, gradient)
            self.agent.handle(e.Applied(action.job, digest))

    async def hand_in(self) -> None:
        """Upload the state. Do nothing if an earlier upload is still running, for example on a slow uplink."""
        follower, _ = self._there()
        if self._handing_in is None or self._handing_in.done():
            state = await asyncio.to_thread(follower.replica.copy_state)
            agent = self.agent
            self._handing_in = agent.start(hand_in(agent.home, agent.access, state, agent.view))

    async def hash_state(self) -> None:
        """Hash the state without copying it. Changes to the state are also jobs, so they wait for this one."""
        follower, _ = self._there()
        replica = follower.replica
        sha256, size = await asyncio.to_thread(replica.state_hash)
        self.agent.handle(e.Hashed(replica.index, replica.step, sha256, size))

    async def publish(self, record: Record) -> None:
        follower, _ = self._there()
        if self.agent.publisher is not None:
            await self.agent.publisher.committed(follower.replica, record)

    # --- gradients ----------------------------------------------------------------------------------------------

    async def compute(self, action: e.Compute) -> None:
        """Start a computation in the background, so that a cut does not wait for it. Prefetch later units' data."""
        if self.shards is not None and self.accumulation is not None:
            core = self.agent.core
            self.shards.prefetch([*(unit.shard for unit in (*action.units, *core.queue)), *core.coming])
            coming = tuple(islice(core.queue, core.in_one_pass))
            # Otherwise, an earlier unit might wait for a later one's data.
            are_there = all(self.shards.is_open(unit.shard) for unit in coming)
            self.accumulation.trainer.coming = coming if are_there else ()
        self.agent.start(self._compute(action))

    async def _compute(self, action: e.Compute) -> None:
        """Wait for the units' data, then compute. The wait does not lock the replica, so rounds and updates
        continue.
        """
        _, accumulation = self._there()
        shards = [unit.shard for unit in action.units]
        if self.shards is not None and not await self.shards.ready(shards, lambda: self._is_wanted(action.job)):
            return
        result = await accumulation.compute(action, self._is_wanted)
        self._tell_of_compiling(accumulation.trainer.compiled)
        if result is not None:
            self.agent.handle(result)

    async def audit(self, asked: m.Audit) -> None:
        """Begin to compute another machine's contribution again, in the background. Copy the parameters first.

        Only one audit is under way at a time, and none in another program's loop, which uses the model in its own way.
        The first audit with stale units is not answered: from then on, the replica keeps the last step's parameters.
        """
        from peer_agent.training.loop import Elsewhere  # also imports torch

        _, accumulation = self._there()
        replica = accumulation.trainer.replica
        is_able = self.collaboration is None and self.shards is not None and _has_room(replica)
        replica.keeps_before |= is_able and bool(asked.stale)
        is_able = is_able and (not asked.stale or replica.before is not None)
        if self._auditing or not is_able or replica.step != asked.step:
            self.agent.say(m.Audited(run=asked.run, number=asked.number))
            return
        try:
            elsewhere = await asyncio.to_thread(Elsewhere, accumulation.trainer, replica.before)
        except Problem as problem:  # too little memory
            log.warning("no audit: %s", problem)
            self.agent.say(m.Audited(run=asked.run, number=asked.number))
            return
        self._auditing = True
        self.agent.start(self._audit(asked, elsewhere))

    async def _audit(self, asked: m.Audit, elsewhere: "Elsewhere") -> None:
        _, accumulation = self._there()
        assert self.shards is not None
        try:
            compute, replica = accumulation.compute_elsewhere, accumulation.trainer.replica

            def is_wanted() -> bool:
                return asked.step <= replica.step <= asked.step + PATIENCE

            given = asked, accumulation.grid, self.shards, elsewhere
            self.agent.say(await audited(*given, compute=compute, is_wanted=is_wanted))
        finally:
            self._auditing = False

    def _tell_of_compiling(self, compiled: "CompiledLayers | None") -> None:
        if compiled is None or not compiled.error or self._told_of_compiling:
            return
        self._told_of_compiling = True
        words = _("Layers cannot be compiled here; training without: {reason}")
        self.agent.view.say(words.format(reason=compiled.error))

    def _is_wanted(self, job: int) -> bool:
        in_hand = self.agent.core.in_hand
        return in_hand is not None and in_hand.job == job

    async def change(
        self, action: e.Keep | e.Discard | e.DiscardHeld | e.Renew | e.Hold | e.Release | e.Settle
    ) -> None:
        _, accumulation = self._there()
        match action:
            case e.Keep():
                accumulation.keep()
            case e.Discard():
                accumulation.trainer.discard()
            case e.DiscardHeld():
                accumulation.discard_held()
            case e.Renew():
                accumulation.renew()
            case e.Hold():
                await asyncio.to_thread(accumulation.hold)
            case e.Release():
                accumulation.release()
            case e.Settle():
                await asyncio.to_thread(accumulation.remove_averaged, action)

    async def freeze(self, action: e.Freeze, round_: OpenRound) -> None:
        _, accumulation = self._there()
        round_.sending = await asyncio.to_thread(accumulation.freeze, action)
        if round_.sending is None:
            self.agent.handle(e.Overflowed(action.job))
        else:
            self.agent.handle(e.Frozen(action.job, round_.sending.root, round_.sending.norm))

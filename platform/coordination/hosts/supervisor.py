"""The loop that claims and drives every live run that has no host. A failure in one run does not affect the others."""

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from django.db import DatabaseError

from config.logs import add_log_facts
from coordination import store
from coordination.channel_layer.process import HOST, site_layer
from coordination.hosts import claims
from coordination.hosts.claims import Holding, hold
from coordination.hosts.host import LOOK_S, Faulty, Host
from coordination.hosts.quarantine import Quarantine
from coordination.threads import in_thread
from peer_agent.protocol.identifiers import RunId
from runs.models import Run

log = logging.getLogger(__name__)

# Seconds before this process claims a run again after the run's host has failed. If a peer's message caused the
# failure, there is no pause.
RESTS_S = (0.0, 1.0, 4.0, 16.0, 60.0)
WELL_S = 600.0  # a host that lives this long resets the failure count


class Hosting:
    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        self.tasks: dict[RunId, asyncio.Task[None]] = {}
        self.failures: dict[RunId, int] = {}
        self.rest_until: dict[RunId, float] = {}
        self.quarantine = Quarantine()
        # Claims have their own threads, because a commit that hangs in the database may block all others.
        self.threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="claims")

    def begin(self, run: Run) -> None:
        self.tasks = {run_id: task for run_id, task in self.tasks.items() if not task.done()}
        if run.run_id not in self.tasks and time.monotonic() >= self.rest_until.get(run.run_id, 0.0):
            self.tasks[run.run_id] = asyncio.create_task(self._host(run), name=f"host {run.slug}")

    async def end(self) -> None:
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        self.threads.shutdown(wait=False)

    async def _host(self, run: Run) -> None:
        began = time.monotonic()
        add_log_facts(run=run.slug, run_id=run.run_id)
        try:
            await self._hold(run)
        except Faulty as fault:
            log.exception("run %s: its coordinator failed; it is loaded again", run.slug)
            if fault.peer is None:
                self._rest(run.run_id, began)
        except Exception:
            log.exception("run %s: its host failed; it is claimed again", run.slug)
            self._rest(run.run_id, began)
        else:
            self.failures.pop(run.run_id, None)

    def _rest(self, run_id: RunId, began: float) -> None:
        now = time.monotonic()
        times = self.failures.get(run_id, 0) if now - began < WELL_S else 0
        self.failures[run_id] = times + 1
        self.rest_until[run_id] = now + RESTS_S[min(times, len(RESTS_S) - 1)]

    async def _hold(self, run: Run) -> None:
        layer = site_layer()
        channel = await layer.new_channel(HOST)
        try:
            holding = await hold(run, channel, self.threads)
            if holding is not None:
                await self._keep(run, holding)
        finally:
            layer.forget(channel)

    async def _keep(self, run: Run, holding: Holding) -> None:
        """Drive a claimed run. Start renewing the claim first, because loading a long log may outlast the claim."""
        keeping = asyncio.create_task(holding.keep())
        try:
            run = await in_thread(store.run_named)(run.run_id)
            await in_thread(self.quarantine.learn)(time.monotonic())
            host = Host(run, holding, await in_thread(store.load)(run, holding.fence), self.quarantine)
            log.info("run %s: hosted at step %s under fence %s", run.slug, host.state.step, holding.fence)
            await host.drive(self.stop)
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            await holding.release()


async def run_hosts(stop: asyncio.Event) -> None:
    """Claim and drive live runs that have no host. Once `stop` is set, release all claims."""
    hosting = Hosting(stop)
    while not stop.is_set():
        for run in await _unhosted():
            hosting.begin(run)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LOOK_S)
    await hosting.end()


async def _unhosted() -> list[Run]:
    """Return the live runs that have no host, or an empty list if the database does not respond."""
    try:
        return await in_thread(claims.live_runs)()
    except DatabaseError:
        log.exception("the database is away")
        return []

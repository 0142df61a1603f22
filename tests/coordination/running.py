"""A run in progress on real rows: hosts in this process or another, and scripted peers on the site's own sockets."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from coordination.hosts.supervisor import run_hosts
from coordination.threads import in_thread
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.recipe import encode_recipe
from runs.ledger.records import settled_units
from runs.models import Head, LogEntry, Run
from tests.coordination.engines import PATIENCE_S
from tests.coordination.example_run import Example, example_run, require_equal_books
from tests.coordination.peer_link import credential_of, identity_of
from tests.coordination.peers import Contributor, Reducer, taking_part
from tests.runs.factories import RECIPE, owned


def assemble_long(target_steps: int) -> Example:
    recipe = msgspec.structs.replace(RECIPE, target_steps=target_steps, snapshot_every=1000)
    return example_run(recipe=encode_recipe(recipe).decode())


@asynccontextmanager
async def hosts() -> AsyncIterator["asyncio.Task[None]"]:
    """Run hosts in this process until the block ends, for every run that has none."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_hosts(stop))
    try:
        yield task
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await task


async def until(done: Callable[[], object], what: str) -> None:
    """Poll until the condition holds. The condition runs in a thread, so it may read rows."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while not await in_thread(done)():  # noqa: ASYNC110 - rows have no event to wait for
                await asyncio.sleep(0.01)
            return
    raise AssertionError(f"not in time: {what}")


@asynccontextmanager
async def at_work(example: Example) -> AsyncIterator[tuple[Contributor, Contributor]]:
    run = example.run.run_id
    relay = await in_thread(owned)(example.run.organizer, "relay")
    async with contextlib.AsyncExitStack() as stack:
        identity = identity_of(credential_of(relay, None, Role.RELAY), relay.key)
        await stack.enter_async_context(taking_part(Reducer, identity, run))
        trainers = []
        for who in (example.teo, example.noor):
            identity = identity_of(credential_of(who, example.run), who.key)
            trainers.append(await stack.enter_async_context(taking_part(Contributor, identity, run)))
        teo, noor = trainers
        assert isinstance(teo, Contributor)
        assert isinstance(noor, Contributor)
        yield teo, noor


def head() -> Head:
    return Head.objects.get()


async def until_step(step: int) -> None:
    await until(lambda: head().step >= step, f"step {step}")


async def steps_on(more: int = 3) -> None:
    await until_step((await in_thread(head)()).step + more)


def require_whole_log(run: Run) -> None:
    """Require that no step is missing or duplicated, that no sample is in two steps, and that the ledger and the log
    agree.
    """
    steps = list(LogEntry.objects.filter(run=run).order_by("index").values_list("index", "step"))
    assert steps == [(number, number) for number in range(1, len(steps) + 1)]
    assert head().step == len(steps)
    units = list(settled_units(run))
    assert len(units) == len(set(units))
    require_equal_books(run)


@contextmanager
def other_process(url: str, settings: Any) -> Iterator["subprocess.Popen[bytes]"]:
    config = settings.CHANNEL_LAYERS["default"]["CONFIG"]
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "REDIS_URL": config["hosts"][0],
        "LAYER_PREFIX": config["prefix"],
        "MANYHANDS_DATA": str(settings.DATA),
    }
    program = Path(__file__).with_name("hosting_process.py")
    with subprocess.Popen([sys.executable, str(program)], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()

"""The process around a coordinator: takes events from peers, the clock and the database, carries out its commands.

A host drives one run at a time under one claim. It is not responsible for any decision: those are `advance`'s.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.db import DatabaseError

from accounts.keys import site_key
from coordination import claims, presence, store
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S, advance
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.credentials import PLAN, Role, sign
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.records import seal
from peer_agent.protocol.wire import decode, encode
from runs.models import Run
from runs.services import finish_run, request_replay

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

LOOK_S = 1.0  # between looks at the database for what people want


class Host:
    """One claimed run."""

    def __init__(self, run: Run, channel: str, fence: int, state: RunState) -> None:
        self.run, self.channel, self.fence, self.state = run, channel, fence, state
        self.layer: Any = get_channel_layer()
        self.key = site_key()
        self.channels: dict[PeerId, str] = {}  # where each peer's socket listens
        self.deposed = False
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._looked = self._renewed = time.monotonic()

    async def drive(self, stop: asyncio.Event) -> None:
        """Until stopped, deposed or finished."""
        ears = asyncio.create_task(self._listen())
        try:
            await self.announce()
            while not (stop.is_set() or self.deposed or self.state.finished):
                message = await self._next()
                if message is not None:
                    await self._heard(message)
                await self._look_around()
            if self.deposed and not await in_thread(claims.is_live)(self.run):
                await self._close()
        finally:
            ears.cancel()
            await asyncio.wait([ears])

    async def _listen(self) -> None:
        """Never interrupted: over Redis a cancelled `receive` gives its channel up, and what comes then is lost."""
        while True:
            self._inbox.put_nowait(await self.layer.receive(self.channel))

    async def announce(self) -> None:
        """Tell every socket of this run, and every relay, that there is a new host."""
        note = {"type": "host.announced", "run": self.state.run, "fence": self.fence, "channel": self.channel}
        for group in (group_of(self.state.run), RELAYS):
            await self.layer.group_send(group, note)

    async def _next(self) -> dict[str, Any] | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                return await self._inbox.get()
        return None

    async def _heard(self, message: dict[str, Any]) -> None:
        peer = PeerId(message["peer"])
        if message["type"] == "peer.lost":
            if self.channels.get(peer) == message["channel"]:
                del self.channels[peer]
                await self.take(e.Lost(peer, banned=message.get("banned", False)))
            return
        body = decode(message["data"])
        if isinstance(body, m.Hello):
            self.channels[peer] = message["channel"]
            await self.take(e.Joined(peer, message["person"], message["machine"], Role(message["role"]), body))
        elif self.channels.get(peer) == message["channel"]:
            await self.take(e.Received(peer, body))  # type: ignore[arg-type]  # the consumer's session checked it

    async def _look_around(self) -> None:
        """The clock, the claim, and what people and keepers wrote into the database."""
        now = time.monotonic()
        await self.take(e.Ticked())
        if now - self._renewed >= claims.RENEW_S:
            self._renewed = now
            self.deposed = not await in_thread(claims.renew)(self.run, self.channel, self.fence)
        if now - self._looked >= LOOK_S and not self.deposed:
            self._looked = now
            wishes = await in_thread(_wishes)(self.run, self.state)
            await self.take(wishes.directed)
            for peer, code in wishes.unwanted.items():
                await self._cut_off(peer, code)
            snapshot = wishes.snapshot
            if snapshot is not None and snapshot.index > self.state.snapshot.index:
                await self.take(e.SnapshotStored(snapshot))

    async def _cut_off(self, peer: PeerId, code: str) -> None:
        """A machine was revoked, or its person was removed: its socket is closed, the round goes on."""
        await self._send_away(peer, code)
        await self.take(e.Lost(peer, banned=True))

    async def _send_away(self, peer: PeerId, code: str) -> None:
        channel = self.channels.pop(peer, None)
        if channel is not None:
            await self.layer.send(channel, {"type": "machine.revoked", "code": code})

    async def _close(self) -> None:
        """The run was taken back to a draft: its volunteers are sent away, its relays let go of what is open."""
        ended = encode(m.State(run=self.state.run, state="finished", reason=""))
        await self._send(tuple(member.peer for member in self.state.relays()), ended)
        for member in self.state.trainers():
            await self._send_away(member.peer, "E308")

    async def take(self, event: e.Event) -> None:
        """One event through the coordinator; its commands in order. Answers of the database are events again."""
        commands = advance(self.state, event, time.monotonic(), secrets.randbits(32))
        for command in commands:
            if self.deposed:
                return
            answer = await self._carry_out(command)
            if answer is not None:
                await self.take(answer)
                await self._tell_watchers(answer)

    async def _carry_out(self, command: e.Command) -> e.Event | None:
        match command:
            case e.Send():
                await self._send(command.peers, encode(command.message))
            case e.Announce():
                signed = sign(self.key, PLAN, msgspec.msgpack.encode(command.plan))
                await self._send(command.peers, encode(m.Planned(plan=signed)))
            case e.Persist():
                return await self._persist(command)
            case e.Reserve():
                return await self._reserve(command)
            case e.Resend():
                await self._resend(command)
            case e.Agreed():
                await in_thread(store.agree)(self.run, command.step, command.digest)
            case e.Note():
                await in_thread(store.tell)(self.run, command.kind, command.text)
            case e.Waiting():
                await in_thread(store.set_waiting)(self.run, command.reason)
            case e.Finish():
                # Extended at the last moment: nobody is told that it ended, and the next host goes on.
                steps = self.state.recipe.target_steps
                self.deposed = not await in_thread(finish_run)(run=self.run, target_steps=steps)
            case e.Replay():
                await in_thread(request_replay)(run=self.run)
            case e.Abdicate():
                log.warning("run %s: another host has the claim", self.state.slug)
                self.deposed = True
        return None

    async def _reserve(self, command: e.Reserve) -> e.Reserved | None:
        self.deposed = not await in_thread(store.raise_marks)(self.run, self.fence, command.marks)
        return None if self.deposed else e.Reserved(command.marks)

    async def _persist(self, command: e.Persist) -> e.Persisted:
        sealed = seal(self.key, command.record)
        try:
            outcome = await in_thread(store.commit)(
                self.run, sealed, command.record, duration_s=command.duration_s, attempts=command.attempts
            )
        except DatabaseError:
            log.exception("run %s: the database is away", self.state.slug)
            await asyncio.sleep(1.0)
            outcome = "failed"
        return e.Persisted(outcome, sealed)

    async def _tell_watchers(self, answer: e.Event) -> None:
        if isinstance(answer, e.Persisted) and answer.outcome == "committed":
            await self.layer.group_send(watchers_of(self.state.run), {"type": "run.moved"})

    async def _resend(self, command: e.Resend) -> None:
        for sealed in await in_thread(store.sealed_from)(self.run, command.first):
            message = m.Commit(run=self.state.run, fence=self.fence, record=sealed)
            await self._send((command.peer,), encode(message))

    async def _send(self, peers: tuple[PeerId, ...], data: bytes) -> None:
        for peer in peers:
            channel = self.channels.get(peer)
            if channel is not None:
                await self.layer.send(channel, {"type": "host.said", "data": data})


def in_thread(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """The database from the event loop."""
    return database_sync_to_async(function, thread_sensitive=False)


RELAYS = "relays"


def group_of(run: str) -> str:
    """The group of all sockets of a run."""
    return f"run.{run}"


def watchers_of(run: str) -> str:
    """The group of all who look when a step of the run is committed."""
    return f"watchers.{run}"


class Wishes(NamedTuple):
    """What people and keepers want. `unwanted`: machines to cut off, each with the number of the error it is told."""

    directed: e.Directed
    snapshot: m.Snapshot | None
    unwanted: dict[PeerId, str]


def _wishes(run: Run, state: RunState) -> Wishes:
    presence.show(run, state)
    trainers = [member.peer for member in state.trainers()]
    unwanted = dict.fromkeys(store.uninvited(run, trainers), "E324") | dict.fromkeys(
        store.revoked(state.members), "E214"
    )
    return Wishes(store.directed(run), store.newest_snapshot(run), unwanted)


async def run_hosts(stop: asyncio.Event) -> None:
    """Claim and drive every live run that has no host, until stopped; then let go of them all."""
    tasks: dict[str, asyncio.Task[None]] = {}
    while not stop.is_set():
        for run in await _unhosted():
            if run.run_id not in tasks or tasks[run.run_id].done():
                tasks[run.run_id] = asyncio.create_task(_host(run.run_id, stop), name=f"host {run.slug}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), LOOK_S)
    await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _unhosted() -> list[Run]:
    """Live runs without a host; none while the database is away, for a site outlives a restart of its database."""
    try:
        return await in_thread(claims.live_runs)()
    except DatabaseError:
        log.exception("the database is away")
        return []


async def _host(run_id: RunId, stop: asyncio.Event) -> None:
    layer: Any = get_channel_layer()
    channel: str = await layer.new_channel()
    run = await in_thread(store.run_named)(run_id)
    fence = await in_thread(claims.claim)(run, channel)
    if fence is None:
        return
    try:
        run = await in_thread(store.run_named)(run_id)
        host = Host(run, channel, fence, await in_thread(store.load)(run, fence))
        log.info("run %s: hosted at step %s under fence %s", run.slug, host.state.step, fence)
        await host.drive(stop)
    except Exception:
        log.exception("run %s: its host failed; it is claimed again", run.slug)
    finally:
        await in_thread(claims.release)(run, channel, fence)

"""A poll of the database every two seconds, shared by all of a process's sockets.

The poll finds the host of each run. Hosts also announce themselves, which is faster, but announcements are lost when
Redis restarts, a channel is full or a host dies. The poll also finds finished runs, because these have no host to tell
the relays. A second poll finds new instructions from machines' owners.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from django.db import DatabaseError
from django.db.models import OuterRef, Subquery
from django.utils import timezone
from msgspec import Struct

from accounts.machine_control import changed_since
from coordination.hosts import claims
from coordination.snapshots import as_message
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.messages import Instructions, Snapshotted
from runs.models import Run, Snapshot

log = logging.getLogger(__name__)

LOOK_S = 2.0
LEAST_PAUSE_S = 0.25  # seconds between polls, however often they are requested
SETTLED_S = 30.0  # seconds between polls for finished runs
OVERLAP = timedelta(seconds=90)  # overlap between polls for finished runs; reporting a run twice is harmless
MOST_SETTLED = 1_000  # most finished runs, latest first, that a new relay is told about
# How long an unanswered hello waits before it is requested again, doubling each time up to LONGEST_S.
UNANSWERED_S = 2.0
LONGEST_S = 32.0

Hosts = dict[str, tuple[str, int]]  # the host's channel and fence, by run
INSTRUCT_S = 0.4
INSTRUCT_OVERLAP = timedelta(seconds=10)  # overlap between polls, since a transaction may become visible late


class Hello(Struct):
    """A hello that was forwarded to a host. `at` is a monotonic time in seconds."""

    at: float
    wait_s: float = UNANSWERED_S


class Following:
    """The hosts of one socket's runs. When a method reports a new host, the socket must ask its peer for a hello."""

    def __init__(self) -> None:
        self.hosts: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._hellos: dict[str, Hello] = {}

    def follow(self, run: str, channel: str, fence: int, now: float, *, again: bool = False) -> bool:
        """Follow a host that claims the run, unless its fence is older. Return True if the host is new."""
        known = self.fences.get(run, -1)
        if fence < known or (fence == known and run in self.hosts and not again):
            return False
        self.hosts[run], self.fences[run], self._since[run] = channel, fence, now
        return True

    def unfollow(self, run: str) -> None:
        """Drop a host that cannot be reached. If it is still alive, the next poll will find it again."""
        self.hosts.pop(run, None)

    def said_hello(self, run: str, now: float) -> None:
        """Record that a hello was forwarded to the host. Each unanswered hello doubles the wait before the next one."""
        before = self._hellos.get(run)
        wait_s = min(LONGEST_S, 2 * before.wait_s) if before is not None else UNANSWERED_S
        self._hellos[run] = Hello(now, wait_s)

    def answered(self, run: str) -> None:
        self._hellos.pop(run, None)

    def look(self, hosts: Hosts, asked_at: float, now: float) -> list[str]:
        """Follow the hosts found in the database. Return the runs for which the peer must send a hello.

        `hosts` has the hosts of this socket's runs, as found by a poll that began at `asked_at`.
        """
        for run in [run for run in self.hosts if run not in hosts and self._since[run] < asked_at]:
            self.unfollow(run)
        new = [run for run, (channel, fence) in hosts.items() if self.follow(run, channel, fence, now)]
        overdue = [run for run, hello in self._hellos.items() if now - hello.at > hello.wait_s and run in self.hosts]
        return [*new, *(run for run in overdue if run not in new)]


class Follower(Protocol):
    """A socket that follows the hosts of its runs."""

    async def find(self, hosts: Hosts, asked_at: float) -> None:
        """Compare the socket's hosts with those found by a poll that began at `asked_at`."""

    async def announce_finished(self, notes: Sequence[Snapshotted]) -> None:
        """Tell the socket's peer which runs are finished, and up to which entry relays may delete their data."""


class HostSearch:
    """A task that polls for hosts and finished runs while any sockets are open."""

    def __init__(self) -> None:
        self._followers: set[Follower] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._settled_at = 0.0

    def add(self, follower: Follower) -> None:
        self._followers.add(follower)
        if self._task is None or self._task.done():
            self._woken = asyncio.Event()  # bound to this event loop
            self._task = asyncio.create_task(self._work())

    def discard(self, follower: Follower) -> None:
        self._followers.discard(follower)

    def wake(self) -> None:
        """Poll soon, because a socket has no host or its host is not responding."""
        self._woken.set()

    async def _work(self) -> None:
        while self._followers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._look(time.monotonic())
            except DatabaseError:
                log.warning("the database is away", exc_info=True)
            await asyncio.sleep(LEAST_PAUSE_S)

    async def _look(self, now: float) -> None:
        hosts = await in_thread(claims.hosts_of)()
        for follower in tuple(self._followers):
            await follower.find(hosts, now)
        if now - self._settled_at >= SETTLED_S:
            notes = await in_thread(settled)(timezone.now() - timedelta(seconds=SETTLED_S) - OVERLAP)
            self._settled_at = now
            for follower in tuple(self._followers) if notes else ():
                await follower.announce_finished(notes)


def settled(since: datetime | None = None) -> list[m.Snapshotted]:
    """Return the latest verified snapshot of each finished run, or only of runs finished since `since`."""
    finished = Run.objects.filter(state=Run.State.FINISHED).order_by("-finished_at")
    if since is not None:
        finished = finished.filter(finished_at__gte=since)
    trusted = Snapshot.objects.filter(run=OuterRef("pk"), state=Snapshot.State.VERIFIED, is_stored=True)
    newest = finished.annotate(newest=Subquery(trusted.order_by("-index").values("pk")[:1]))
    wanted = list(newest.exclude(newest=None).values_list("newest", flat=True)[:MOST_SETTLED])
    return [
        m.Snapshotted(run=RunId(snapshot.run_id.hex), snapshot=as_message(snapshot), keep_after=snapshot.index)
        for snapshot in Snapshot.objects.filter(pk__in=wanted)
    ]


# Instructions from owners, polled every 0.4 seconds for all of a process's sockets together


class Instructed(Protocol):
    """A socket whose machine accepts instructions."""

    async def instruct(self, wanted: Instructions) -> None:
        """Send the machine its owner's current instructions."""


class Instructing:
    """A task that polls for owners' instructions while any connected machine accepts them."""

    def __init__(self) -> None:
        self._sockets: dict[PeerId, set[Instructed]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, peer: PeerId, socket: Instructed) -> None:
        self._sockets.setdefault(peer, set()).add(socket)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    def discard(self, peer: PeerId, socket: Instructed) -> None:
        sockets = self._sockets.get(peer, set())
        sockets.discard(socket)
        if not sockets:
            self._sockets.pop(peer, None)

    async def _work(self) -> None:
        since = timezone.now() - INSTRUCT_OVERLAP
        while self._sockets:
            await asyncio.sleep(INSTRUCT_S)
            begun = timezone.now()
            try:
                changed = await in_thread(changed_since)(since)
            except DatabaseError:
                log.warning("the database is away", exc_info=True)
                continue
            since = begun - INSTRUCT_OVERLAP
            for peer, wanted in changed.items():
                for socket in tuple(self._sockets.get(PeerId(peer), ())):
                    with contextlib.suppress(OSError):
                        await socket.instruct(wanted)

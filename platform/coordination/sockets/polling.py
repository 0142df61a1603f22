"""What the database has to say to sockets: asked every two seconds for all of a process together.

Who hosts which run: announcements are quicker, and may be lost with a Redis that is restarted, a channel that is full,
a host that died. Now and then, which runs were finished: they have no host any more that could tell their relays. And
what owners want of their machines.
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
HURRY_S = 0.25  # between looks, however many ask for one
SETTLED_S = 30.0  # between looks for runs that were finished
OVERLAP = timedelta(seconds=90)  # of two of these: they are told twice rather than not at all
MOST_SETTLED = 1_000  # runs that a relay is told of when it comes: those that were finished last
UNANSWERED_S = 2.0  # a hello that is not answered by then is asked for again; each time twice as long, up to
LONGEST_S = 32.0

Hosts = dict[str, tuple[str, int]]  # channel and fence, by run
INSTRUCT_S = 0.4
INSTRUCT_OVERLAP = timedelta(seconds=10)  # of two looks: a transaction may be seen later than it says


class Hello(Struct):
    """One that was forwarded. `at` in monotonic seconds."""

    at: float
    wait_s: float = UNANSWERED_S


class Following:
    """Hosts of the runs of one socket. Each method that finds somebody new says so: the peer is to say hello."""

    def __init__(self) -> None:
        self.hosts: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._hellos: dict[str, Hello] = {}

    def follow(self, run: str, channel: str, fence: int, now: float, *, again: bool = False) -> bool:
        """A host says that it has the run; an older one is not believed."""
        known = self.fences.get(run, -1)
        if fence < known or (fence == known and run in self.hosts and not again):
            return False
        self.hosts[run], self.fences[run], self._since[run] = channel, fence, now
        return True

    def unfollow(self, run: str) -> None:
        """It is not reached; if it lives, the next look finds it again."""
        self.hosts.pop(run, None)

    def said_hello(self, run: str, now: float) -> None:
        """It is on its way to the host."""
        before = self._hellos.get(run)
        wait_s = min(LONGEST_S, 2 * before.wait_s) if before is not None else UNANSWERED_S
        self._hellos[run] = Hello(now, wait_s)

    def answered(self, run: str) -> None:
        self._hellos.pop(run, None)

    def look(self, hosts: Hosts, asked_at: float, now: float) -> list[str]:
        """Runs in which the peer is to say hello, by what the database said of the runs of this socket."""
        for run in [run for run in self.hosts if run not in hosts and self._since[run] < asked_at]:
            self.unfollow(run)
        new = [run for run, (channel, fence) in hosts.items() if self.follow(run, channel, fence, now)]
        overdue = [run for run, hello in self._hellos.items() if now - hello.at > hello.wait_s and run in self.hosts]
        return [*new, *(run for run in overdue if run not in new)]


class Follower(Protocol):
    """A socket, as this room knows it."""

    async def find(self, hosts: Hosts, asked_at: float) -> None:
        """What a look has found that was begun at `asked_at`."""

    async def announce_finished(self, notes: Sequence[Snapshotted]) -> None:
        """Runs that were finished lately, and up to where their relays may let go."""


class Lookout:
    """Looks for as long as there are sockets."""

    def __init__(self) -> None:
        self._followers: set[Follower] = set()
        self._hurried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._settled_at = 0.0

    def add(self, follower: Follower) -> None:
        """Tell this socket of hosts from now on."""
        self._followers.add(follower)
        if self._task is None or self._task.done():
            self._hurried = asyncio.Event()  # of this loop
            self._task = asyncio.create_task(self._work())

    def discard(self, follower: Follower) -> None:
        self._followers.discard(follower)

    def hurry(self) -> None:
        """Somebody has no host, or it does not answer."""
        self._hurried.set()

    async def _work(self) -> None:
        while self._followers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._hurried.wait()
            self._hurried.clear()
            try:
                await self._look(time.monotonic())
            except DatabaseError:
                log.warning("the database is away", exc_info=True)
            await asyncio.sleep(HURRY_S)

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
    """Of each run that was finished (since then): up to where the site has verified its model."""
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


# What owners want of their machines: asked twice a second for all sockets of a process together


class Instructed(Protocol):
    """A socket whose machine has said that it hears instructions."""

    async def instruct(self, wanted: Instructions) -> None:
        """What is wanted of its machine now."""


class Instructing:
    """Looks for as long as there are such sockets."""

    def __init__(self) -> None:
        self._sockets: dict[PeerId, set[Instructed]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, peer: PeerId, socket: Instructed) -> None:
        """Tell this socket what is wanted of its machine from now on."""
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

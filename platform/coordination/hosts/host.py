"""A host: the code that runs a coordinator. It passes the coordinator events from peers, the clock and the database.

It also carries out the commands that the coordinator returns. A host drives one run under one claim. The coordinator's
`advance` function makes all decisions.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, assert_never, get_args

from django.db import DatabaseError

from accounts.keys import site_key
from config.logs import add_log_facts
from config.metrics import HOST_WAITING
from coordination import snapshots
from coordination.channel_layer.messages import (
    RELAYS,
    HostAnnounced,
    HostSaid,
    LayerRestored,
    MachineRevoked,
    PeerLost,
    PeerSaid,
    RunMoved,
    ToHost,
    group_of,
    watchers_of,
)
from coordination.channel_layer.process import RESTORED, site_layer
from coordination.hosts import claims, requests
from coordination.hosts.claims import Holding
from coordination.hosts.quarantine import Quarantine
from coordination.hosts.writer import DRAIN_S, Answered, Listens, PageRead, Writer
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S, advance
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import codes
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.sealed import planned_for, planned_whole, seal_plan
from peer_agent.protocol.wire import decode, encode
from runs.lifecycle.services import finish_run
from runs.models import Run

log = logging.getLogger(__name__)

SEED_BITS = 128  # of each random seed; fewer could be guessed from what the coordinator draws and publishes
LOOK_S = 1.0  # seconds between database polls for people's requests
MOST_NAMED = 100  # peers named on the timeline for lost messages; the site's log names all
HEARD = get_args(m.TO_SITE)

HostMessage = ToHost | Answered | PageRead | requests.Wishes  # from sockets and from the host's own tasks


class Faulty(Exception):
    """An error in the coordinator, whose state must then be discarded.

    `peer` sent the message that caused the error. It is None if no peer's message did.
    """

    def __init__(self, peer: PeerId | None) -> None:
        super().__init__(peer)
        self.peer = peer


class Host:
    def __init__(self, run: Run, holding: Holding, state: RunState, quarantine: Quarantine) -> None:
        self.run, self.holding, self.state, self.quarantine = run, holding, state, quarantine
        self.layer = site_layer()
        self.key = site_key()
        self.channels: dict[PeerId, str] = {}  # channel of each peer's socket
        self.unwanted: dict[PeerId, str] = {}  # machines to disconnect and why, from the last poll
        self._looks = 0  # number of polls started
        self._replayed: tuple[e.Replayed, ...] = ()  # results of replays, as last reported
        self._archived: e.Archived | None = None  # how far the archive reached at the last poll
        self._aside: dict[PeerId, tuple[int, PeerSaid]] = {}  # unwanted machines' hellos, for a later poll to judge
        self.mailbox = self.layer.inbox(holding.owner)
        self._named: set[str] = set()  # peers whose lost messages the timeline shows
        self._left: set[PeerId] = set()  # peers that have left on purpose since the last poll
        self._needed: bool | None = None  # from the last poll
        self.writer = Writer(run, holding, self.key, self.mailbox)
        self._tick_at = 0.0

    async def drive(self, stop: asyncio.Event) -> None:
        """Drive the run until `stop` is set, the run is finished or the claim is lost.

        Raises Faulty if the coordinator fails, or DatabaseError if the database does.
        """
        writing, looking = asyncio.create_task(self.writer.work()), asyncio.create_task(self._look())
        try:
            await self._drive(stop, (writing, looking))
            self.writer.drain()
            await asyncio.wait([writing], timeout=DRAIN_S)
        finally:
            HOST_WAITING.labels(self.state.slug).set(0)
            for task in (writing, looking):
                task.cancel()
            await asyncio.wait([writing, looking])

    async def _drive(self, stop: asyncio.Event, beside: Iterable["asyncio.Task[None]"]) -> None:
        await self.layer.group_add(RESTORED, self.holding.owner)
        await self.announce()
        try:
            while not stop.is_set() and self.holding.is_held() and not self.state.finished:
                await self._turn()
                for task in beside:
                    if task.done():
                        task.result()
        except Faulty as fault:
            await self._blame(fault.peer)
            raise
        if self.holding.is_lost and not await in_thread(claims.is_live)(self.run):
            await self._close()

    async def announce(self, *, again: bool = False) -> None:
        """Announce this host to the run's sockets and all relays. `again`: messages may have been lost."""
        note = HostAnnounced(self.state.run, self.holding.fence, self.holding.owner, again)
        for group in (group_of(self.state.run), RELAYS):
            await self.layer.group_send(group, note)

    async def _turn(self) -> None:
        if time.monotonic() >= self._tick_at:
            await self.handle(e.Ticked())
            self._note_lost_words()
            HOST_WAITING.labels(self.state.slug).set(len(self.mailbox))
            add_log_facts(step=self.state.step)
            self._tick_at = time.monotonic() + TICK_S
        if (message := await self._next(self._tick_at - time.monotonic())) is not None:
            await self._heard(message)
        await asyncio.sleep(0)

    def _note_lost_words(self) -> None:
        """Report messages that a full mailbox has dropped, both in the site's log and on the run's timeline.

        The timeline shows this only once per peer.
        """
        for peer, count in self.mailbox.told().items():
            member = self.state.members.get(PeerId(peer))
            name = member.name if member is not None else peer[:8]
            log.warning("run %s: %s messages of %s were lost, since too much waits", self.state.slug, count, name)
            if peer not in self._named and len(self._named) < MOST_NAMED:
                self._named.add(peer)
                text = f"{name} says more than the site takes; some of it was lost"
                self.writer.ask(e.Note("lost words", text, (member.person,) if member is not None else ()))

    async def _next(self, wait_s: float) -> HostMessage | None:
        """Return the next message, or None if none arrives within `wait_s` seconds.

        If a message is already in the queue, return it even if `wait_s` is not positive.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                message: HostMessage = await self.mailbox.get()
                return message
        return None

    async def _heard(self, message: HostMessage) -> None:
        match message:
            case PeerSaid():
                await self._heard_peer(message)
            case PeerLost():
                await self._lost(message)
            case Answered(event=event):
                await self._answered(event)
            case PageRead():
                await self._say_page(message)
            case requests.Wishes():
                await self._looked(message)
            case LayerRestored():
                await self.announce(again=True)
            case _:
                assert_never(message)

    async def _lost(self, lost: PeerLost) -> None:
        if self.channels.get(lost.peer) == lost.channel:
            del self.channels[lost.peer]
            await self.handle(e.Lost(lost.peer))

    async def _say_page(self, read: PageRead) -> None:
        for data in read.page:
            await self._take_all(await self._say((read.peer,), data))
        await self.handle(e.Paged(read.peer, read.last))

    async def _heard_peer(self, said: PeerSaid) -> None:
        body = decode(said.data)
        if isinstance(body, m.Hello):
            await self._greet(said, body)
        elif isinstance(body, HEARD):
            await self._received(said, body)
        else:
            log.warning("run %s: %s said what is none of the protocol", self.run.slug, said.peer)

    async def _greet(self, said: PeerSaid, hello: m.Hello) -> None:
        rest_s = self.quarantine.left_s(said.peer, time.monotonic())
        if rest_s:
            await self._turn_away(said.channel, codes.BROKE_HOST, rest_s)
        elif said.peer in self.unwanted:
            self._aside[said.peer] = self._looks, said
        else:
            self.channels[said.peer] = said.channel
            if said.role is Role.RELAY:
                self.writer.ask(Listens(said.peer, hello))
            await self.handle(e.Joined(said.peer, said.person, said.machine, said.role, hello))

    async def _received(self, said: PeerSaid, body: Any) -> None:
        """Pass a peer's message to the coordinator if it comes from the peer's current socket.

        If the host knows no socket for the peer, ask the peer for a hello. Ignore messages from replaced sockets.
        """
        known = self.channels.get(said.peer)
        if known == said.channel:
            if isinstance(body, m.Leave):
                self._left.add(said.peer)
            await self.handle(e.Received(said.peer, body))
        elif known is None and said.peer not in self._aside:
            rehello = encode(m.Rehello(run=self.state.run, fence=self.holding.fence))
            await self.layer.send_many((said.channel,), self._said(rehello))

    # Requests from people

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            asked = requests.asked_of(self.state, self.unwanted, left=self._left, needed=self._needed)
            self._looks += 1
            try:
                found = await in_thread(requests.look)(self.run, asked)
            except DatabaseError:
                log.warning("run %s: the database is away", self.run.slug, exc_info=True)
            else:
                self._left -= asked.left
                self._needed = asked.needs
                self.mailbox.put_first(found)

    async def _looked(self, found: requests.Wishes) -> None:
        """Act on a poll's findings, such as revoked machines or owners removed from the run. The round goes on."""
        await self.handle(found.directed)
        self.unwanted = found.unwanted
        await self._judge()
        for peer, code in found.unwanted.items():
            await self._send_away(peer, code)
            if peer in self.state.members:
                await self.handle(e.Lost(peer, banned=True))
        await self._tell(found.news)

    async def _tell(self, news: snapshots.News) -> None:
        """Tell the coordinator about any snapshots, verifications and replays that are new since the last poll."""
        if news.snapshot is not None and news.snapshot != self.state.snapshot:
            await self.handle(e.SnapshotStored(news.snapshot))
        if news.verified > self.state.verified:
            await self.handle(e.Verified(news.verified))
        if news.archived is not None and news.archived != self._archived:
            self._archived = news.archived
            await self.handle(news.archived)
        for replayed in news.replays:
            if replayed not in self._replayed:
                await self.handle(replayed)
        self._replayed = news.replays

    async def _judge(self) -> None:
        """Process the hellos set aside before this poll began. Refuse unwanted machines, and accept the others."""
        judged = {peer: said for peer, (looks, said) in self._aside.items() if looks < self._looks}
        for peer, said in judged.items():
            del self._aside[peer]
            if peer in self.unwanted:
                await self._turn_away(said.channel, self.unwanted[peer])
            else:
                await self._heard_peer(said)

    async def _send_away(self, peer: PeerId, code: str, retry_after_s: float = -1.0) -> None:
        channel = self.channels.pop(peer, None)
        if channel is not None:
            await self._turn_away(channel, code, retry_after_s)

    async def _turn_away(self, channel: str, code: str, retry_after_s: float = -1.0) -> None:
        await self.layer.send_many((channel,), MachineRevoked(code, retry_after_s))

    async def _blame(self, peer: PeerId | None) -> None:
        """Quarantine and disconnect the machine whose message broke this host."""
        if peer is not None:
            rest_s = self.quarantine.add(peer, time.monotonic())
            await in_thread(self.quarantine.share)(peer, time.monotonic())
            await self._send_away(peer, codes.BROKE_HOST, rest_s)

    async def _close(self) -> None:
        """Disconnect all machines except relays, because the run is a draft again.

        Tell relays that the run is finished, so that they may delete what they store for it.
        """
        ended = encode(m.State(run=self.state.run, state="finished", reason=""))
        relays = [member.peer for member in self.state.members.values() if member.role is Role.RELAY]
        await self._say(relays, ended)
        for peer in self.state.members.keys() - set(relays):
            await self._send_away(peer, codes.NOT_OPEN)

    # Events for the coordinator, and the commands that it returns

    async def handle(self, event: e.Event) -> None:
        """Pass an event to the coordinator, followed by any events that its commands produce. Raises Faulty."""
        await self._take_all([event])

    async def _take_all(self, events: Iterable[e.Event]) -> None:
        waiting = deque(events)
        while waiting and self.holding.is_held():
            event = waiting.popleft()
            try:
                for command in merged(advance(self.state, event, time.monotonic(), secrets.randbits(SEED_BITS))):
                    waiting += await self._carry_out(command)
            except Exception as error:  # after any error, the state may be half changed
                raise Faulty(sender_of(event)) from error

    async def _answered(self, event: e.Event) -> None:
        await self.handle(event)
        if isinstance(event, e.Persisted) and event.outcome == "committed":
            await self.layer.group_send(watchers_of(self.state.run), RunMoved())

    async def _carry_out(self, command: e.Command) -> list[e.Event]:
        """Carry out a command, if this host still holds the claim. Return the resulting events."""
        if not self.holding.is_held():
            return []
        match command:
            case e.Send():
                return await self._say(command.peers, encode(command.message))
            case e.Announce():
                return await self._announce_plan(command)
            case e.Finish():
                await self.holding.insist(self._finish)
            case e.Abdicate():
                log.warning("run %s: it is another host's from here", self.state.slug)
                self.holding.is_lost = True
            case _:
                self.writer.ask(command)
        return []

    async def _announce_plan(self, command: e.Announce) -> list[e.Event]:
        """Send the whole plan to reducers and to peers that keep the log.

        Send each of the other peers the plan's head, which is signed only once, and its own part of the plan.
        """
        plan = seal_plan(self.key, command.plan)
        lost = await self._say(command.keepers, encode(planned_whole(plan)))
        for peer in command.peers:
            lost += await self._say((peer,), encode(planned_for(plan, peer)))
        return lost

    async def _finish(self) -> None:
        """Finish the run, unless the organizer has just extended it; in that case, leave it to the next host."""
        if not await in_thread(finish_run)(run=self.run, target_steps=self.state.recipe.target_steps):
            self.holding.is_lost = True

    async def _say(self, peers: Iterable[PeerId], data: bytes) -> list[e.Event]:
        """Send data to all these peers. Return a Lost event for each peer whose socket is full or gone."""
        channels = {self.channels[peer]: peer for peer in peers if peer in self.channels}
        lost = [channels[channel] for channel in await self.layer.send_many(channels, self._said(data))]
        for peer in lost:
            del self.channels[peer]
        return [e.Lost(peer) for peer in lost]

    def _said(self, data: bytes) -> HostSaid:
        return HostSaid(data, self.state.run)


def sender_of(event: e.Event) -> PeerId | None:
    return event.peer if isinstance(event, e.Joined | e.Received) else None


def merged(commands: Iterable[e.Command]) -> Iterator[e.Command]:
    """Merge adjacent commands that send the same message, so that the message is encoded only once."""
    for _, same in groupby(commands, key=_message_of):
        first, *others = same
        if isinstance(first, e.Send) and others:
            peers = tuple(peer for send in (first, *others) if isinstance(send, e.Send) for peer in send.peers)
            first = e.Send(peers, first.message)
        yield first


def _message_of(command: e.Command) -> object:
    """Return a key for merging commands. Only commands that send equal messages have equal keys."""
    return command.message if isinstance(command, e.Send) else object()

"""A host without a site: the shipped coordinator over real control links, with a list in place of a database.

This host has no people, pages or claims. Every peer with a credential of the test's site is a member.
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import assert_never

from msgspec import Struct, field
from websockets.asyncio.server import Server, ServerConnection, serve

from peer_agent.network.link import SOCKET_OPTIONS, Connection, LinkLost, Refused
from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import Capacity, Direction
from peer_agent.protocol.bandwidth.links import Probed
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S, advance
from peer_agent.protocol.coordinator.facts import StoredFacts, restored
from peer_agent.protocol.coordinator.probing import MOST_PROBES
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import GENESIS, Contribution, Entry, Record, seal
from peer_agent.protocol.plan import Pair
from peer_agent.protocol.recipe import Codec, Recipe, encode_recipe
from peer_agent.protocol.sealed import SealedCommit, planned_for, planned_whole, seal_plan
from tests.benchmarks.rig.machines import admitted
from tests.protocol.identities import RUN, SITE_KEY, SITE_PUBLIC

SHARD_SAMPLES = 1_000_000
WAITING = 10_000  # messages queued for one link; a peer that does not read them is lost


class Timed(Struct):
    """The history of one step. Times are in seconds on this machine's clock."""

    cut_at: float
    planned_at: float = 0.0
    planned_s: float = 0.0  # duration that the plan states
    committed_at: float = 0.0
    held_at: dict[PeerId, float] = field(default_factory=dict)  # when each trainer reported that it has all averages
    held_in: dict[PeerId, int] = field(default_factory=dict)  # the attempt whose averages the trainer reported
    plan: m.Plan | None = None  # the plan of the last attempt
    attempts: int = 0  # number of attempts that were planned
    dropped: frozenset[PeerId] = frozenset()  # contributors that the round ended without
    whole: frozenset[PeerId] = frozenset()  # contributors that are in every chunk
    exact: bool = False
    told: str = ""  # a readable summary of the plan
    number: int = 0  # number of the last round that was cut at this step
    asked: set[PeerId] = field(default_factory=set)
    left_out: set[PeerId] = field(default_factory=set)  # peers that were told that the plan leaves them out
    codecs: dict[PeerId, Codec] = field(default_factory=dict)  # codec of each contributor with a slot
    codec_down: Codec = "fp16"
    # steps that each replica was behind when the next step was committed
    behind: dict[PeerId, int] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        return len(self.codecs)

    @property
    def awaited(self) -> frozenset[PeerId]:
        """Contributors that the round did not drop. The round lasts until all of them have the averages."""
        return frozenset(self.codecs) - self.dropped

    @property
    def round_s(self) -> float:
        return self.seconds_without(frozenset())

    def seconds_without(self, peers: AbstractSet[PeerId]) -> float:
        """Return how many seconds after the cut all awaited contributors except `peers` have all the averages."""
        held = [at for peer, at in self.held_at.items() if peer in self.awaited - peers]
        return max(held, default=self.cut_at) - self.cut_at

    @property
    def is_held(self) -> bool:
        return self.awaited <= self.held_at.keys()

    def hold(self, peer: PeerId, attempt: int, at: float) -> None:
        """Record when a peer has all the averages of an attempt. A later attempt's time replaces an earlier one's."""
        if attempt > self.held_in.get(peer, -1):
            self.held_at[peer], self.held_in[peer] = at, attempt

    def ask(self, message: m.Cut | m.SitOut, peers: Iterable[PeerId]) -> None:
        """Record which peers the round asks to contribute, and which it leaves out. A new round at this step clears the
        record."""
        if message.round > self.number:
            self.number, self.asked, self.left_out = message.round, set(), set()
        (self.asked if isinstance(message, m.Cut) else self.left_out).update(peers)


class Coordinator:
    """A coordinator of one run, from the run's start. `steps` maps each step that has begun to its history."""

    def __init__(self, recipe: Recipe, elements: int) -> None:
        snapshot = m.Snapshot(index=0, step=0, digest=GENESIS, state_digest="", file="0" * 64, size=0)
        facts = StoredFacts(
            run=RUN,
            slug="averaging",
            title="Averaging",
            fence=1,
            recipe=recipe,
            recipe_bytes=encode_recipe(recipe),
            elements=elements,
            shards=(m.Shard("0" * 64, SHARD_SAMPLES * recipe.least_size()),),
            site_key=SITE_PUBLIC,
            snapshot=snapshot,
        )
        self.state = restored(facts)
        self.entries: list[tuple[Entry, Record]] = []
        self.steps: dict[int, Timed] = {}
        self.notes: list[str] = []
        self.has_sketches_in_turn = False  # True if reducers make sketches in every other round
        self.absent: set[PeerId] = set()  # peers that were stopped on purpose; nothing waits for them
        self.digests: dict[int, dict[PeerId, str]] = {}  # state digests by step and peer, as each peer reports them
        # for each link direction, the peers at the other end when the idle link was probed
        self.shown_by: dict[Direction, set[PeerId]] = {}
        self._moved_on = asyncio.Event()
        self._words: dict[PeerId, asyncio.Queue[m.Message]] = {}
        self._server: Server

    async def listen(self, host: str) -> str:
        self._server = await serve(self._serve, host, 0, **SOCKET_OPTIONS)
        self._clock = asyncio.create_task(self._tick())
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://{host}:{port}/"

    async def close(self) -> None:
        self._clock.cancel()
        self._server.close()
        await self._server.wait_closed()

    async def reach(self, step: int) -> None:
        """Wait until `step` steps are committed, and all contributors to the last step have its averages."""
        while self.state.step < step or not self._is_held(self.steps[step - 1]):
            await self.change()

    def _is_held(self, timed: Timed) -> bool:
        return timed.awaited - self.absent <= timed.held_at.keys()

    async def change(self) -> None:
        self._moved_on.clear()
        await self._moved_on.wait()

    def end_probes(self) -> None:
        """Stop probing idle links, as in an older run that has already probed all its members."""
        for member in self.state.members.values():
            self.state.links.probed[member.peer] = Probed(begun=MOST_PROBES)

    def lose(self, peer: PeerId) -> None:
        """Disconnect a peer and reconnect it at once, which is quicker than restarting the peer's process."""
        self.handle(e.Lost(peer))
        self._say((peer,), m.Rehello(run=RUN, fence=self.state.fence))

    # --- links --------------------------------------------------------------------------------------------------

    async def _serve(self, socket: ServerConnection) -> None:
        try:
            link = await admitted(socket)
        except (LinkLost, Refused):
            return
        assert link.credential is not None
        peer = link.credential.peer
        words = self._words[peer] = asyncio.Queue(WAITING)
        speaking = asyncio.create_task(_speak(link, words))
        words.put_nowait(m.Rehello(run=RUN, fence=self.state.fence))
        try:
            while True:
                self._hear(link, await link.receive())
        except (LinkLost, Refused):
            if self._words.get(peer) is words:
                del self._words[peer]
                self.handle(e.Lost(peer))
        finally:
            speaking.cancel()

    def _hear(self, link: Connection, body: object) -> None:
        credential = link.credential
        assert credential is not None
        if isinstance(body, m.OF_MACHINE):
            return  # these machines have no owner whom the message could concern
        assert isinstance(body, m.TO_SITE)
        if isinstance(body, m.Hello):
            self.handle(e.Joined(credential.peer, credential.person, credential.peer, credential.role, body))
            return
        self._note_held(credential.peer, body)
        if isinstance(body, m.Probed) and (probe := self.state.links.probes.get(body.number)) is not None:
            other = probe.listener if credential.peer == probe.member else probe.member
            self.shown_by.setdefault((credential.peer, "down"), set()).add(other)
            self.shown_by.setdefault((other, "up"), set()).add(credential.peer)
        self.handle(e.Received(credential.peer, body))

    def _note_held(self, peer: PeerId, body: m.TO_SITE) -> None:
        """Record that a peer has the averages. It reports this at once, or with its next step if the commit came
        first.
        """
        match body:
            case m.Arrivals() if body.holds:
                step, attempt = body.step, body.attempt
            case m.Report():
                self.digests.setdefault(body.step, {})[peer] = body.digest
                step, attempt = body.step - 1, 0
            case _:
                return
        if step in self.steps:
            self.steps[step].hold(peer, attempt, time.monotonic())
            self._moved_on.set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.handle(e.Ticked())

    # --- events and commands ------------------------------------------------------------------------------------

    def handle(self, event: e.Event) -> None:
        for command in advance(self.state, event, time.monotonic(), secrets.randbits(32)):
            self._carry(command)

    def _later(self, event: e.Event) -> None:
        """Deliver the database's answer in a later turn of the event loop, not within the event that requested it."""
        asyncio.get_running_loop().call_soon(self.handle, event)

    def _carry(self, command: e.Command) -> None:
        match command:
            case e.Send():
                self._say(command.peers, command.message)
            case e.Announce():
                self._announce(command)
            case e.Persist():
                self._persist(command.record)
            case e.Reserve():
                self._later(e.Reserved(command.marks))
            case e.Resend():
                self._resend(command)
            case e.Note():
                self.notes.append(f"{command.kind}: {command.text}")
            case e.Abdicate():
                raise AssertionError("there is no other host")
            case e.Adopt() | e.Branch():
                raise AssertionError("no relay is ahead of this coordinator")
            case (
                e.LeftOut()
                | e.Agreed()
                | e.Waiting()
                | e.Finish()
                | e.Replay()
                | e.Elected()
                | e.Admitted()
                | e.Checked()
                | e.Reverse()
                | e.Halt()
                | e.Recheck()
                | e.Heeded()
            ):
                pass  # these commands write rows and files of a site
            case _:
                assert_never(command)

    def _say(self, peers: Iterable[PeerId], message: m.Message) -> None:
        peers = tuple(peers)
        if isinstance(message, m.Cut | m.SitOut):
            self.steps.setdefault(message.step, Timed(time.monotonic())).ask(message, peers)
        if isinstance(message, m.Audit):
            return  # these machines have no model
        for peer in peers:
            if peer in self._words:
                self._words[peer].put_nowait(message)

    def _announce(self, command: e.Announce) -> None:
        plan, timed = command.plan, self.steps[command.plan.step]
        before = (timed.plan.round, timed.plan.attempt) if timed.plan is not None else (-1, -1)
        if (plan.round, plan.attempt) > before:  # the same plan may be announced again
            timed.planned_at, timed.planned_s, timed.plan = time.monotonic(), plan.duration_s, plan
            timed.codecs, timed.codec_down = {slot.peer: slot.codec for slot in plan.slots}, plan.codec_down
            timed.attempts += 1
            self._moved_on.set()
        timed.told = _told(plan, self.state.links.capacities) + _told_of_pairs(self.state.links.pairs)
        sealed = seal_plan(SITE_KEY, plan)
        self._say(command.keepers, planned_whole(sealed))
        for peer in command.peers:
            self._say((peer,), planned_for(sealed, peer))

    def _persist(self, record: Record) -> None:
        entry = seal(SITE_KEY, record)
        self.entries.append((entry, record))
        timed = self.steps[record.step - 1]
        timed.committed_at, timed.exact = time.monotonic(), record.exact
        timed.behind = {member.peer: self.state.step - member.step for member in self.state.trainers()}
        timed.whole = frozenset(each.peer for each in record.contributions if _is_whole(each, record))
        if (round_ := self.state.round) is not None:
            timed.dropped = frozenset(round_.slots[slot].peer for slot in round_.dropped)
        if self.has_sketches_in_turn:  # gradients have sketches in runs that strangers may join
            people = frozenset(member.person for member in self.state.members.values())
            self.state.trusted = people if self.state.trusted is None else None
        self._later(e.Persisted("committed", entry))
        asyncio.get_running_loop().call_soon(self._moved_on.set)

    def _resend(self, command: e.Resend) -> None:
        for entry, record in self.entries[command.first - 1 : command.first - 1 + command.count]:
            sealed = SealedCommit(entry, record)
            fence = self.state.fence
            self._say((command.peer,), sealed.whole(fence) if command.whole else sealed.to(command.peer, fence))
        self._later(e.Paged(command.peer, command.first + command.count - 1))


def _is_whole(contribution: Contribution, record: Record) -> bool:
    chunks = sum(part.stop - part.first for part in contribution.included)
    return chunks == sum(span.stop - span.first for span in record.spans)


def _told(plan: m.Plan, known: dict[Direction, Capacity]) -> str:
    """Return a readable summary of a plan: chunks by reducer, and link rates in Mb/s (a + marks a lower bound)."""
    chunks = Counter[PeerId]()
    for span in plan.spans:
        chunks[span.reducer] += span.stop - span.first
    shares = ", ".join(f"{peer[-2:]} {count}" for peer, count in sorted(chunks.items()))
    links = ", ".join(f"{p[-2:]} {way} {c.bps * 8e-6:.1f}{'+' * c.is_floor}" for (p, way), c in sorted(known.items()))
    return f"sigma {plan.sigma:.2f}, pace {plan.pace:g}; {shares} | {links}"


def _told_of_pairs(pairs: dict[Pair, Capacity]) -> str:
    rates = sorted(known.bps * 8e-6 for known in pairs.values())
    return f"; {len(rates)} pairs of {rates[0]:.1f} to {rates[-1]:.1f}" if rates else ""


async def _speak(link: Connection, words: asyncio.Queue[m.Message]) -> None:
    try:
        while True:
            await link.send(await words.get())
    except (LinkLost, Refused):
        return  # the link's reader notices the loss

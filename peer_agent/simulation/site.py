"""A virtual site: peers, their sockets, and the host, which passes events to the real coordinator and carries out its
commands.
"""

import hashlib
import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Literal, Protocol, assert_never

import numpy as np

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import advance as coordinator
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S
from peer_agent.protocol.coordinator.facts import StoredFacts, restored
from peer_agent.protocol.coordinator.state import RECORDS_WALKED, RunState
from peer_agent.protocol.credentials import Role, public_bytes
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.records import GENESIS, Record, Unit, digest_of
from peer_agent.protocol.messages import Message, Plan, Shard
from peer_agent.protocol.recipe import Recipe, encode_recipe
from peer_agent.simulation.database import RENEW_S, Database, state_digest
from peer_agent.simulation.faults import Faults, Kind

UPTIME_S = 90_000.0  # the monotonic clock when the run begins: more than a day, as on machines that stay on


class Clock:
    """Virtual time with a queue of actions. Actions due at the same time run in the order in which they were added."""

    def __init__(self) -> None:
        self.now = UPTIME_S
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_s, action)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` at a virtual time, or immediately if that time has passed."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._numbers), action))

    def step(self) -> bool:
        """Run the next action. Return False if there is none."""
        if not self._queue:
            return False
        self.now, _, action = heapq.heappop(self._queue)
        action()
        return True


MOST_TEXTS = 10_000  # notes whose text is stored


class Observer(Protocol):
    """Observes each event that the coordinator handles, for example to check or count events."""

    def before(self, host: "Host", event: e.Event, now: float) -> None:
        """Receive an event that the coordinator is about to handle."""

    def after(self, host: "Host", event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        """Receive an event that the coordinator has handled. Its commands have not been carried out yet."""

    def persisted(self, _: "Host", command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        """Receive the outcome of a write, which says if the database has stored the record."""


def sketch_of(gradient: str, chunks: int) -> bytes:
    """Return a sketch of some chunks of the gradient with this name. Those of other gradients are almost orthogonal."""
    values = np.frombuffer(hashlib.shake_256(gradient.encode()).digest(256), np.int8)
    return (chunks * values.astype("<f4")).astype("<f4").tobytes()


def gradient_of(based: Iterable[tuple[Unit, int]]) -> str:
    """Return what stands for the gradient of units, each computed with the parameters of a step."""
    return str(sorted(based))


class Tally:
    """Counts the coordinator's notes by kind, and stores the text of the first few."""

    def __init__(self) -> None:
        self.notes: dict[str, int] = {}
        self.texts: list[str] = []
        self.events = 0
        self.restarts = 0
        self.finished = False

    def take(self, note: e.Note | e.Finish) -> None:
        if isinstance(note, e.Finish):
            self.finished = True
            return
        self.notes[note.kind] = self.notes.get(note.kind, 0) + 1
        if len(self.texts) < MOST_TEXTS:
            self.texts.append(note.text)


class Surroundings(ABC):
    """The part of the simulated world that peers, sockets and hosts use."""

    seed: int
    chance: random.Random
    clock: Clock
    tally: Tally
    faults: Faults
    observers: "list[Observer]"
    database: Database
    run_id: RunId
    recipe: Recipe
    grid: Grid
    shards: tuple[int, ...]
    sources: tuple[int, ...]
    goal: e.Goal
    trusted: frozenset[str] | None
    non_finite: float
    layer_back_at: float
    unreachable: set[tuple[PeerId, PeerId]]
    findings: frozenset[e.Findings]  # what the site found by computing contributions again
    answers: "count[int]"  # numbers of the site's findings
    gradients: dict[bytes, str]  # in an open run: the root of each offer -> the units of its gradient
    host: "Host | None"

    def person_of(self, peer: PeerId) -> str:
        return f"person {peer[:6]}"

    def strikes(self, kind: Kind, peer: PeerId, of: str = "") -> bool:
        """Return True if a fault happens now. Each round is numbered after the step that it produces."""
        return self.faults.strikes(kind, peer, self.database.step + 1, of)

    def log_digest(self, index: int) -> str:
        return digest_of(self.database.log[index - 1]) if index else GENESIS

    def reaches(self, trainer: PeerId, relay: PeerId) -> bool:
        return (trainer, relay) not in self.unreachable

    @abstractmethod
    def open_session(self, peer: "Peer") -> bool:
        """Open a peer's socket to the site. Return False if the site is down."""

    @abstractmethod
    def close_session(self, socket: "Socket") -> None:
        """Close a peer's end of a socket."""

    @abstractmethod
    def replace_host(self, ended: "Host") -> None:
        """Replace the run's host, whose process has ended, with another."""

    @abstractmethod
    def committed(self) -> None:
        """Handle an update that the database has stored."""

    @abstractmethod
    def store_snapshot(self, record: Record) -> None:
        """Store the snapshot that a trainer uploads."""


DIAL_S = 0.5  # seconds between attempts to reach a site that is down


def name_of(*parts: object) -> str:
    """Return 32 hexadecimal digits, derived from `parts`, for use as an identifier."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]


class Peer(ABC):
    """A virtual peer. `life` is its process's number. Actions scheduled by an earlier process are dropped."""

    role: Role

    def __init__(self, world: Surroundings, peer: PeerId, latency_s: float) -> None:
        self.world, self.peer, self.latency_s = world, peer, latency_s
        self.alive, self.frozen = True, False
        self.life = 0
        self.session: Socket | None = None
        self.fence = 0
        self.hung = False  # True if a computation hangs; everything else goes on
        self.pace = 1.0  # speed of a relay's reduction; at 0.1, it takes ten times as long
        self.disk_full = False
        self._stalled: list[Callable[[], None]] = []  # computations waiting for the hang to end
        self._missed: list[Callable[[], None]] = []  # events that arrived while the peer was frozen

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run an action after a delay, if this process is still alive. A frozen process runs it when it wakes."""
        life = self.life

        def act() -> None:
            if not self.alive or self.life != life:
                return
            if self.frozen:
                self._missed.append(act)
            else:
                action()

        self.world.clock.after(delay_s, act)

    def compute(self, duration_s: float, action: Callable[[], None]) -> None:
        """Run an action after `duration_s` of computing. If computing hangs, run it when the hang ends."""
        self.after(duration_s, lambda: self._stalled.append(action) if self.hung else action())

    def hang(self) -> None:
        """Simulate a hung GPU driver or disk. The process still communicates, but finishes no computation."""
        self.hung = True

    def resume(self) -> None:
        self.hung = False
        stalled, self._stalled = self._stalled, []
        for action in stalled:
            action()

    def start(self) -> None:
        self.alive, self.frozen, self.hung, self.life = True, False, False, self.life + 1
        self._missed.clear()
        self._stalled.clear()
        self.fence = 0
        self.forget()
        self.connect()

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self.disconnect()

    def freeze(self) -> None:
        """Freeze the process, as SIGSTOP or a closed laptop would. The host still sees an open session."""
        self.frozen = True

    def thaw(self) -> None:
        if not self.frozen:
            return
        self.frozen = False
        missed, self._missed = self._missed, []
        for act in missed:
            act()

    def connect(self) -> None:
        """Open a session, retrying while the site is down. The site requests a hello once it knows the run's host."""
        if self.alive and self.session is None and not self.world.open_session(self):
            self.after(DIAL_S + self.world.chance.random(), self.connect)

    def disconnect(self) -> None:
        """End the session. Messages in transit are lost."""
        if self.session is not None:
            socket, self.session = self.session, None
            self.world.close_session(socket)

    def reconnect(self, delay_s: float) -> None:
        """Lose the session, as in a Wi-Fi failure or when a laptop sleeps, and open another later. Keep all state."""
        self.disconnect()
        self.after(delay_s, self.connect)

    def say(self, message: m.TO_SITE) -> None:
        if self.session is not None:
            self.session.up(message)

    def deliver(self, message: Message | Plan) -> None:
        """Read a message that has arrived. A frozen process reads it when it wakes."""
        if self.frozen:
            self._missed.append(lambda: self._read(message))
        else:
            self._read(message)

    def _read(self, message: Message | Plan) -> None:
        """Answer a session's first request with a hello. Pass all later messages to `receive`."""
        session = self.session
        if isinstance(message, m.Rehello) and session is not None and not session.greeted:
            session.greeted = True
            self.say(self.hello())
        else:
            self.receive(message)

    @abstractmethod
    def forget(self) -> None:
        """Lose all state that does not survive a restart."""

    @abstractmethod
    def hello(self) -> m.Hello:
        """Return a hello with all the state that the host needs from this peer."""

    @abstractmethod
    def receive(self, message: Message | Plan) -> None:
        """Handle a message from the host."""


LOOK_S = 2.0  # seconds between database lookups while the host is silent
NOTICE_S = 0.3  # seconds before the site notices that a socket has closed
LATE_S = 15.0  # longest delay of a late message; later ones wait behind it
UP: tuple[Kind, Kind, Kind] = ("lost up", "twice up", "late up")
DOWN: tuple[Kind, Kind, Kind] = ("lost down", "twice down", "late down")


class Socket:
    """A peer's link to the site and the channel layer behind it, which silently loses, repeats and delays messages.

    It simulates `coordination.sockets.consumer`. The socket learns which host has the run from announcements and from
    the database. Both may be stale. Messages stay in order, as in TCP and the real layer.
    """

    def __init__(self, world: Surroundings, peer: "Peer", number: int) -> None:
        self.world, self.peer, self.number = world, peer, number
        self.host: Host | None = None
        self.fence = -1
        self.heard_at = world.clock.now
        self.answered = False  # True if the current host has answered
        self.greeted = False  # True if the peer has sent a hello on this socket
        self._free_at = {"up": 0.0, "down": 0.0}  # by direction: when the last message arrives

    # --- host

    def look_up(self) -> None:
        """Look up the run's host in the database, and follow it if it is newer.

        If the current host has not answered, ask the peer for another hello.
        """
        found = self.world.database.host_of_run(self.world.clock.now)
        if found is None:
            return
        host, fence = found
        assert isinstance(host, Host)
        if fence > self.fence:
            self.follow(host, fence)
        elif not self.answered:
            self._say_rehello()

    def follow(self, host: "Host", fence: int) -> None:
        """Adopt a newer host, and ask the peer to send it a hello."""
        if fence > self.fence:
            self.host, self.fence = host, fence
            self._say_rehello()

    def _say_rehello(self) -> None:
        self.answered, self.heard_at = False, self.world.clock.now
        message = m.Rehello(run=self.world.run_id, fence=self.fence)
        self.world.clock.after(self._delay("down"), lambda: self._arrive(message))

    @property
    def is_forsaken(self) -> bool:
        """True if the host has been silent for so long that the socket looks it up again."""
        return self.world.clock.now - self.heard_at >= LOOK_S

    # --- messages

    def up(self, message: m.TO_SITE) -> None:
        host = self.host
        if host is None:
            return
        for delay_s in self._ways("up", UP, type(message).__name__):
            host.hear(delay_s, lambda: host.receive(self, message))

    def down(self, message: Message | Plan) -> None:
        for delay_s in self._ways("down", DOWN, type(message).__name__):
            self.world.clock.after(delay_s, lambda: self._answer(message))

    def _answer(self, message: Message | Plan) -> None:
        self.answered, self.heard_at = True, self.world.clock.now
        self._arrive(message)

    def _arrive(self, message: Message | Plan) -> None:
        if self.peer.alive and self.peer.session is self:
            self.peer.deliver(message)

    def _ways(self, way: str, kinds: tuple[Kind, Kind, Kind], of: str) -> list[float]:
        """Return the delay of each copy of a message: usually one copy, or none if the message is lost."""
        world = self.world
        lost, twice, late = kinds
        if world.clock.now < world.layer_back_at or world.strikes(lost, self.peer.peer, of):
            return []
        held_s = LATE_S * world.faults.chance.random() if world.strikes(late, self.peer.peer, of) else 0.0
        delay_s = self._delay(way, held_s)
        return [delay_s, delay_s] if world.strikes(twice, self.peer.peer, of) else [delay_s]

    def _delay(self, way: str, held_s: float = 0.0) -> float:
        now = self.world.clock.now
        delay_s = held_s + self.peer.latency_s * self.world.chance.uniform(0.8, 1.5)
        self._free_at[way] = max(now + delay_s, self._free_at[way])
        return self._free_at[way] - now

    # --- closing

    def close(self) -> None:
        """Close the peer's end. The site notices a little later, and tells the host once."""
        host = self.host
        if host is None or self.world.strikes("lost notice", self.peer.peer):
            return
        host.hear(self._delay("up", NOTICE_S), lambda: host.lose(self))


DATABASE_S = 0.02
REPLAY_S = 1.0
AGAIN_S = 1.0  # seconds between attempts to reach the database
CONTEXT = 16  # tokens in a sample
CAPACITY = 10_000  # Most messages stored by a frozen process's channel. Any more are dropped.


class Host:
    """A process that has claimed the run.

    It rebuilds its state from the database. It learns each peer's socket from the peer's messages.
    """

    def __init__(self, world: Surroundings) -> None:
        self.world = world
        self.alive, self.frozen = True, False
        self.sockets: dict[PeerId, Socket] = {}
        self.state = state_of(world, world.database.claim(self, world.clock.now))
        self.renewed_at = world.clock.now
        self._missed: list[Callable[[], None]] = []
        self._letters = 0  # number of missed actions that are messages, stored in the channel
        self._tick()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run an action after a delay, if this process is still alive. A frozen process runs it when it wakes."""

        def act() -> None:
            if self.frozen:
                self._missed.append(act)
            elif self.alive:
                action()

        self.world.clock.after(delay_s, act)

    def hear(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run a message's action after a delay. If the process is frozen and its channel is full, drop the message."""

        def act() -> None:
            if not self.frozen:
                if self.alive:
                    action()
            elif self._letters < CAPACITY:
                self._letters += 1
                self._missed.append(act)

        self.world.clock.after(delay_s, act)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Resume, as after SIGCONT: the clock has jumped, and everything that waited arrives at once."""
        self.frozen = False
        missed, self._missed, self._letters = self._missed, [], 0
        for act in missed:
            act()

    def _tick(self) -> None:
        self.handle(e.Ticked())
        self._look()
        now = self.world.clock.now
        if now - self.renewed_at >= RENEW_S:
            self.renewed_at = now
            if not self.world.database.renew(self.state.fence, now):
                self._stand_back()
        self.after(TICK_S, self._tick)

    def _look(self) -> None:
        """Pass a rollback request and the site's findings to the coordinator. Repeating them is harmless."""
        back_to, findings = self.world.database.back_to, self.world.findings
        if self.alive and (back_to is not None or findings):
            trusted = self.world.trusted
            self.handle(e.Directed(self.world.goal, back_to=back_to, trusted=trusted, findings=findings))

    def _stand_back(self) -> None:
        """End this host but not its sockets, because another host has the run or the run no longer needs one."""
        self.alive = False
        self.world.replace_host(self)

    # --- messages

    def receive(self, socket: "Socket", message: m.TO_SITE) -> None:
        """Handle a message if it came from the socket of the peer's latest hello.

        If the peer is not a member of the run, accept a message from any of its sockets.
        """
        peer = socket.peer
        known = self.sockets.get(peer.peer)
        if isinstance(message, m.Hello):
            if known is None or known.number <= socket.number:
                self.sockets[peer.peer] = socket
                self.handle(e.Joined(peer.peer, self.world.person_of(peer.peer), peer.peer, peer.role, message))
            return
        if known is None or (known is not socket and peer.peer not in self.state.members):
            known = self.sockets[peer.peer] = socket
        if known is socket:
            self.handle(e.Received(peer.peer, message))

    def lose(self, socket: "Socket", *, banned: bool = False) -> None:
        peer = socket.peer.peer
        if self.sockets.get(peer) is socket:
            del self.sockets[peer]
            self.handle(e.Lost(peer, banned))

    def say(self, peer: PeerId, message: m.Message | m.Plan) -> None:
        socket = self.sockets.get(peer)
        if socket is not None:
            socket.down(message)

    # --- events and commands

    def handle(self, event: e.Event) -> None:
        if not self.alive:
            return
        now = self.world.clock.now
        for observer in self.world.observers:
            observer.before(self, event, now)
        commands = coordinator.advance(self.state, event, now, self.world.seed)
        for observer in self.world.observers:
            observer.after(self, event, commands, now)
        for command in commands:
            self._carry(command)

    def _carry(self, command: e.Command) -> None:
        match command:
            case e.Send():
                self._send(command.peers, command.message)
            case e.Announce():
                self._send((*command.keepers, *command.peers), command.plan)
            case e.Persist():
                self.world.clock.after(DATABASE_S, lambda: self._persist(command))
            case e.Reserve():
                self.after(DATABASE_S, lambda: self._reserve(command))
            case e.LeftOut():
                self.after(DATABASE_S, lambda: self._leave_out(command))
            case e.Resend():
                self.after(DATABASE_S, lambda: self._resend(command))
            case e.Abdicate():
                self._stand_back()
            case e.Note() | e.Finish():
                self.world.tally.take(command)
            case e.Replay() | e.Recheck() | e.Heeded():
                self._ask_site(command)
            case e.Adopt():
                self.handle(e.Adopted(command.peer, 0))
            case (
                e.Agreed()
                | e.Branch()
                | e.Waiting()
                | e.Elected()
                | e.Admitted()
                | e.Checked()
                | e.Reverse()
                | e.Halt()
            ):
                pass
            case _:
                assert_never(command)

    def _send(self, peers: tuple[PeerId, ...], message: m.Message | m.Plan) -> None:
        for peer in peers:
            self.say(peer, message)

    def _resend(self, command: e.Resend) -> None:
        page = self.world.database.log[command.first - 1 : command.first - 1 + command.count]
        for entry in page:
            self.say(command.peer, m.Commit(run=self.state.run, fence=self.state.fence, record=entry.head))
        self.handle(e.Paged(command.peer, command.first + len(page) - 1))

    def _persist(self, command: e.Persist) -> None:
        """Write a record. The write continues even if this host dies (rule 4)."""
        database, now = self.world.database, self.world.clock.now
        is_there, at = database.answers(now), database.index
        outcome, sealed = database.persist(command.record, now)
        if database.index > at:
            self.world.committed()
        for observer in self.world.observers:
            observer.persisted(self, command, outcome)
        self.after(DATABASE_S if is_there else AGAIN_S, lambda: self.handle(e.Persisted(outcome, sealed)))

    def _ask_site(self, command: e.Replay | e.Recheck | e.Heeded) -> None:
        """Begin to replay the log or to compute contributions again, or forget findings that have been heeded."""
        match command:
            case e.Replay():
                self.after(REPLAY_S, lambda: self._replayed(command))
            case e.Recheck():
                self.world.clock.after(REPLAY_S, lambda: self._recheck(command))
            case e.Heeded():
                self.world.findings = frozenset(each for each in self.world.findings if each.number != command.number)

    def _replayed(self, command: e.Replay) -> None:
        """Report the digest derived from the log. No state is uploaded, because virtual relays store no bytes."""
        digest = state_digest(self.world.log_digest(command.index))
        self.handle(e.Replayed(command.index, command.step, digest))

    def _recheck(self, command: e.Recheck) -> None:
        """Compare the sketches of contributions with those of the units that the records name."""
        found = list[e.Finding]()
        for seen in command.sketched:
            record = self.world.database.records[seen.index - 1]
            chunks = sum(part.stop - part.first for part in seen.parts)
            for part in record.contributions:
                if part.peer in seen.gradients:
                    again = gradient_of((unit, record.step - 1 - (unit in part.stale)) for unit in part.units)
                    is_same = sketch_of(again, chunks) == seen.gradients[part.peer].sketch
                    found.append(e.Finding(part.peer, seen.index, e.Verdict.PASSED if is_same else e.Verdict.FAILED))
        number = next(self.world.answers)
        self.world.findings |= {e.Findings(number, tuple(found))}

    def _reserve(self, command: e.Reserve) -> None:
        database, now = self.world.database, self.world.clock.now
        if not database.answers(now):
            self.after(AGAIN_S, lambda: self._reserve(command))
        elif database.fence != self.state.fence:
            self._stand_back()
        else:
            database.reserve(command.marks)
            self.after(DATABASE_S, lambda: self.handle(e.Reserved(command.marks)))

    def _leave_out(self, command: e.LeftOut) -> None:
        if self.world.database.fence == self.state.fence:
            self.world.database.left_out += command.units


def state_of(world: Surroundings, fence: int) -> RunState:
    """Return a run's state as a host rebuilds it from the database: head, marks, coverage, snapshot and records."""
    database, recipe = world.database, world.recipe
    facts = StoredFacts(
        run=world.run_id,
        slug="simulated",
        title="Simulated",
        fence=fence,
        recipe=recipe,
        recipe_bytes=encode_recipe(recipe),
        elements=world.grid.elements,
        shards=tuple(Shard("0" * 64, size * CONTEXT) for size in world.shards),
        sources=world.sources,
        site_key=public_bytes(database.key),
        snapshot=database.snapshot,
        verified=database.snapshot.index,
        rolled_back=database.rolled_back,
        marks=[e.Mark(epoch, shard, mark) for (epoch, shard), mark in database.marks.items()],
        settled=database.settled(),
        left_out=database.left_out,
        index=database.index,
        step=database.step,
        digest=database.digest,
        last=database.log[-RECORDS_WALKED:],
        goal=world.goal,
        trusted=world.trusted,
    )
    return restored(facts)

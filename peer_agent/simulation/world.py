"""A run with its peers, its host and its database, and what can befall them."""

import random
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.messages import Message, Plan, Snapshot
from peer_agent.protocol.recipe import Model, Recipe
from peer_agent.protocol.records import GENESIS, Record, digest_of
from peer_agent.simulation.clock import Clock
from peer_agent.simulation.database import Database, Troubles
from peer_agent.simulation.host import Host
from peer_agent.simulation.peer import Peer, name_of
from peer_agent.simulation.relay import Relay
from peer_agent.simulation.trainer import Trainer

NOTICE_S = 0.3  # until the host sees that a socket is closed


class Setting(Struct, frozen=True, kw_only=True):
    """What a simulated run is made of."""

    trainers: int = 3
    relays: int = 1
    steps: int = 20
    seed: int = 0
    samples_each: int = 8  # of the target batch, per trainer
    micro_batch: int = 4
    minimum_trainers: int = 1
    snapshot_every: int = 20
    elements: int = 8 * 16 * 1024 - 1000
    shards: tuple[int, ...] = (4000, 1001, 90)
    troubles: Troubles = Troubles()
    non_finite: float = 0.0
    even: bool = False  # all trainers equally fast

    def recipe(self) -> Recipe:
        """The recipe of such a run."""
        return Recipe(
            model=Model(context=16),
            target_batch=max(self.samples_each * self.trainers, self.micro_batch),
            micro_batch=self.micro_batch,
            target_steps=self.steps,
            minimum_trainers=self.minimum_trainers,
            snapshot_every=self.snapshot_every,
        )


class Observer(Protocol):
    """Somebody who looks at every event: an invariant, a count."""

    def before(self, host: Host, event: e.Event, now: float) -> None:
        """The coordinator is about to take an event."""

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        """It has taken it; the commands are not carried out yet."""

    def persisted(self, _: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        """The database has done what it will do with a record."""


class Tally:
    """What happened, by kind of note."""

    def __init__(self) -> None:
        self.notes: dict[str, int] = {}
        self.texts: list[str] = []
        self.events = 0
        self.restarts = 0
        self.finished = False

    def note(self, note: e.Note) -> None:
        """Count a note of the coordinator."""
        self.notes[note.kind] = self.notes.get(note.kind, 0) + 1
        self.texts.append(note.text)


class World:
    """Everything at one moment. `seed` decides all that chance decides."""

    def __init__(self, setting: Setting, observers: Sequence[Observer] = ()) -> None:
        self.setting, self.seed = setting, setting.seed
        self.observers = list(observers)
        self.chance = random.Random(f"world {setting.seed}")
        self.clock, self.tally = Clock(), Tally()
        self.names = 0
        self.recipe = setting.recipe()
        self.grid = grid_of(setting.elements)
        self.shards = setting.shards
        self.tokens_per_sample = self.recipe.model.context - 1
        self.non_finite = setting.non_finite
        self.goal: e.Goal = "running"
        self.run_id = RunId(name_of(setting.seed, "run"))
        self.database = Database(self.run_id, setting.seed, setting.troubles)
        self.session = 0
        self.arrivals: dict[tuple[str, PeerId], float] = {}
        self.host: Host | None = Host(self)
        self.trainers = {peer.peer: peer for peer in map(self._trainer, range(setting.trainers))}
        self.relays = {peer.peer: peer for peer in map(self._relay, range(setting.relays))}
        for peer in self.peers.values():
            peer.after(self.chance.random(), peer.connect)

    @property
    def peers(self) -> dict[PeerId, Peer]:
        """All of them."""
        return {**self.trainers, **self.relays}

    def _trainer(self, number: int) -> Trainer:
        speed = 4.0 if self.setting.even else 4.0 * 2 ** self.chance.uniform(-1.5, 1.5)
        pace = self.grid.chunks / self.chance.uniform(0.5, 1.5)
        latency_s = self.chance.uniform(0.01, 0.1)
        peer = PeerId(name_of(self.seed, "trainer", number))
        return Trainer(self, peer, samples_per_s=speed, latency_s=latency_s, chunks_per_s=pace)

    def _relay(self, number: int) -> Relay:
        peer = PeerId(name_of(self.seed, "relay", number))
        return Relay(self, peer, latency_s=0.01, bytes_per_s=self.chance.choice((0, 5_000_000, 20_000_000)))

    def person_of(self, peer: PeerId) -> str:
        """Whose machine it is."""
        return f"person {peer[:6]}"

    # --- links

    def open_session(self, peer: Peer) -> bool:
        """Connect to the host. False where there is none."""
        if self.host is None:
            return False
        self.session += 1
        peer.session = self.session
        return True

    def lose_session(self, peer: PeerId) -> None:
        """A peer's end is closed; the host sees it a little later."""
        host, session = self.host, self.session_at_host(peer)
        if host is not None and session is not None:
            host.after(NOTICE_S, lambda: host.lose(peer, session))

    def session_at_host(self, peer: PeerId) -> int | None:
        """The session that the host knows of this peer."""
        return self.host.sessions.get(peer) if self.host is not None else None

    def to_host(self, peer: Peer, message: m.TO_SITE) -> None:
        """A message on its way up; it is lost with the session or the host."""
        host, session = self.host, peer.session
        assert session is not None
        if host is not None:
            host.after(self._delay("up", peer), lambda: host.receive(peer, session, message))

    def to_peer(self, host: Host, name: PeerId, message: Message | Plan) -> None:
        """A message on its way down."""
        peer, session = self.peers[name], host.sessions.get(name)

        def arrive() -> None:
            if peer.alive and session is not None and peer.session == session:
                peer.deliver(message)

        if session is not None:
            self.clock.after(self._delay("down", peer), arrive)

    def _delay(self, way: str, peer: Peer) -> float:
        """Latency with some jitter; what was sent first arrives first."""
        soonest = self.arrivals.get((way, peer.peer), 0.0)
        arrival = max(self.clock.now + peer.latency_s * self.chance.uniform(0.8, 1.5), soonest)
        self.arrivals[way, peer.peer] = arrival
        return arrival - self.clock.now

    # --- what befalls them

    def kill_host(self) -> None:
        """kill -9 of the site: all sessions end, what it knew is gone."""
        if self.host is None:
            return
        self.host.alive = False
        self.host = None
        self.tally.restarts += 1
        for peer in self.peers.values():
            peer.session = None
            peer.after(NOTICE_S + self.chance.random(), peer.connect)

    def start_host(self) -> None:
        """The site starts again, from what the database has."""
        if self.host is None:
            self.host = Host(self)

    def restart_host(self, away_s: float = 1.0) -> None:
        """Down for a while."""
        self.kill_host()
        self.clock.after(away_s, self.start_host)

    def ban(self, peer: PeerId) -> None:
        """The organizer wants this machine out."""
        session = self.session_at_host(peer)
        if self.host is not None and session is not None:
            self.peers[peer].alive = False
            self.host.lose(peer, session, banned=True)

    def direct(self, goal: e.Goal, *, target_steps: int = 0) -> None:
        """The organizer pauses, resumes, ends or extends the run."""
        self.goal = goal
        if self.host is not None:
            self.host.take(e.Directed(goal, target_steps))

    def store_snapshot(self, record: Record) -> None:
        """A keeper's upload has arrived."""
        if record.index <= self.database.snapshot.index:
            return
        self.database.snapshot = Snapshot(
            index=record.index,
            step=record.step,
            digest=self.log_digest(record.index),
            state_digest="",
            file="0" * 64,
            size=0,
        )
        if self.host is not None:
            self.host.take(e.SnapshotStored(self.database.snapshot))

    def log_digest(self, index: int) -> str:
        """Digest of the log at an index."""
        return digest_of(self.database.log[index - 1]) if index else GENESIS

    # --- running

    def run(self, until: Callable[[], bool], limit_s: float = 3600.0) -> bool:
        """Let time pass until something holds, at most so many virtual seconds. Whether it came to hold."""
        end = self.clock.now + limit_s
        while not until():
            if self.clock.now > end or not self.clock.step():
                return False
            self.tally.events += 1
        return True

    def run_steps(self, steps: int, limit_s: float = 3600.0) -> bool:
        """Until so many more updates are committed."""
        goal = self.database.step + steps
        return self.run(lambda: self.database.step >= goal, limit_s)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.run(lambda: False, seconds)

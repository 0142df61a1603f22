"""A simulated run with its peers, host and database, and the operations on them."""

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.records import Record
from peer_agent.protocol.messages import Snapshot
from peer_agent.protocol.recipe import Optimizer, Recipe
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.simulation.database import CLAIM_S, Database, FailureRates
from peer_agent.simulation.faults import Faults
from peer_agent.simulation.relay import Relay
from peer_agent.simulation.site import (
    CONTEXT,
    LOOK_S,
    NOTICE_S,
    Clock,
    Host,
    Observer,
    Peer,
    Socket,
    Surroundings,
    Tally,
    name_of,
)
from peer_agent.simulation.trainer import Trainer

TAKE_S = 1.0  # seconds between other hosts' checks for a run without a host


class Setting(Struct, frozen=True, kw_only=True):
    trainers: int = 3
    relays: int = 1
    steps: int = 20
    seed: int = 0
    samples_each: int = 8  # samples per trainer in the target batch
    samples_per_s: float = 4.0  # of a typical trainer; others are up to about three times faster or slower
    micro_batch: int = 4
    minimum_trainers: int = 1
    snapshot_every: int = 20
    elements: int = 8 * 16 * 1024 - 1000
    shards: tuple[int, ...] = (4000, 1001, 90)
    sources: tuple[int, ...] = ()  # each shard's source, if the run mixes sources
    mix: tuple[float, ...] = ()
    failure_rates: FailureRates = FailureRates()
    non_finite: float = 0.0
    even: bool = False  # True if all trainers have the same speed
    staleness: Literal[0, 1] = 0
    slow_links: int = 0  # how many trainers, counting from the first, have links ten times slower
    contributors: Literal["all", "fast"] = "all"
    codecs: Literal["stated", "plan"] = "stated"
    trusted: frozenset[str] | None = None  # people with looser limits; None: everyone

    def recipe(self) -> CausalLM:
        return CausalLM(
            model=Model(context=CONTEXT),
            optimizer=Optimizer(warmup_steps=min(10, self.steps)),
            target_batch=max(self.samples_each * self.trainers, self.micro_batch),
            micro_batch=self.micro_batch,
            target_steps=self.steps,
            minimum_trainers=self.minimum_trainers,
            snapshot_every=self.snapshot_every,
            staleness=self.staleness,
            contributors=self.contributors,
            codecs=self.codecs,
            mix=self.mix,
        )


class World(Surroundings):
    """A simulated world, in which `seed` determines all random choices."""

    def __init__(self, setting: Setting, observers: Sequence[Observer] = ()) -> None:
        self.setting, self.seed = setting, setting.seed
        self.observers = list(observers)
        self.chance = random.Random(f"world {setting.seed}")
        self.clock, self.tally, self.faults = Clock(), Tally(), Faults(setting.seed)
        self.recipe: Recipe = setting.recipe()
        self.grid = grid_of(setting.elements)
        self.shards, self.sources = setting.shards, setting.sources
        self.non_finite = setting.non_finite
        self.goal: e.Goal = "running"
        self.trusted = setting.trusted
        self.findings: frozenset[e.Findings] = frozenset()
        self.answers = count(1)
        self.gradients: dict[bytes, str] = {}
        self.run_id = RunId(name_of(setting.seed, "run"))
        self.database = Database(self.run_id, setting.seed, setting.failure_rates, self.faults)
        self.sockets: dict[int, Socket] = {}  # open sockets, by number
        self.numbers = 0  # number of the newest socket
        self.is_up = True  # True if the site is up, with or without a host for the run
        self.layer_back_at = 0.0  # the channel layer is unreachable until this time
        self.night_until = -1e9  # no trainer runs until this time
        self.unreachable: set[tuple[PeerId, PeerId]] = set()  # (trainer, relay) pairs that cannot connect
        self.on_commit: list[Callable[[], None]] = []
        self.host: Host | None = Host(self)  # the newest host; an older one may still believe that it is the host
        self.trainers = {peer.peer: peer for peer in map(self._trainer, range(setting.trainers))}
        self.relays = {peer.peer: peer for peer in map(self._relay, range(setting.relays))}
        self.peers: dict[PeerId, Peer] = {**self.trainers, **self.relays}
        for peer in self.peers.values():
            peer.after(self.chance.random(), peer.connect)
        self.clock.after(LOOK_S, self._look_up)

    def _trainer(self, number: int) -> Trainer:
        usual = self.setting.samples_per_s
        speed = usual if self.setting.even else usual * 2 ** self.chance.uniform(-1.5, 1.5)
        pace = self.grid.chunks / self.chance.uniform(0.5, 1.5) / (10 if number < self.setting.slow_links else 1)
        latency_s = self.chance.uniform(0.01, 0.1)
        peer = PeerId(name_of(self.seed, "trainer", number))
        return Trainer(self, peer, samples_per_s=speed, latency_s=latency_s, chunks_per_s=pace)

    def _relay(self, number: int) -> Relay:
        peer = PeerId(name_of(self.seed, "relay", number))
        return Relay(self, peer, self.trainers, latency_s=0.01)

    def committed(self) -> None:
        for action in self.on_commit:
            action()

    # --- links

    def open_session(self, peer: Peer) -> bool:
        if not self.is_up:
            return False
        self.numbers += 1
        peer.session = self.sockets[self.numbers] = Socket(self, peer, self.numbers)
        peer.session.look_up()
        return True

    def close_session(self, socket: Socket) -> None:
        self.sockets.pop(socket.number, None)
        socket.close()

    def _look_up(self) -> None:
        for socket in list(self.sockets.values()):
            if socket.is_forsaken:
                socket.look_up()
        self.clock.after(LOOK_S, self._look_up)

    # --- the host, the organizer

    def kill_host(self) -> None:
        """Kill the whole site, as with SIGKILL. All sessions end, and memory is lost."""
        if self.host is not None:
            self.host.alive = False
            self.tally.restarts += 1
        self.host, self.is_up = None, False
        self.sockets.clear()
        for peer in self.peers.values():
            peer.session = None
            peer.after(NOTICE_S + self.chance.random(), peer.connect)

    def start_host(self) -> None:
        """Start the site, and a host that restores the run from the database, once the database can be reached.

        Announce the host to each socket, unless the fault "unheard" strikes.
        """
        self.is_up = True
        if self.host is not None:
            return
        if not self.database.answers(self.clock.now):
            self.clock.after(TAKE_S, self.start_host)
            return
        host = self.host = Host(self)
        for socket in self.sockets.values():
            if not self.strikes("unheard", socket.peer.peer):
                socket.follow(host, host.state.fence)

    def restart_host(self, away_s: float = 1.0) -> None:
        self.kill_host()
        self.clock.after(away_s, self.start_host)

    def replace_host(self, ended: Host, away_s: float = TAKE_S) -> None:
        """Let another process take over the run after `away_s`.

        Sockets belong to other processes, so they stay open.
        """
        ended.alive = False
        if self.host is ended:
            self.host = None
            self.tally.restarts += 1
            self.clock.after(away_s, self.start_host)

    def overtake_host(self, asleep_s: float) -> None:
        """Freeze the host for `asleep_s`.

        If its claim expires during this time, another host takes over the run. The frozen host does not notice until it
        wakes.
        """
        host = self.host
        if host is None:
            return
        host.freeze()
        self.clock.after(asleep_s, host.thaw)

        def take() -> None:
            if self.host is host and host.frozen:
                self.host = None
                self.tally.restarts += 1
                self.start_host()

        self.clock.after(CLAIM_S + TAKE_S, take)

    def ban(self, peer: PeerId) -> None:
        banned, host = self.peers[peer], self.host
        banned.alive = False
        if host is not None and peer in host.sockets:
            host.lose(host.sockets[peer], banned=True)

    def direct(self, goal: e.Goal, *, target_steps: int = 0, mix: tuple[float, ...] = ()) -> None:
        """Pause, resume, end or extend the run, or change its mix of sources, as an organizer would."""
        self.goal = goal
        self.recipe = replace(self.recipe, mix=mix or self.recipe.mix)
        if self.host is not None:
            self.host.handle(e.Directed(goal, target_steps, mix, trusted=self.trusted))

    def roll_back(self, index: int) -> None:
        """Request a rollback to the state at a log entry, as an organizer would. The host carries it out."""
        step = self.database.records[index - 1].step if index else 0
        self.database.back_to = e.Target(index, step, "0" * 64)

    def store_snapshot(self, record: Record) -> None:
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
            self.host.handle(e.SnapshotStored(self.database.snapshot))

    # --- running

    def run(self, until: Callable[[], bool], limit_s: float = 3600.0) -> bool:
        """Advance virtual time until `until()` is True. Return False after `limit_s` virtual seconds."""
        end = self.clock.now + limit_s
        while not until():
            if self.clock.now > end or not self.clock.step():
                return False
            self.tally.events += 1
        return True

    def run_steps(self, steps: int, limit_s: float = 3600.0) -> bool:
        goal = self.database.step + steps
        return self.run(lambda: self.database.step >= goal, limit_s)

    def wait(self, seconds: float) -> None:
        self.run(lambda: False, seconds)

"""A whole simulation: rounds under faults, then recovery, a drain, and the verdict."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.identifiers import PeerId
from peer_agent.simulation.churn import Conditions, inject
from peer_agent.simulation.effects import heal, obey
from peer_agent.simulation.judge import Judge, Progress
from peer_agent.simulation.site import Host
from peer_agent.simulation.world import Setting, World

GIVE_UP = 10  # standstills before the simulation gives up
LIMIT_S = 30 * 86_400.0  # virtual seconds
DRAIN_ROUNDS = 8  # rounds without faults, enough for the leases of lost sessions and hosts to end
DRAIN_S = 1200.0  # time limit for the rounds without faults
SETTLE_S = 60.0  # a pause in which every replica reaches the head of the log
PARTING_S = 10.0  # a pause in which every message about leaving arrives
MOST_REASONS = 20


class Figures(Struct, frozen=True, kw_only=True):
    """A finished simulation's figures. In a sound run, those from `stuck_rounds` to `doubled_samples` are 0.
    `committed_rounds`, `void_rounds`: counted before the drain. `seconds`: real time. `advance_cpu_s`: CPU time in the
    coordinator. `fairness`: Jain's index of the trainers' ratios of credited to computed samples.
    """

    peers: int
    relays: int
    rounds: int
    seed: int
    committed_rounds: int
    void_rounds: int
    stuck_rounds: int
    divergent_replicas: int
    unsettled_leases: int
    uncredited_samples: int
    doubled_samples: int
    advance_cpu_s: float
    events: int
    seconds: float
    virtual_seconds: float
    actions: int
    samples: int
    computed_samples: int
    fairness: float
    exact_rounds: int
    restarts: int
    notes: dict[str, int]
    faults: dict[str, int]
    reasons: tuple[str, ...]
    trace: str
    crash: str = ""

    @property
    def is_sound(self) -> bool:
        """True if all rounds were committed and no fault was found."""
        wrong = self.stuck_rounds + self.divergent_replicas + self.unsettled_leases
        wrong += self.uncredited_samples + self.doubled_samples
        return not wrong and not self.crash and self.committed_rounds >= self.rounds


class Trace:
    """A digest of the order and times of events, commands and writes. Equal seeds give equal digests."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def before(self, host: Host, event: e.Event, now: float) -> None:
        """Do nothing, because `after` records the event."""

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        names = " ".join(type(command).__name__ for command in commands)
        what = type(event.message if isinstance(event, e.Received) else event).__name__
        self._hash.update(f"{now!r} {host.state.phase} {what} {getattr(event, 'peer', '')} {names}".encode())

    def persisted(self, _: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        self._hash.update(f"{command.record.index} {outcome} {command.record.previous}".encode())

    def digest(self) -> str:
        """Return the digest as 16 hexadecimal digits."""
        return self._hash.hexdigest()[:16]


class Simulation:
    """One simulated and judged run. `cpu` returns this process's CPU seconds, and `wall` the real time in seconds."""

    def __init__(
        self,
        setting: Setting,
        conditions: Conditions | None = None,
        *,
        cpu: Callable[[], float] = lambda: 0.0,
        wall: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.rounds, self.wall, self.began = setting.steps, wall, wall()
        self.trace, self.judge = Trace(), Judge(cpu)
        # The run has more steps than requested, because it goes on during the drain.
        longer = replace(setting, steps=setting.steps + 2 * DRAIN_ROUNDS)
        self.world = World(longer, [self.trace, self.judge])
        self.began_at = self.world.clock.now
        self.progress = Progress(self.world)
        obey(self.world)
        self.clear = inject(self.world, conditions) if conditions is not None else lambda: None
        self.measured: tuple[int, int] | None = None  # committed and void rounds before the drain
        self.divergent = self.unsettled = 0
        self.crash = ""

    def run(self, limit_s: float = LIMIT_S) -> None:
        """Run all rounds, or give up after too many standstills. Then drain the run."""
        self.make_rounds(limit_s)
        self.drain()

    def make_rounds(self, limit_s: float = LIMIT_S) -> None:
        world = self.world
        world.run(lambda: world.database.step >= self.rounds or len(self.progress.stuck) >= GIVE_UP, limit_s)
        self.measured = self._counts()

    def drain(self) -> None:
        """Let the run recover without faults. The host detects losses, replicas catch up, and trainers leave."""
        world = self.world
        self.clear()
        heal(world)
        world.run_steps(DRAIN_ROUNDS, DRAIN_S)
        world.direct("paused")
        world.wait(SETTLE_S)
        self.divergent = len(self.judge.divergent(world))
        for trainer in world.trainers.values():
            trainer.leave()
        world.wait(PARTING_S)
        self.unsettled = len(self.judge.unsettled(world))

    def _counts(self) -> tuple[int, int]:
        committed = min(self.world.database.step, self.rounds)
        is_open = bool(self.world.host and self.world.host.state.round)
        return committed, max(0, len(self.judge.rounds) - self.world.database.step - is_open)

    def figures(self) -> Figures:
        world, records = self.world, self.world.database.records
        committed, void = self.measured or self._counts()
        stuck = [f"stuck: at step {s.step}, after {s.at_s:.0f} s: {s.why}" for s in self.progress.stuck]
        return Figures(
            peers=len(world.trainers),
            relays=len(world.relays),
            rounds=self.rounds,
            seed=world.seed,
            committed_rounds=committed,
            void_rounds=void,
            stuck_rounds=len(self.progress.stuck),
            divergent_replicas=self.divergent,
            unsettled_leases=self.unsettled,
            uncredited_samples=self.judge.uncredited_samples,
            doubled_samples=self.judge.doubled_samples,
            advance_cpu_s=round(self.judge.advance_cpu_s, 3),
            events=self.judge.events,
            seconds=round(self.wall() - self.began, 3),
            virtual_seconds=round(world.clock.now - self.began_at, 3),
            actions=world.tally.events,
            samples=sum(record.samples for record in records),
            computed_samples=sum(trainer.computed for trainer in world.trainers.values()),
            fairness=round(_fairness(world), 4),
            exact_rounds=sum(record.exact for record in records),
            restarts=world.tally.restarts,
            notes=dict(sorted(world.tally.notes.items())),
            faults=dict(sorted(world.faults.fired.items())),
            reasons=tuple((stuck + self.judge.faults)[:MOST_REASONS]),
            trace=self.trace.digest(),
            crash=self.crash,
        )


def simulate(setting: Setting, conditions: Conditions | None = None, limit_s: float = LIMIT_S) -> Figures:
    simulation = Simulation(setting, conditions)
    simulation.run(limit_s)
    return simulation.figures()


def _fairness(world: World) -> float:
    credited = dict.fromkeys(world.trainers, 0)
    for row in world.database.ledger:
        credited[PeerId(row.machine)] += row.samples
    ratios = [credited[peer] / trainer.computed for peer, trainer in world.trainers.items() if trainer.computed]
    squares = sum(ratio * ratio for ratio in ratios)
    return sum(ratios) ** 2 / (len(ratios) * squares) if squares else 1.0

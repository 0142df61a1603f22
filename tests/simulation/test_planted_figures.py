"""Each figure of a simulation can fail: a planted fault is counted in the figure named beside it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from msgspec.structs import asdict, replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import advance as coordinator
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.log.records import read_record, whole
from peer_agent.simulation.database import Database
from peer_agent.simulation.judge import Judge
from peer_agent.simulation.simulate import Figures, Simulation
from peer_agent.simulation.site import Host
from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import Setting
from tests.simulation.test_simulate import ZERO

Commands = list[e.Command]
Spoil = Callable[[RunState, e.Event, Commands], Commands]
ROUNDS = 12


def _simulated(prepare: Callable[[Simulation], object] = lambda _: None) -> Figures:
    simulation = Simulation(Setting(trainers=4, relays=2, steps=ROUNDS, seed=5, even=True, samples_per_s=1.0))
    prepare(simulation)
    simulation.make_rounds(limit_s=1500)
    simulation.drain()
    return simulation.figures()


def _risen(figures: Figures) -> set[str]:
    return {name for name in ZERO if getattr(figures, name)}


def _spoiled(patch: pytest.MonkeyPatch, spoil: Spoil) -> None:
    honest = coordinator.advance

    def advance(state: RunState, event: e.Event, now: float, seed: int) -> Commands:
        return spoil(state, event, honest(state, event, now, seed))

    patch.setattr(coordinator, "advance", advance)


def _is_said(command: e.Command, kind: type[m.Message]) -> bool:
    return isinstance(command, e.Send) and isinstance(command.message, kind)


def _never_cuts(state: RunState, event: e.Event, commands: Commands) -> Commands:
    return [c for c in commands if not _is_said(c, m.Cut)] if state.step >= 3 else commands


def _drops_a_contribution(state: RunState, event: e.Event, commands: Commands) -> Commands:
    return [_with_contributions(c, lambda entries: entries[:-1]) for c in commands]


def _credits_twice(state: RunState, event: e.Event, commands: Commands) -> Commands:
    return [_with_contributions(c, lambda entries: (*entries, entries[0])) for c in commands]


def _credits_half(state: RunState, event: e.Event, commands: Commands) -> Commands:
    return [
        _with_contributions(c, lambda entries: tuple(replace(entry, samples=entry.samples // 2) for entry in entries))
        for c in commands
    ]


def _with_contributions(command: e.Command, change: Callable[[Any], Any]) -> e.Command:
    if not isinstance(command, e.Persist):
        return command
    derived = ("version", "contributions", "contributors", "contributions_root")
    facts = {name: value for name, value in asdict(command.record).items() if name not in derived}
    return replace(command, record=whole(contributions=change(command.record.contributions), **facts))


def _drops_a_settle(state: RunState, event: e.Event, commands: Commands) -> Commands:
    """Lease out again a unit that is already in an update."""
    if isinstance(event, e.Persisted) and event.sealed is not None and state.index == 4:
        record = read_record(event.sealed)
        state.leases.returned.insert(0, min(unit for entry in record.contributions for unit in entry.units))
    return commands


def _forgets_leases(state: RunState, event: e.Event, commands: Commands) -> Commands:
    if isinstance(event, e.Received) and isinstance(event.message, m.Leave):
        state.leases.returned.clear()
    return commands


def _never_reloads(state: RunState, event: e.Event, commands: Commands) -> Commands:
    return [c for c in commands if not _is_said(c, m.Reload)]


def _one_differs(simulation: Simulation) -> None:
    trainer = next(iter(simulation.world.trainers.values()))
    simulation.world.clock.after(30, lambda: setattr(trainer, "corrupt", True))


def _nobody_hears_of_commits(simulation: Simulation) -> None:
    """Hide all commits from one trainer."""
    world = simulation.world
    deaf = next(iter(world.trainers.values()))
    honest = deaf.deliver
    world.clock.after(
        30, lambda: setattr(deaf, "deliver", lambda said: None if isinstance(said, m.Commit) else honest(said))
    )


def test_a_sound_run_raises_no_figure() -> None:
    figures = _simulated()
    assert (_risen(figures), figures.is_sound, figures.committed_rounds) == (set(), True, ROUNDS)


@pytest.mark.parametrize(
    ("spoil", "risen"),
    [
        (_never_cuts, {"stuck_rounds"}),
        (_drops_a_contribution, {"uncredited_samples"}),
        (_credits_half, {"uncredited_samples"}),
        (_credits_twice, {"doubled_samples"}),
        (_drops_a_settle, {"doubled_samples"}),
        (_forgets_leases, {"unsettled_leases"}),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_planted_fault_raises_its_figure(spoil: Spoil, risen: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _spoiled(monkeypatch, spoil)
    figures = _simulated()
    assert risen <= _risen(figures), figures
    assert not figures.is_sound
    assert any(reason.startswith(next(iter(risen)).split("_", maxsplit=1)[0]) for reason in figures.reasons)


def test_a_replica_that_differs_and_is_not_told_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    _spoiled(monkeypatch, _never_reloads)
    assert _simulated(_one_differs).divergent_replicas == 1


def test_a_replica_that_stays_behind_is_counted() -> None:
    assert _simulated(_nobody_hears_of_commits).divergent_replicas == 1


def test_a_ledger_that_is_written_twice_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Database._write

    def write(self: Database, sealed: Any) -> bool:
        size = len(self.ledger)
        wrote = honest(self, sealed)
        self.ledger += self.ledger[size:]
        return wrote

    monkeypatch.setattr(Database, "_write", write)
    assert _risen(_simulated()) == {"doubled_samples"}


def test_a_coordinator_that_waits_for_a_hung_peer_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    hung: list[Trainer] = []

    def waits(state: RunState, event: e.Event, commands: Commands) -> Commands:
        return [c for c in commands if not _is_said(c, m.Cut)] if any(t.hung for t in hung) else commands

    def hang(simulation: Simulation) -> None:
        hung.append(next(iter(simulation.world.trainers.values())))
        simulation.world.clock.after(30, hung[0].hang)

    _spoiled(monkeypatch, waits)
    assert _simulated(hang).stuck_rounds > 0


def test_nothing_is_stuck_while_nobody_could_go_on() -> None:
    def stop(simulation: Simulation) -> None:
        world = simulation.world
        everybody = list(world.trainers.values())
        for trainer in everybody:
            world.clock.after(30, trainer.hang)
            world.clock.after(1000, trainer.resume)

    figures = _simulated(stop)
    assert figures.stuck_rounds == 0
    assert figures.virtual_seconds > 1000


class Repeats:
    """An observer that repeats the plan to a judge after each finished span, since a plan may be lost and resent."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.announced: e.Announce | None = None
        self.again = 0

    def before(self, host: Host, event: e.Event, now: float) -> None:
        pass

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        for command in commands:
            self.announced = command if isinstance(command, e.Announce) else self.announced
        if self.announced is not None and isinstance(event, e.Received) and isinstance(event.message, m.SpanDone):
            self.again += 1
            self.judge.after(host, event, [self.announced], now)

    def persisted(self, _: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        pass


def test_a_plan_that_is_said_again_changes_no_figure() -> None:
    repeats: list[Repeats] = []

    def listen(simulation: Simulation) -> None:
        repeats.append(Repeats(simulation.judge))
        simulation.world.observers.append(repeats[0])

    assert _risen(_simulated(listen)) == set()
    assert repeats[0].again > ROUNDS

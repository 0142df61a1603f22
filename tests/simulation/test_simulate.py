"""A whole simulation, calm and in all conditions. The same seed gives the same result. A failure prints how to replay
the simulation.
"""

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from peer_agent.protocol.coordinator import events as e
from peer_agent.simulation.__main__ import command_of, judged, report, setting_of
from peer_agent.simulation.churn import Conditions, all_conditions, only
from peer_agent.simulation.faults import Kind
from peer_agent.simulation.simulate import Figures, Simulation, simulate
from peer_agent.simulation.world import Setting
from tests.simulation.conditions import ALL_KINDS, SIZES, all_at_once
from tests.simulation.invariants import Invariants

ZERO = ("stuck_rounds", "divergent_replicas", "unsettled_leases", "uncredited_samples", "doubled_samples")
ALONE = 3.0  # a kind of fault that is alone is this many times as frequent as usual


def watched_simulation(setting: Setting, conditions: Conditions) -> Simulation:
    simulation = Simulation(setting, conditions)
    Invariants().watch(simulation.world)
    return simulation


def require_sound(figures: Figures) -> None:
    command = command_of(figures.peers, figures.rounds, 1.0, figures.seed, figures.relays)
    assert figures.is_sound, (command, figures)


def test_a_calm_run_is_whole_fair_and_exact() -> None:
    figures = simulate(Setting(trainers=10, relays=2, steps=10, seed=1, even=True))
    require_sound(figures)
    assert (figures.committed_rounds, figures.void_rounds, figures.faults) == (10, 0, {})
    assert figures.exact_rounds == figures.notes["step"] > 10, "those of the drain too"
    assert figures.fairness > 0.99


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_run_survives_each_weather_alone(kind: Kind) -> None:
    simulation = watched_simulation(setting_of(8, 25, 1, 2), only({kind}, ALONE))
    simulation.run()
    require_sound(simulation.figures())


@pytest.mark.parametrize(("peers", "rounds"), SIZES)
def test_a_run_survives_all_weathers_in_one_world(peers: int, rounds: int) -> None:
    simulation = watched_simulation(setting_of(peers, rounds, 1, 2), all_at_once())
    simulation.run()
    figures = simulation.figures()
    require_sound(figures)
    expected = set(ALL_KINDS) - {"failed", "answer lost", "unknown and not written"}
    assert expected <= set(figures.faults), "a conditions that never comes tests nothing"


@pytest.mark.check
def test_clocks_run_for_days_and_nights_are_long() -> None:
    simulation = watched_simulation(setting_of(2, 40, 1, 1), only({"night"}))
    world = simulation.world
    assert world.clock.now >= 90_000, "a day before the run begins"
    world.direct("running", target_steps=1000)
    assert world.host is not None
    world.recipe = world.host.state.recipe
    for _ in range(3):
        simulation.make_rounds(limit_s=24 * 3600)
        simulation.rounds += 40
        world.direct("paused")
        world.wait(9 * 3600)
        world.direct("running")
    assert world.clock.now - simulation.began_at > 25 * 3600
    assert figures_are_zero(simulation.figures())


def figures_are_zero(figures: Figures) -> bool:
    return not any(getattr(figures, name) for name in ZERO)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (simulate(setting_of(6, 10, 3, 2), all_conditions()) for _ in range(2))
    assert first == second
    other = simulate(setting_of(6, 10, 4, 2), all_conditions())
    assert other.trace != first.trace


def _from_command(hash_seed: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "peer_agent.simulation", "--peers", "6", "--rounds", "8", "--churn", "0.5"]
    said = subprocess.run(
        [*command, "--seed", "3", "--json"],
        check=False,
        capture_output=True,
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    figures = msgspec.json.decode(said.stdout.splitlines()[-1], type=dict[str, Any])
    assert said.returncode == int(any(figures[name] for name in ZERO) or figures["committed_rounds"] < 8)
    return {name: value for name, value in figures.items() if name not in ("advance_cpu_s", "seconds")}


def test_command_prints_the_same_object_in_another_process() -> None:
    first, second = map(_from_command, ("1", "2"))
    assert first == second
    assert first["committed_rounds"] == 8
    assert {*ZERO, "void_rounds", "events", "seed", "faults"} <= set(first)


def test_time_is_measured_and_words_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    figures = judged(peers=2, rounds=3, churn=0, seed=1, relays=1)
    assert 0 < figures.advance_cpu_s < figures.seconds
    assert report(figures, "", json=False) == 0
    assert "virtual seconds" in capsys.readouterr().out


def test_a_failure_prints_its_seed_and_what_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    figures = msgspec.structs.replace(simulate(Setting(steps=2, seed=77)), stuck_rounds=1, reasons=("stuck: there",))
    assert report(figures, command_of(3, 2, 0.5, 77, 1), json=True) == 1
    said = capsys.readouterr()
    assert "python -m peer_agent.simulation --peers 3 --rounds 2 --churn 0.5 --seed 77 --relays 1 --json" in said.err
    assert "stuck: there" in said.err
    assert msgspec.json.decode(said.out)["seed"] == 77


def test_a_run_that_does_not_reach_its_rounds_is_not_sound() -> None:
    simulation = Simulation(Setting(trainers=2, steps=50))
    simulation.run(limit_s=30)
    figures = simulation.figures()
    assert 0 < figures.committed_rounds < 50
    assert not figures.is_sound


def test_an_exception_of_the_coordinator_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def advance(state: object, event: object, *_: object) -> list[object]:
        if isinstance(event, e.Joined):
            raise ZeroDivisionError("planted")
        return []

    monkeypatch.setattr("peer_agent.simulation.site.coordinator.advance", advance)
    figures = judged(peers=1, rounds=1, churn=0, seed=1, relays=1)
    assert figures.crash == "ZeroDivisionError: planted"
    assert not figures.is_sound
    assert "Traceback" in capsys.readouterr().err

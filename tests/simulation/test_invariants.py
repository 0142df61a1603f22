"""Faults and bad conditions in any order: every invariant holds after every event, and the run continues afterwards."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peer_agent.protocol import messages as m
from peer_agent.simulation.churn import inject
from peer_agent.simulation.database import FailureRates, Fault
from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import World
from tests.simulation.checked_world import checked_world, relays, trainers
from tests.simulation.conditions import restless
from tests.tier import length

FAULTS: tuple[Fault, ...] = ("failed", "answer lost", "unknown and not written")


def _act(world: World, kind: str, number: int) -> None:
    trainer = trainers(world)[number % len(world.trainers)]
    relay = relays(world)[number % len(world.relays)]
    host = world.host
    actions: dict[str, Callable[[], object]] = {
        "kill": trainer.kill,
        "start": lambda: None if trainer.alive else trainer.start(),
        "reconnect": lambda: trainer.reconnect(number * 0.3),
        "freeze": trainer.freeze,
        "thaw": trainer.thaw,
        "return units": trainer.give_back,
        "return done": lambda: trainer.say(
            m.UnitsReturned(run=world.run_id, units=tuple(trainer.done), reason="non_finite")
        ),
        "leave": trainer.leave,
        "hello": lambda: trainer.say(trainer.hello()),
        "start anew": lambda: _start_anew(trainer),
        "damage": lambda: setattr(trainer, "damaged", not trainer.damaged),
        "kill relay": relay.kill,
        "start relay": lambda: None if relay.alive else relay.start(),
        "freeze relay": relay.freeze,
        "thaw relay": relay.thaw,
        "restart host": lambda: world.restart_host(number * 0.2),
        "freeze host": lambda: host.freeze() if host else None,
        "thaw host": lambda: host.thaw() if host else None,
        "database": lambda: world.database.script.append(FAULTS[number % 3]),
        "pause": lambda: world.direct("paused"),
        "resume": lambda: world.direct("running"),
    }
    actions[kind]()


def _start_anew(trainer: Trainer) -> None:
    trainer.lose_memory()
    trainer.say(trainer.hello())


KINDS = [
    *("kill", "start", "reconnect", "freeze", "thaw", "return units", "return done", "leave", "hello", "start anew"),
    *("damage", "kill relay", "start relay", "freeze relay", "thaw relay", "restart host", "freeze host", "thaw host"),
    *("database", "pause", "resume"),
]


def _calm(world: World) -> None:
    if world.host is None:
        world.start_host()
    assert world.host is not None
    world.host.thaw()
    world.direct("running")
    for trainer in trainers(world):
        trainer.damaged = False
    for peer in world.peers.values():
        peer.thaw()
        if not peer.alive:
            peer.start()
        peer.connect()


@settings(max_examples=length(200, 30), suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1000),
    size=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    story=st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.4, 1.0, 3.0, 12.0]), st.sampled_from(KINDS), st.integers(0, 9)),
        max_size=25,
    ),
)
def test_any_order_of_faults_keeps_invariants_and_the_run_going(
    seed: int, size: tuple[int, int], story: list[tuple[float, str, int]]
) -> None:
    world, _ = checked_world(
        trainers=size[0], relays=size[1], seed=seed, steps=1000, shards=(300, 77, 5), micro_batch=3
    )
    for wait_s, kind, number in story:
        world.wait(wait_s)
        _act(world, kind, number)
    world.wait(4)  # a restarting host is back by then
    _calm(world)
    assert world.run_steps(2, 400), "the run stands still"


def test_work_returned_twice_does_not_count_as_divergence() -> None:
    world, _ = checked_world(trainers=1, relays=1, seed=1, steps=1000, shards=(300, 77, 5), micro_batch=3)
    world.wait(3)
    _act(world, "return done", 0)
    _act(world, "return done", 0)
    world.wait(4)
    assert world.run_steps(2, 400), "the run stands still"


@pytest.mark.parametrize("seed", [1])
def test_fifty_peers_in_bad_conditions(seed: int) -> None:
    rates = FailureRates(failed=0.05, answer_lost=0.05)
    world, _ = checked_world(
        thorough=False,
        trainers=50,
        relays=3,
        steps=20,
        seed=seed,
        non_finite=0.005,
        failure_rates=rates,
        samples_each=4,
    )
    inject(world, restless(world.setting, trainer_s=0.7, relay_s=10, site_s=20))
    assert world.run(lambda: world.tally.finished, 3000)
    computed = sum(trainer.computed for trainer in trainers(world))
    assert sum(record.samples for record in world.database.records) <= computed


@pytest.mark.parametrize("seed", range(length(8, 4)))
def test_few_peers_in_bad_conditions(seed: int) -> None:
    count = (1, 2, 3, 7)[seed % 4]
    rates = FailureRates(failed=0.1, answer_lost=0.1)
    world, _ = checked_world(
        trainers=count, relays=1 + seed % 3, steps=25, seed=seed, non_finite=0.01, failure_rates=rates, shards=(500, 31)
    )
    inject(world, restless(world.setting, trainer_s=max(1.0, 20 / count), relay_s=15, site_s=25))
    assert world.run(lambda: world.tally.finished, 5000)

"""Offers, waits and what is said of rounds, with every invariant checked."""

from collections.abc import Sequence
from typing import Any

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.facts import GRACE_ROUNDS
from peer_agent.protocol.coordinator.round.offers import FIRST_OFFER_S as OFFER_S
from peer_agent.protocol.coordinator.state import DIVERGED, NO_ACCUMULATOR, Phase
from peer_agent.protocol.messages import DoneUnit, Weight
from peer_agent.simulation import world as worlds
from peer_agent.simulation.clock import Clock
from peer_agent.simulation.host import Host
from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import Setting, World
from tests.simulation.watched import relays, run_to, state, trainers, watched

# --- offers


def _offer(world: World, trainer: Trainer, **changes: Any) -> list[str]:
    """Say an offer that differs from an honest one; the numbers of the notices that it gets."""
    host, now = world.host, state(world)
    assert host is not None
    assert now.round is not None
    tokens = trainer.core.loss_tokens
    fields: dict[str, Any] = {
        "run": now.run,
        "step": now.step,
        "fence": now.fence,
        "attempt": now.round.attempt,
        "accumulator": trainer.accumulator,
        "units": tuple(DoneUnit(unit, base) for unit, base in trainer.done.items()),
        "weights": (Weight(0, now.grid.chunks, tokens),),
        "loss_tokens": tokens,
        "loss_sum": 1.0,
        "norm": 1.0,
        "root": bytes(32),
    }
    seen: list[str] = []

    class Notices:
        def before(self, host: Host, event: e.Event, now: float) -> None: ...

        def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
            sends = [c.message for c in commands if isinstance(c, e.Send)]
            seen.extend(message.code for message in sends if isinstance(message, m.Notice))

        def persisted(self, host: Host, command: e.Persist, outcome: object) -> None: ...

    world.observers.append(Notices())
    host.take(e.Received(trainer.peer, m.Offer(**{**fields, **changes})))
    world.observers.pop()
    return seen


def _at_offers() -> tuple[World, Trainer]:
    world, _ = watched(trainers=3, steps=9, even=True)
    run_to(world, Phase.OFFER)
    return world, next(trainer for trainer in trainers(world) if trainer.done)


def test_an_honest_offer_is_taken_once() -> None:
    world, trainer = _at_offers()
    assert _offer(world, trainer) == []
    assert _offer(world, trainer, norm=2.0) == []
    round_ = state(world).round
    assert round_ is not None
    assert round_.offers[trainer.peer].norm == 1.0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"loss_tokens": 10**6}, "E219"),
        ({"loss_tokens": 1}, "E219"),
        ({"weights": ()}, "E219"),
        ({"weights": (Weight(0, 7, 60),)}, "E219"),
        ({"weights": (Weight(0, 8, 10**6),)}, "E219"),
        ({"weights": (Weight(0, 4, 60), Weight(5, 8, 60))}, "E219"),
        ({"weights": (Weight(0, 4, 60), Weight(4, 8, -1))}, "E219"),
        ({"accumulator": "f" * 32}, "E219"),
        ({"norm": float("nan")}, "E206"),
        ({"norm": -1.0}, "E206"),
        ({"loss_sum": float("inf")}, "E206"),
    ],
)
def test_an_offer_that_claims_too_much_is_refused_with_its_number(changes: dict[str, Any], code: str) -> None:
    world, trainer = _at_offers()
    assert _offer(world, trainer, **changes) == [code]
    assert trainer.peer not in state(world).round.offers  # type: ignore[union-attr]
    assert world.run_steps(2, 100), "and the run goes on"


def test_an_offer_of_a_revoked_accumulator_is_passed_over() -> None:
    """Its owner has been told; an empty name in a second revocation would be refused by the peer."""
    world, trainer = _at_offers()
    member = state(world).members[trainer.peer]
    member.accumulator = NO_ACCUMULATOR
    assert _offer(world, trainer) == []
    assert trainer.peer not in state(world).round.offers  # type: ignore[union-attr]


def test_units_of_others_twice_or_of_another_time_are_refused() -> None:
    for change in ("others", "twice", "old", "future"):
        world, trainer = _at_offers()
        own = [DoneUnit(unit, base) for unit, base in trainer.done.items()]
        other = next(t for t in trainers(world) if t is not trainer and t.done)
        units = {
            "others": [DoneUnit(unit, 0) for unit in other.done],
            "twice": own + own,
            "old": [DoneUnit(done.unit, -2) for done in own],
            "future": [DoneUnit(done.unit, 5) for done in own],
        }[change]
        assert _offer(world, trainer, units=tuple(units)) in (["E219"], ["E206"]), change


# --- what the coordinator says


def test_a_returning_trainer_is_told_that_its_attempt_is_over() -> None:
    world, _ = watched(trainers=3, steps=9, even=True)
    world.run_steps(1)
    run_to(world, Phase.REDUCE)
    sleeper, *others = trainers(world)
    sleeper.disconnect()
    for other in others:
        other.kill()
    world.wait(3)
    assert state(world).phase is Phase.ACCUMULATE
    assert sleeper.cut is not None
    sleeper.connect()
    world.wait(1)
    assert sleeper.cut is None


def test_the_first_step_is_timed_from_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[float] = []

    class Times:
        def before(self, host: Host, event: e.Event, now: float) -> None: ...

        def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
            took.extend(command.duration_s for command in commands if isinstance(command, e.Persist))

        def persisted(self, host: Host, command: e.Persist, outcome: object) -> None: ...

    class Uptime(Clock):
        """Of a machine that has been on for days."""

        def __init__(self) -> None:
            super().__init__()
            self.now = 1_000_000.0

    monkeypatch.setattr(worlds, "Clock", Uptime)
    world = World(Setting(trainers=2, steps=3), [Times()])
    world.run_steps(2)
    assert took
    assert all(0 < duration < 100 for duration in took)


def test_leases_of_whoever_stays_away_come_back_after_some_rounds() -> None:
    world, _ = watched(trainers=4, steps=30)
    world.run_steps(1)
    gone = trainers(world)[0]
    run_to(world, Phase.ACCUMULATE)
    world.wait(0.5)
    gone.kill()
    world.wait(1)
    assert gone.accumulator in state(world).leases.held
    world.run_steps(GRACE_ROUNDS + 1, 300)
    world.wait(0.2)
    assert gone.accumulator not in state(world).leases.held


def test_offers_that_never_come_double_the_wait_until_one_does() -> None:
    world, _ = watched(trainers=1, steps=9)
    trainer = trainers(world)[0]
    trainer.offer_delay_s = 3 * OFFER_S
    assert world.run_steps(1, 300)
    assert world.tally.notes["void"] == 2
    world.wait(0.1)
    assert state(world).late_rounds == 0


def test_a_round_that_moves_is_given_time_and_one_that_does_not_is_void() -> None:
    world, _ = watched(trainers=2, steps=9, even=True, elements=100 * 16 * 1024)
    for relay in relays(world):
        relay.bytes_per_s = 0
    for trainer in trainers(world):
        trainer.chunks_per_s = 1.0
    assert world.run_steps(1, 200), "100 s is more than any fixed wait, but it moves"
    assert "void" not in world.tally.notes
    run_to(world, Phase.REDUCE)
    relays(world)[0].freeze()
    world.wait(60)
    assert world.tally.notes["void"] >= 1


def test_a_model_that_has_diverged_stops_the_run_and_says_why() -> None:
    world, _ = watched(trainers=2, steps=50, even=True)
    world.run_steps(2)
    run_to(world, Phase.ACCUMULATE)
    for _ in range(200):
        if len(state(world).ready()) == 2:
            break
        world.wait(0.02)
    host = world.host
    assert host is not None
    for trainer in trainers(world):
        leased = sorted(state(world).leases.held[trainer.accumulator])[:DIVERGED]
        message = m.UnitsReturned(run=state(world).run, units=tuple(leased), reason="non_finite")
        for _ in range(2):  # said twice, it is one line of the timeline
            host.take(e.Received(trainer.peer, message))
    assert state(world).has_diverged
    world.wait(0.5)
    assert "diverged" in state(world).waiting
    assert world.tally.notes["non-finite"] == 2

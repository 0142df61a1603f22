"""Audits in whole runs that strangers may join: liars are named, honest machines never."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from statistics import median

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.audits import DISMISSALS
from peer_agent.protocol.identifiers import PeerId
from peer_agent.simulation.churn import all_conditions, inject
from peer_agent.simulation.site import Host
from peer_agent.simulation.world import World
from tests.simulation.checked_world import checked_world, state, trainers

NAMED = "contributed gradients other than those of its samples"


def named(world: World) -> list[str]:
    return [text.split(" (")[0] for text in world.tally.texts if NAMED in text]


def updates_of(world: World, person: str) -> int:
    return sum(any(part.person == person for part in record.contributions) for record in world.database.records)


def open_world(
    seed: int, *, liars: int, honest: int = 5, trusted: int = 1, steps: int = 60, staleness: int = 0
) -> tuple[World, list[str], list[str]]:
    """Return a world, the honest people's names, and the liars'. The organizer vouches for the first `trusted`."""
    world, _ = checked_world(
        seed=seed,
        trainers=liars + honest,
        steps=steps,
        samples_each=8,
        even=True,
        thorough=False,
        trusted=frozenset(),
        staleness=staleness,
    )
    people = [world.person_of(trainer.peer) for trainer in trainers(world)]
    world.trusted = state(world).trusted = frozenset(people[:trusted])
    for number, trainer in enumerate(trainers(world)[honest:]):
        trainer.adds = f"liar {number}"
    return world, people[:honest], people[honest:]


@pytest.mark.parametrize(("liars", "staleness"), [(1, 0), (2, 0), (3, 0), (2, 1)])
def test_liars_are_named_within_ten_updates_as_newcomers(liars: int, staleness: int) -> None:
    after = [updates for seed in range(3) for updates in updates_until_named(seed, liars, staleness)]
    assert len(after) == 3 * liars
    assert median(after) <= 10


@pytest.mark.parametrize("staleness", [0, 1])
def test_people_who_begin_to_lie_later_are_named_within_sixty_updates(staleness: int) -> None:
    after = [updates for seed in range(3) for updates in updates_of_sleepers(seed, staleness)]
    assert len(after) == 6
    assert median(after) <= 60


def updates_of_sleepers(seed: int, staleness: int) -> list[int]:
    """Return in how many updates the work of each of two people was, after they began to lie, until they were named."""
    world, people, _ = open_world(seed, liars=0, honest=7, steps=400, staleness=staleness)
    assert world.run(lambda: world.database.step >= 30, 2000.0)
    before = {person: updates_of(world, person) for person in people[5:]}
    for number, trainer in enumerate(trainers(world)[5:]):
        trainer.adds = f"liar {number}"
    after = []
    for person, updates in before.items():
        assert world.run(partial(is_named, world, person), 3000.0), "every liar is named"
        after.append(updates_of(world, person) - updates)
    assert not set(people[:5]) & set(named(world))
    return after


def test_liars_hardly_slow_the_others_down() -> None:
    def rate(liars: int) -> float:
        world, _, _ = open_world(5, liars=liars, honest=5, steps=60)
        began = world.clock.now
        assert world.run(lambda: world.database.step >= 60, 2000.0)
        return world.database.step * world.setting.recipe().target_batch / (world.clock.now - began)

    assert rate(2) >= 0.8 * rate(0), "samples a second"


def updates_until_named(seed: int, liars: int, staleness: int) -> list[int]:
    """Return in how many updates each liar's work was before the liar was named."""
    world, honest, false = open_world(seed, liars=liars, staleness=staleness)
    after = []
    for person in false:
        assert world.run(partial(is_named, world, person), 600.0), "every liar is named"
        after.append(updates_of(world, person))
    assert not set(honest) & set(named(world))
    return after


def is_named(world: World, person: str) -> bool:
    return person in named(world)


def test_nobody_is_named_if_all_are_honest() -> None:
    world, people, _ = open_world(1, liars=0, steps=80)
    assert world.run(lambda: world.tally.finished, 3000.0)
    assert named(world) == []
    checks = [
        state(world).reliabilities.get(t.peer) or state(world).members[t.peer].reliability for t in trainers(world)
    ]
    assert sum(record.audits_passed for record in checks) > 10
    assert not any(record.in_doubt or record.accused_by for record in checks)
    assert world.database.records[-1].exact
    assert len(people) == 5


def test_auditors_that_lie_convict_nobody() -> None:
    """Two of seven people accuse everyone. Their own work is honest, so that they have passed audits."""
    world, honest, _ = open_world(2, liars=0, honest=7, steps=80)
    for trainer in trainers(world)[5:]:
        trainer.accuses = True
    assert world.run(lambda: world.tally.finished, 3000.0)
    assert not set(honest[:5]) & set(named(world))


class Told:
    """An observer that counts how often the coordinator tells a machine something, by error code."""

    def __init__(self) -> None:
        self.codes: dict[PeerId, Counter[str]] = {}
        self.reversed: set[PeerId] = set()

    def before(self, host: Host, event: e.Event, now: float) -> None:
        pass

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        del host, event, now
        for command in commands:
            if isinstance(command, e.Send) and isinstance(command.message, m.Notice):
                for peer in command.peers:
                    self.codes.setdefault(peer, Counter())[command.message.code] += 1
            elif isinstance(command, e.Reverse):
                self.reversed.add(command.peer)

    def persisted(self, _: Host, command: e.Persist, outcome: str) -> None:
        pass


@pytest.mark.parametrize(("seed", "staleness"), [(0, 0), (0, 1)])
def test_machine_with_bad_memory_is_told_so_and_not_named(seed: int, staleness: int) -> None:
    """Its memory spoils one gradient in seven, and one audit in seven. Honest machines go on auditing."""
    world, *_ = open_world(seed, liars=0, honest=7, steps=150, staleness=staleness)
    told = Told()
    world.observers.append(told)
    bad, *others = reversed(trainers(world))
    bad.spoils = 1 / 7
    assert world.run(lambda: world.tally.finished, 6000.0)
    assert told.codes[bad.peer]["E147"]
    assert set(told.codes) == {bad.peer}
    assert named(world) == []
    assert told.reversed == set()
    assert max(state(world).dismissed[world.person_of(trainer.peer)] for trainer in others) < DISMISSALS
    assert updates_of(world, world.person_of(bad.peer)) > 0.6 * len(world.database.records)


def test_a_run_with_audits_survives_churn() -> None:
    world, honest, false = open_world(4, liars=2, steps=40)
    inject(world, all_conditions(0.3))
    assert world.run(lambda: world.tally.finished, 6000.0)
    assert set(false) <= set(named(world))
    assert not set(honest) & set(named(world))

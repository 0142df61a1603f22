"""The phase table: it lists every phase change, and every change that it lists occurs."""

import ast
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from peer_agent.protocol import coordinator
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator import phases
from peer_agent.protocol.coordinator.phases import TRANSITIONS, Impossible, Why, enter
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.log.records import Entry, seal
from peer_agent.simulation.churn import inject
from peer_agent.simulation.database import FailureRates
from peer_agent.simulation.world import Setting, World
from tests.protocol.coordinator.stage import Stage
from tests.simulation.checked_world import relays, run_to, state
from tests.simulation.conditions import restless

Arrows = dict[tuple[Phase, Why], Phase]


class Seen(Arrows):
    def __init__(self, arrows: Arrows) -> None:
        super().__init__(arrows)
        self.taken: set[tuple[Phase, Why]] = set()

    def get(self, arrow: tuple[Phase, Why]) -> Phase | None:  # type: ignore[override]
        self.taken.add(arrow)
        return super().get(arrow)


def next_entry(world: World) -> Entry:
    """Return the entry that the site has signed and lost: one more step."""
    other = World(Setting(trainers=2, steps=2))
    run_to(other, Phase.COMMIT)
    other.run(lambda: other.database.index == 1, 2000)
    return seal(world.database.key, other.database.records[0])


def test_every_arrow_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(TRANSITIONS)
    monkeypatch.setattr(phases, "TRANSITIONS", seen)
    for seed in range(6):
        setting = Setting(
            trainers=(1, 2, 6)[seed % 3],
            relays=1 + seed % 2,
            steps=20,
            seed=seed,
            failure_rates=FailureRates(failed=0.2, answer_lost=0.1),
        )
        world = World(setting)
        inject(world, restless(setting, trainer_s=3, relay_s=8, site_s=40))
        world.run(lambda world=world: world.tally.finished, 2000)  # type: ignore[misc]
    still = World(Setting(trainers=2, steps=2))
    run_to(still, Phase.REDUCE)
    relays(still)[0].freeze()
    still.wait(60)
    untrue = World(Setting(trainers=2, steps=2))
    run_to(untrue, Phase.REDUCE)
    round_ = state(untrue).round
    assert round_ is not None
    assert round_.plan is not None
    plan = round_.plan
    place: dict[str, Any] = {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}
    false = m.SpanDone(**place, span=plan.spans[0].span, root=bytes(32), sum_squares=1.0, included=())
    assert untrue.host is not None
    untrue.host.handle(e.Received(relays(untrue)[0].peer, false))
    unwritable = World(Setting(trainers=2, steps=2))
    run_to(unwritable, Phase.COMMIT)
    assert unwritable.host is not None
    unwritable.host.handle(e.Persisted("refused"))
    for phase in (Phase.OFFER, Phase.REDUCE):
        undone = World(Setting(trainers=2, steps=2))
        run_to(undone, phase)
        assert undone.host is not None
        undone.host.handle(e.Directed("running", back_to=e.Target(0, 0, "0" * 64)))
        behind = World(Setting(trainers=2, steps=2))
        run_to(behind, phase)
        assert behind.host is not None
        records = m.Records(run=behind.run_id, first=1, last=1, records=(next_entry(behind),))
        behind.host.handle(e.Received(relays(behind)[0].peer, records))
    assert seen.taken == set(TRANSITIONS)


def test_the_table_is_complete_and_closed() -> None:
    assert {start for start, _ in TRANSITIONS} == set(Phase)
    assert set(TRANSITIONS.values()) == set(Phase)
    assert {why for _, why in TRANSITIONS} == set(Why)


@pytest.mark.parametrize(("phase", "why"), [arrow for arrow in product(Phase, Why) if arrow not in TRANSITIONS])
def test_what_is_not_in_the_table_does_not_happen(phase: Phase, why: Why) -> None:
    state = Stage().state
    state.phase = phase
    with pytest.raises(Impossible):
        enter(state, why)
    assert state.phase is phase


def test_nothing_else_changes_the_phase() -> None:
    folder = Path(coordinator.__file__).parent
    writers = {
        path.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute) and target.attr == "phase" and isinstance(target.ctx, ast.Store)
    }
    assert writers == {"phases.py"}

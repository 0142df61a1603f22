"""Who is leased anything at all."""

import pytest

from peer_agent.protocol import messages as m
from tests.protocol.coordinator.stage import Stage, Trainer, sent


def after_a_step() -> tuple[Stage, list[Trainer]]:
    """The first step is committed; the second of two has not heard of it."""
    stage = Stage(batch=32)
    stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "bob")]
    stage.lose.add((trainers[1].peer, m.Commit))
    stage.commit(*trainers)
    stage.lose.clear()
    return stage, trainers


def leased(stage: Stage, trainer: Trainer, seconds: float = 2.0) -> bool:
    return bool(sent(stage.wait(seconds), m.Lease, trainer.peer))


@pytest.mark.parametrize("step", [-1, 0])
def test_a_newcomer_is_leased_nothing_before_it_is_at_the_head(step: int) -> None:
    stage, _ = after_a_step()
    newcomer = Trainer("new", "new")
    newcomer.step = newcomer.index = step
    stage.trainers[newcomer.peer] = newcomer
    answer = stage.hello(newcomer)
    assert [greeting.reconciled for greeting in sent(answer, m.Greeting)] == [False]  # type: ignore[attr-defined]
    assert sent(answer, m.Lease, newcomer.peer) == []
    assert not leased(stage, newcomer)
    newcomer.step = newcomer.index = 1
    assert sent(stage.hello(newcomer), m.Lease, newcomer.peer) or leased(stage, newcomer)


def test_whoever_missed_a_commit_is_leased_nothing_before_it_has_it() -> None:
    stage, (_, behind) = after_a_step()
    returned = m.UnitsReturned(run=stage.state.run, units=tuple(behind.undone), reason="stale")
    behind.undone = []
    assert sent(stage.say(behind.peer, returned), m.Lease, behind.peer) == []
    assert not leased(stage, behind)
    behind.step, behind.index, behind.done = 1, 1, {}
    assert sent(stage.report(behind), m.Lease, behind.peer) or leased(stage, behind)

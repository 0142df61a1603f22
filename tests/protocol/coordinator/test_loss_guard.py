"""A run whose loss rises suddenly is paused, and its managers are told why."""

import pytest

from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.loss_guard import LATEST, WRITTEN_S, watch_loss
from peer_agent.protocol.coordinator.state import LOSSES_KEPT, Phase
from tests.protocol.coordinator.stage import TOKENS, Stage, notes

BEFORE = LOSSES_KEPT - LATEST
NOISY = [3.0 + 0.02 * (number % 7) for number in range(BEFORE)]


def halts(stage: Stage, losses: list[float]) -> list[e.Command]:
    return [command for loss in losses for command in watch_loss(stage.state, loss) if isinstance(command, e.Halt)]


@pytest.mark.parametrize(
    ("latest", "is_halted"),
    [
        ([3.1] * LATEST, False),
        ([9.0, 9.0, 3.0, 3.0, 3.0], False),  # two unusual batches
        ([4.5] * LATEST, False),  # less than half as much again
        ([4.7] * LATEST, True),
        ([3.0, 3.0, 9.0, 9.0, 9.0], True),
        ([float("inf")] * LATEST, True),
    ],
)
def test_latest_losses_are_compared_with_those_before(latest: list[float], *, is_halted: bool) -> None:
    stage = Stage()
    found = halts(stage, NOISY + latest)
    assert bool(found) == is_halted
    assert (stage.state.goal == "paused") == is_halted


def test_loss_that_rises_little_by_little_pauses_the_run() -> None:
    """From 4 to 7 within a hundred updates, as beside three liars of eight."""
    stage = Stage()
    (halt,) = halts(stage, [4.0 * 1.006**update for update in range(150)])[:1]
    assert isinstance(halt, e.Halt)
    assert stage.state.goal == "paused"


def test_loss_that_falls_and_comes_back_in_part_pauses_nothing() -> None:
    falling = [6.0 * 0.98**update for update in range(40)]
    assert halts(Stage(), [*falling, *[2.7] * 60, *[3.9] * 3, *[3.6] * 60]) == []


def test_losses_that_vary_much_pause_nothing() -> None:
    assert halts(Stage(), [1.0, 2.0, 3.0] * 16 + [2.0] * 2 + [5.0] * LATEST) == []


def test_rare_hard_samples_of_a_model_near_zero_loss_pause_nothing() -> None:
    assert halts(Stage(), [0.002] * 40 + [0.03] + [0.002] * 9 + [0.002, 0.002, 0.027, 0.027, 0.027]) == []


def test_a_short_history_pauses_nothing() -> None:
    assert halts(Stage(), NOISY[LATEST:] + [50.0] * (LATEST - 1)) == []


def risen() -> Stage:
    stage = Stage()
    stage.relay()
    for name in ("ann", "bob"):
        stage.trainer(name)
    stage.state.losses.extend([1.0] * BEFORE)
    for _ in range(LATEST):
        stage.commit()
    return stage


@pytest.mark.parametrize(
    ("trusted", "people", "is_halted"),
    [
        (None, 3, False),  # two others say what they usually say
        (frozenset({"ann"}), 2, False),
        (frozenset(), 2, False),  # nobody's word counts
        (None, 1, True),
    ],
)
def test_one_person_pauses_nothing_by_a_claim(trusted: frozenset[str] | None, people: int, *, is_halted: bool) -> None:
    stage = Stage(batch=8 * people, trusted=trusted)
    stage.relay()
    trainers = [stage.trainer(name) for name in ("eve", "ann", "bob")[:people]]
    stage.state.losses.extend([2.5] * BEFORE)
    for _ in range(LATEST):
        stage.accumulate()
        for trainer in trainers:
            stage.offer(trainer, loss_sum=(9.0 if trainer.person == "eve" else 2.5) * trainer.samples * TOKENS)
        stage.close()
        stage.reduce()
        stage.persist()
    assert (stage.state.goal == "paused") == is_halted


def test_no_round_begins_until_the_run_is_resumed() -> None:
    stage = risen()
    reason = "the loss rose from 1 to 2.5 by step 5; roll back to an earlier snapshot, or resume"
    assert [command for command in stage.said if isinstance(command, e.Halt)] == [e.Halt(reason)]
    assert "halted" in notes(stage.said)
    stage.wait(2)
    assert stage.state.waiting == reason
    stage.handle(e.Directed("running"))  # read before the database was told
    assert (stage.state.goal, stage.state.waiting) == ("paused", reason)
    stage.handle(e.Directed("paused", pause_reason=reason))
    for trainer in stage.trainers.values():
        stage.compute(trainer, 10)
    assert stage.state.phase is Phase.ACCUMULATE
    stage.wait(WRITTEN_S)
    stage.handle(e.Directed("running"))
    stage.commit()
    assert stage.state.step == LATEST + 1
    assert list(stage.state.losses) == [2.5]


def test_other_data_may_have_another_loss() -> None:
    stage = Stage(values={"mix": (1.0, 1.0)}, sources=(0, 1), shards=(Stage().state.shards[0],) * 2)
    stage.state.losses.extend([1.0] * BEFORE)
    stage.handle(e.Directed("running", mix=(1.0, 3.0)))
    assert not stage.state.losses

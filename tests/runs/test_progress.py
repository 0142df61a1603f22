"""What losses say together: medians, since one step's loss depends on its samples; and when a model overfits."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from peer_agent.protocol.recipe import encode_recipe
from runs.models import Dataset, Run
from runs.selectors import SINCE_BEST, TYPICAL, Measured, Point, RunProgress, change, overfitting, typical_loss
from tests.runs.factories import RECIPE

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
FALLING = [Point(step, 8 - step / 100) for step in range(1, 301)]


def measured(*losses: float, every: int = 50) -> list[Measured]:
    return [
        Measured(place, place, loss, NOON) for place, loss in zip(range(every, 10_000, every), losses, strict=False)
    ]


def moved(points: list[Point], before: int) -> tuple[float, int] | None:
    found = change(points, before)
    return found and (round(found.loss, 6), found.steps)


def test_one_step_of_another_kind_does_not_move_the_loss() -> None:
    calm = [Point(step, 3.0) for step in range(1, 30)]
    assert typical_loss([*calm, Point(30, 9.0)]) == 3.0
    assert typical_loss([*calm, Point(30, float("nan")), Point(31, float("inf"))]) == 3.0
    assert typical_loss([Point(1, 9.0), *calm[:TYPICAL]]) == 3.0, "older ones do not count"
    assert typical_loss([]) is None
    assert typical_loss([Point(1, float("nan"))]) is None


def test_a_change_is_between_steps_of_which_none_is_in_both() -> None:
    assert moved(FALLING, 199) == (-1.0, 100)
    assert moved(FALLING[:10], 0) == (-0.05, 5), "the first half and the second"
    assert moved(FALLING[:10], 7) == (-0.02, 2)
    assert moved([Point(1, 4.0), Point(2, 4.5)], 0) == (0.5, 1)
    assert change([Point(1, float("nan")), Point(2, 4.5)], 0) is None
    noisy = [Point(step, 4.0 + step % 2) for step in range(1, 101)]
    found = change([*noisy, Point(101, 40.0)], 50)
    assert found is not None
    assert abs(found.loss) <= 1.0, "one step of another kind"


class TestOverfitting:
    """Held-out loss rises while training loss falls."""

    def test_is_told_with_the_best_and_the_newest_snapshot(self) -> None:
        found = overfitting(FALLING, measured(4.0, 3.3, 3.6, 4.3))
        assert found is not None
        assert [(point.step, point.loss) for point in found] == [(100, 3.3), (200, 4.3)]

    @pytest.mark.parametrize(
        ("losses", "why"),
        [
            ((), "nothing was measured"),
            ((4.0, 3.3, 3.2, 3.1), "it falls"),
            ((4.0, 3.3, 4.3), "one snapshot may be a bad one"),
            ((4.0, 3.3, 3.31, 3.32), "no more than two snapshots differ by"),
            ((4.0, 3.3, 4.3, 3.33), "it came back"),
        ],
    )
    def test_is_not_told_where_nothing_shows_it(self, losses: tuple[float, ...], why: str) -> None:
        assert overfitting(FALLING, measured(*losses)) is None, why

    def test_is_not_told_where_training_loss_rises_as_well(self) -> None:
        """Then the model diverges, which is something else."""
        rising = [Point(point.step, 20 - point.loss) for point in FALLING]
        assert overfitting(rising, measured(4.0, 3.3, 3.6, 4.3)) is None

    def test_wants_as_many_snapshots_since_the_best_as_it_says(self) -> None:
        rise = [3.3, *[4.3] * SINCE_BEST]
        assert overfitting(FALLING, measured(*rise)) is not None
        assert overfitting(FALLING, measured(*rise[:-1])) is None


@pytest.mark.parametrize(
    ("tokens", "mix", "is_known"), [(1000, (), True), (None, (), False), (1000, (1.0, 3.0), False)]
)
def test_passes_over_the_dataset(tokens: int | None, mix: tuple[float, ...], is_known: bool) -> None:
    """Of several files each has its own number."""
    run, dataset = Run(recipe=encode_recipe(replace(RECIPE, mix=mix)).decode()), Dataset(tokens=tokens)
    seen = RunProgress(run=run, dataset=dataset, points=[], samples=3 * RECIPE.samples_in(1000))
    assert seen.passes == (3.0 if is_known else None)

"""Reading a run: sums, curve, lists and overfitting. Reads take few queries however long the run is."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from msgspec.structs import replace

from accounts.models import Person
from peer_agent.protocol.recipe import encode_recipe
from runs import selectors
from runs.access import BESIDE
from runs.lifecycle.drafts import change_visibility
from runs.lifecycle.membership import add_member, remove_member
from runs.models import ActivityLine, Dataset, Run, Snapshot
from runs.selectors import SINCE_BEST, TYPICAL, Measured, Point, RunProgress, change, overfitting, typical_loss
from tests.runs.factories import RECIPE, Owned, committed, opened, owned

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
FALLING = [Point(step, 8 - step / 100) for step in range(1, 301)]


class TestContract:
    def test_a_long_curve_is_thinned_and_keeps_its_end(self, any_database: str, data_folder: Any) -> None:
        organizer = Person.objects.create_user("Amina", None)
        run, machine = opened(organizer), owned(organizer).machine
        for step in range(1, 32):
            committed(run, (machine, 1), loss=8 - step / 10)
        points = selectors.loss_points(run, most=10)
        assert len(points) <= 11
        assert points[-1][:2] == (31, 8 - 3.1)
        assert [point.step for point in points] == sorted({point.step for point in points})

    def test_a_picture_knows_everything_of_its_run_alone(self, any_database: str, data_folder: Any) -> None:
        amina = Person.objects.create_user("Amina", None)
        machine = owned(amina).machine
        run, other = opened(amina), opened(amina, slug="other")
        committed(run, (machine, 4), loss=5.5)
        committed(other, (machine, 40), loss=1.5)
        picture = selectors.run_picture(run)
        assert (picture.step, picture.loss, picture.samples, picture.people) == (1, 5.5, 4, 1)
        assert [(point.step, point.loss) for point in picture.points] == [(1, 5.5)]

    def test_the_timeline_has_the_newest_of_both_kinds(self, any_database: str, data_folder: Any) -> None:
        run, now = opened(Person.objects.create_user("Amina", None)), timezone.now()
        assert selectors.activity(run) == []
        lines = [("step", 90), *(("void", at) for at in range(80, 40, -1)), *(("step", at) for at in range(9))]
        for kind, age in lines:
            ActivityLine.objects.create(run=run, kind=kind, text=f"{age}", at=now - timedelta(minutes=age))
        found = [(line.kind, int(line.text)) for line in selectors.activity(run)]
        assert found == [("step", 0), *(("void", at) for at in range(41, 49))]
        ActivityLine.objects.filter(kind="step", at__gt=now - timedelta(minutes=60)).delete()
        assert [(line.kind, int(line.text)) for line in selectors.activity(run)][-1] == ("step", 90)

    def test_heldout_losses_are_thinned_but_keep_newest_and_best(self, any_database: str, data_folder: Any) -> None:
        run = opened(Person.objects.create_user("Amina", None))
        assert selectors.heldout_points(run) == []
        facts = {"run": run, "state_digest": "", "size": 1}
        Snapshot.objects.bulk_create(
            Snapshot(**facts, index=at, step=at, file=f"{at}", heldout_loss=1.0 if at in (4, 9) else 2.0)
            for at in range(1, 24)
        )
        assert [point.step for point in selectors.heldout_points(run)] == list(range(1, 24))
        assert [point.step for point in selectors.heldout_points(run, most=23)] == list(range(1, 24))
        assert [point.step for point in selectors.heldout_points(run, most=6)] == [3, 4, 7, 11, 15, 19, 23]

    def test_the_last_texts_are_shown_and_the_first(self, any_database: str, data_folder: Any) -> None:
        run = opened(Person.objects.create_user("Amina", None))
        assert selectors.written_at(run) == []
        for at in range(1, 7):
            words = [["", "words"]] if at != 5 else []
            Snapshot.objects.create(run=run, index=at, step=at, file=f"{at}", size=1, state_digest="", written=words)
            if at == 2:
                assert [each.step for each in selectors.written_at(run)] == [2, 1]
        assert [each.step for each in selectors.written_at(run)] == [6, 4, 3, 1]

    def test_the_list_shows_each_runs_own_loss(self, any_database: str, data_folder: Any) -> None:
        amina = Person.objects.create_user("Amina", None)
        machine = owned(amina).machine
        run, other = opened(amina), opened(amina, slug="other")
        committed(run, (machine, 4), loss=5.5)
        committed(run, (machine, 4), loss=5.0)
        committed(other, (machine, 40), loss=1.5)
        assert {line.run.slug: line.loss for line in selectors.run_lines(None)} == {"proverbs": 5.0, "other": 1.5}


@pytest.mark.parametrize("steps", [0, 1, 60])
def test_a_picture_takes_the_same_queries_at_any_length(
    run: Run, laptop: Owned, steps: int, django_assert_max_num_queries: Any
) -> None:
    for _ in range(steps):
        committed(run, (laptop.machine, 4))
    fresh = Run.objects.select_related(*BESIDE).get(pk=run.pk)
    with django_assert_max_num_queries(8):
        selectors.run_picture(fresh)


def test_a_point_has_what_its_entry_says(run: Run, laptop: Owned) -> None:
    for _ in range(2):
        committed(run, (laptop.machine, 4))
    run.log.filter(index=2).update(duration_s=0, learning_rate=3e-4, bytes_averaged=2**40)
    first, second = selectors.loss_points(run)
    assert first.samples_per_s == pytest.approx(4 / 1.5)
    assert first.machines == 1
    assert (first.learning_rate, first.bytes_averaged) == (None, None)
    assert second[3:] == (None, 1, 3e-4, 2**40)


def test_the_pace_is_that_of_an_ordinary_step() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [start + timedelta(seconds=at) for at in (0, 2, 4, 6, 8, 3600, 3602)]
    assert selectors.pace(moments[::-1]) == 2
    assert selectors.pace(moments[:1]) is None


def test_lists_go_on_behind_the_cursor(run: Run, laptop: Owned) -> None:
    for _ in range(3):
        committed(run, (laptop.machine, 4))
    assert [entry.index for entry in selectors.steps(run, after=1)] == [2, 3]
    first = selectors.ledger_rows(run)[0]
    assert [row.step for row in selectors.ledger_rows(run, after=first.pk)] == [2, 3]


def test_admissions_are_listed_only_in_a_run_by_invitation(organizer: Person, stranger: Person) -> None:
    """The organizer may make the run public later, but its guests have not agreed to be listed."""
    run = opened(organizer, visibility=Run.Visibility.PRIVATE)
    remove_member(member=add_member(run=run, name=stranger.username))
    assert [line.text for line in selectors.activity(run)] == ["Amina removed Noor.", "Amina added Noor."]
    change_visibility(run=run, visibility=Run.Visibility.PUBLIC)
    assert [line.text for line in selectors.activity(run)] == ["The run is public now."]


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
        """Rising training loss means that the model is diverging, which is another problem."""
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
    """A dataset of several files has a separate number of passes for each file."""
    run, dataset = Run(recipe=encode_recipe(replace(RECIPE, mix=mix)).decode()), Dataset(tokens=tokens)
    seen = RunProgress(run=run, dataset=dataset, points=[], samples=3 * RECIPE.samples_in(1000))
    assert seen.passes == (3.0 if is_known else None)

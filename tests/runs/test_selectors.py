"""What is read: the ledger's sums, the curve, the lists; in few queries at any length."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import Person
from runs import selectors
from runs.access import BESIDE
from runs.lifecycle.drafts import change_visibility
from runs.lifecycle.membership import add_member, remove_member
from runs.models import ActivityLine, Run, Snapshot
from tests.runs.factories import Owned, committed, opened, owned


class TestContract:
    """What every database must do alike."""

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
        assert found == [*(("step", at) for at in range(6)), *(("void", at) for at in range(41, 55))]
        ActivityLine.objects.filter(kind="step", at__gt=now - timedelta(minutes=60)).delete()
        assert [(line.kind, int(line.text)) for line in selectors.activity(run)][-1] == ("step", 90)

    def test_held_out_losses_are_thinned_and_keep_the_newest_and_the_best(
        self, any_database: str, data_folder: Any
    ) -> None:
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


def test_commits_leave_room_for_other_news(run: Run) -> None:
    ActivityLine.objects.create(run=run, kind="joined", text="Teo joined")
    for step in range(50):
        ActivityLine.objects.create(run=run, kind="step", text=f"step {step}")
    lines = [line.text for line in selectors.activity(run)]
    assert lines == [*(f"step {step}" for step in range(49, 43, -1)), "Teo joined"]


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


def test_who_was_let_in_or_removed_is_told_in_a_run_by_invitation_alone(organizer: Person, stranger: Person) -> None:
    """Its organizer may open such a run to everybody later; its guests have not agreed to be listed."""
    run = opened(organizer, visibility=Run.Visibility.PRIVATE)
    remove_member(member=add_member(run=run, name=stranger.username))
    assert [line.text for line in selectors.activity(run)] == ["Amina removed Noor.", "Amina added Noor."]
    change_visibility(run=run, visibility=Run.Visibility.PUBLIC)
    assert [line.text for line in selectors.activity(run)] == ["The run is public now."]

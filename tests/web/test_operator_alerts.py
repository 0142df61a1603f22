"""Alerts to operators about failing checks."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import Person
from jobs.queue import Kind
from jobs.runner import Later
from notices import services
from notices.models import Event, Mailbox, Notice, Way
from notices.words import words_of
from tests.jobs.requests import do
from web import health
from web.health import Checked, Finding, State
from web.operator_alerts import EVERY_S, note_changes

NOW = timezone.now().replace(hour=1)
BAD, GOOD = Finding(State.LOOK, "Only 3 GB are free."), Finding(State.OK, "9 GB are free.")


@pytest.fixture
def told(operator: Person, volunteer: Person) -> None:
    """Let an operator and another person hear of failing checks in the browser."""
    for person in (operator, volunteer):
        services.choose(person=person, wanted=[(Event.TROUBLE, Way.BROWSER)])


def at(minute: int, finding: Finding) -> list[str]:
    """Make the check in this minute. Return the headlines that operators got in all."""
    note_changes([Checked("disk", "Disk", finding)], NOW + timedelta(minutes=minute))
    rows = Notice.objects.order_by("pk")
    return [words_of(row.event, title=row.title, machine=row.machine).headline for row in rows]


FAILS, PASSES = "Disk needs an operator", "Disk is in order again"


def test_operators_hear_of_a_check_that_fails_for_a_minute(told: None, operator: Person) -> None:
    assert at(0, BAD) == []
    assert at(1, BAD) == [FAILS]
    assert [at(minute, BAD) for minute in range(2, 5)] == [[FAILS]] * 3
    notice = Notice.objects.get()
    assert (notice.person, notice.path, notice.title) == (operator, "/operator/", "Only 3 GB are free.")
    assert at(5, GOOD) == [FAILS, PASSES]
    assert at(6, GOOD) == [FAILS, PASSES]


def test_a_check_that_fails_once_is_no_news(told: None) -> None:
    for minute in range(0, 10, 2):
        at(minute, BAD)
        assert at(minute + 1, GOOD) == []


def test_a_check_that_comes_and_goes_is_told_once_an_hour(told: None) -> None:
    for minute in range(50):
        found = at(minute, BAD if minute % 5 < 3 else GOOD)
    assert found == [FAILS, PASSES]
    assert at(59, BAD) == [FAILS, PASSES]
    assert at(61, BAD) == [FAILS, PASSES, FAILS], "it still fails after the hour"


@pytest.mark.parametrize("state", [State.PENDING, State.ABSENT])
def test_what_is_unknown_or_not_set_up_is_no_failure(told: None, state: State) -> None:
    assert [at(minute, Finding(state, "")) for minute in range(3)] == [[]] * 3


def test_a_check_that_is_pending_changes_nothing(told: None) -> None:
    at(0, BAD)
    at(1, Finding(State.PENDING, ""))
    assert at(2, BAD) == [FAILS]


def test_the_job_makes_all_checks_each_minute(told: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECKS", [health.Check("disk", "Disk", lambda: BAD)])
    assert do(Kind.WATCH_CHECKS) == Later(EVERY_S)
    assert Notice.objects.count() == 0


def test_mail_waits_for_an_address(operator: Person, settings: Any) -> None:
    services.choose(person=operator, wanted=[(Event.TROUBLE, way) for way in Way])
    at(0, BAD)
    at(1, BAD)
    assert set(Notice.objects.values_list("way", flat=True)) == {Way.BROWSER}
    Mailbox.objects.create(person=operator, address="ines@example.org", confirmed_at=NOW)
    at(2, GOOD)
    assert Notice.objects.filter(way=Way.EMAIL).count() == 1

"""Notices as rows: their recipients, limits, withdrawal and expiry."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from accounts.models import Person
from jobs.models import Job
from jobs.queue import Kind
from notices import outbox, services
from notices.models import CHOSEN, Choice, Event, Mailbox, Notice, Way, Webhook
from tests.jobs.requests import requested

NOW = timezone.now()
LATER = timedelta(minutes=5)


def note(person: Person, event: Event = Event.FINISHED, *, about: str = "run", **facts: Any) -> int:
    return outbox.note(event, [person.pk], about=about, title="Proverbs", path="/runs/proverbs/", **facts)


def choose(person: Person, *ways: Way, event: Event = Event.FINISHED) -> None:
    services.choose(person=person, wanted=[(event, way) for way in ways])


@pytest.fixture
def reached(volunteer: Person) -> Person:
    Mailbox.objects.create(person=volunteer, address="teo@example.org", confirmed_at=NOW)
    Webhook.objects.create(
        person=volunteer, sealed_address="", sealed_secret="", host="hook.example", service="generic"
    )
    choose(volunteer, *Way)
    return volunteer


def test_by_default_nobody_is_told_of_anything(volunteer: Person) -> None:
    assert {event: note(volunteer, event) for event in CHOSEN} == dict.fromkeys(CHOSEN, 0)
    assert not Notice.objects.exists()


def test_those_who_chose_are_told_by_the_ways_they_chose(reached: Person, stranger: Person) -> None:
    choose(stranger, Way.BROWSER, event=Event.NEEDED)
    told = outbox.note(Event.FINISHED, Person.objects.all(), about="run", title="Proverbs", path="/runs/proverbs/")
    assert told == 3
    assert set(Notice.objects.values_list("person", "way")) == {(reached.pk, way) for way in Way}


def test_ways_that_lead_nowhere_are_left_out(reached: Person) -> None:
    Mailbox.objects.update(confirmed_at=None)
    Webhook.objects.update(off_at=NOW)
    assert note(reached) == 1
    assert Notice.objects.get().way == Way.BROWSER


def test_whose_account_is_closed_is_told_nothing(reached: Person) -> None:
    Person.objects.filter(pk=reached.pk).update(is_active=False)
    assert note(reached) == 0


def test_the_same_is_told_once_a_day(reached: Person) -> None:
    choose(reached, Way.BROWSER)
    for _ in range(3):
        note(reached, now=NOW)
    note(reached, about="another", now=NOW)
    assert Notice.objects.count() == 2
    note(reached, now=NOW + timedelta(days=1))
    assert Notice.objects.count() == 3


def test_they_go_with_the_transaction(reached: Person) -> None:
    with transaction.atomic():
        note(reached)
        transaction.set_rollback(True)
    assert not Notice.objects.exists()


def test_their_number_is_bounded_for_each_person_event_and_way(reached: Person, monkeypatch: Any) -> None:
    monkeypatch.setattr(outbox, "MOST_A_DAY", 3)
    services.choose(person=reached, wanted=[(event, Way.EMAIL) for event in CHOSEN])
    for place in range(5):
        note(reached, about=f"run {place}", now=NOW)
    assert Notice.objects.count() == 3
    assert note(reached, Event.NEEDED, now=NOW) == 1
    assert note(reached, about="run 9", now=NOW + timedelta(days=1)) == 1


@pytest.mark.parametrize("people", [2, 40])
def test_many_people_are_a_few_questions(db: None, people: int) -> None:
    everybody = [Person.objects.create_user(f"person{place}") for place in range(people)]
    for person in everybody:
        choose(person, Way.BROWSER)
    with CaptureQueriesContext(connection) as asked:
        outbox.note(Event.FINISHED, Person.objects.all(), about="run", title="Proverbs", path="/")
    assert len(asked) <= 5
    assert Notice.objects.count() == people


def test_what_is_not_so_any_more_is_not_told(reached: Person) -> None:
    note(reached, after=LATER, now=NOW)
    note(reached, about="another", after=LATER, now=NOW)
    outbox.withdraw(Event.FINISHED, ["run"], now=NOW + LATER / 2)
    assert set(Notice.objects.values_list("about", flat=True)) == {"another"}


def test_what_was_told_already_stays_told(reached: Person) -> None:
    note(reached, after=LATER, now=NOW)
    outbox.withdraw(Event.FINISHED, ["run"], now=NOW + LATER)
    assert Notice.objects.count() == 3
    Notice.objects.update(tries=1, due_at=NOW + 2 * LATER)  # as if a worker were sending the notice
    outbox.withdraw(Event.FINISHED, ["run"], now=NOW + LATER)
    assert Notice.objects.count() == 3


def test_a_run_that_ended_is_not_waited_for(reached: Person) -> None:
    services.choose(person=reached, wanted=[(event, Way.BROWSER) for event in CHOSEN])
    note(reached, Event.NEEDED, about="aa", after=LATER)
    note(reached, Event.STOPPED, about="aa/bb", after=LATER)
    note(reached, Event.STOPPED, about="cc/bb", after=LATER)
    outbox.withdraw_all("aa")
    assert set(Notice.objects.values_list("about", flat=True)) == {"cc/bb"}


def test_notice_is_due_at_its_time_and_a_browser_notice_never(reached: Person) -> None:
    note(reached, after=LATER, now=NOW)
    assert not outbox.due(NOW + LATER / 2).exists()
    assert {notice.way for notice in outbox.due(NOW + LATER)} == {Way.EMAIL, Way.WEBHOOK}


@pytest.mark.parametrize("way", [Way.EMAIL, Way.WEBHOOK])
def test_a_notice_requests_its_delivery(reached: Person, way: Way) -> None:
    choose(reached, way)
    note(reached, after=LATER)
    assert requested() == [(Kind.DELIVER_NOTICES, "")]
    assert NOW < Job.objects.get().due - LATER < timezone.now() + timedelta(seconds=1)
    services.send_test(person=reached, way=way)
    assert Job.objects.get().due <= timezone.now() + timedelta(seconds=1), "the earlier notice decides"


def test_a_browser_notice_requests_no_delivery(reached: Person) -> None:
    choose(reached, Way.BROWSER)
    assert note(reached) == 1
    services.send_test(person=reached, way=Way.BROWSER)
    assert requested() == []
    assert outbox.next_due() is None


def test_the_next_notice_is_the_first_that_waits(reached: Person) -> None:
    note(reached, after=2 * LATER, now=NOW)
    note(reached, about="another", after=LATER, now=NOW)
    assert outbox.next_due() == NOW + LATER
    Notice.objects.filter(about="another").update(state=Notice.State.SENT)
    assert outbox.next_due() == NOW + 2 * LATER


def test_a_browser_shows_what_is_due_for_an_hour(reached: Person, stranger: Person) -> None:
    note(reached, after=LATER, now=NOW)
    assert outbox.for_browser(reached.pk, NOW) == []
    (shown,) = outbox.for_browser(reached.pk, NOW + LATER)
    assert shown.title == "Proverbs"
    assert outbox.for_browser(stranger.pk, NOW + LATER) == []
    assert outbox.for_browser(reached.pk, NOW + LATER + outbox.FRESH) == []


def test_a_browser_is_told_of_a_few_at_once_in_order(reached: Person, monkeypatch: Any) -> None:
    monkeypatch.setattr(outbox, "MOST_SHOWN", 2)
    for place in range(3):
        note(reached, about=f"{place}", now=NOW + timedelta(seconds=place))
    shown = outbox.for_browser(reached.pk, NOW + LATER)
    assert [notice.about for notice in shown] == ["1", "2"]


def test_they_are_deleted_after_a_week(reached: Person) -> None:
    note(reached, now=NOW)
    outbox.forget_old(NOW + outbox.KEPT)
    assert Notice.objects.count() == 3
    outbox.forget_old(NOW + outbox.KEPT + timedelta(seconds=1))
    assert not Notice.objects.exists()
    assert Choice.objects.exists()

"""Delivery of due notices: each is sent once, retried with backoff, and given up after a day."""

import json
import smtplib
import threading
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.core import mail as django_mail
from django.core.mail import EmailMessage, EmailMultiAlternatives
from django.utils import timezone

from accounts.models import Person
from jobs.queue import Kind
from jobs.runner import Later
from notices import delivery, outbox, posting, services
from notices.delivery import FIRST_RETRY, GIVE_UP, LONGEST_RETRY, deliver_due, retry_in
from notices.models import CHOSEN, Event, Mailbox, Notice, Way, Webhook
from notices.words import SIGNATURE
from tests.jobs.requests import do
from tests.notices.webhook_double import WebhookDouble, status


class Clock:
    def __init__(self) -> None:
        self.now = timezone.now()

    def __call__(self) -> datetime:
        return self.now

    def forward(self, by: timedelta) -> None:
        self.now += by


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hooked(volunteer: Person, double: WebhookDouble) -> Person:
    services.save_webhook(person=volunteer, address=double.address())
    services.choose(person=volunteer, wanted=[(event, Way.WEBHOOK) for event in CHOSEN])
    return volunteer


@pytest.fixture
def mailed(volunteer: Person, sends_mail: None) -> Person:
    Mailbox.objects.create(person=volunteer, address="teo@example.org", confirmed_at=timezone.now())
    services.choose(person=volunteer, wanted=[(event, Way.EMAIL) for event in CHOSEN])
    return volunteer


def note(person: Person, clock: Clock, *, about: str = "run", title: str = "Proverbs") -> Notice:
    outbox.note(Event.FINISHED, [person.pk], about=about, title=title, path="/runs/proverbs/", now=clock.now)
    return Notice.objects.get(about=about)


class TestWebhooks:
    def test_it_arrives_signed_and_once(self, hooked: Person, double: WebhookDouble, clock: Clock) -> None:
        row = note(hooked, clock)
        assert [deliver_due(clock), deliver_due(clock)] == [1, 0]
        (request,) = double.posted
        assert request.json["id"] == row.pk
        assert request.json["run"] == "Proverbs"
        assert request.json["address"].endswith("/runs/proverbs/")
        assert SIGNATURE in request.headers
        row.refresh_from_db()
        assert (row.state, row.sent_at, row.tries) == (Notice.State.SENT, clock.now, 1)

    def test_failing_server_is_asked_less_often_then_switched_off(
        self, hooked: Person, double: WebhookDouble, clock: Clock, sends_mail: None
    ) -> None:
        Mailbox.objects.create(person=hooked, address="teo@example.org", confirmed_at=clock.now)
        services.choose(person=hooked, wanted=[(Event.FINISHED, Way.WEBHOOK), (Event.STOPPED, Way.EMAIL)])
        double.answer = status(500)
        row, began = note(hooked, clock), clock.now
        tried: list[timedelta] = []
        while Webhook.objects.get().off_at is None:
            before = double.connections
            deliver_due(clock)
            assert double.connections == before + 1
            tried.append(clock.now - began)
            row.refresh_from_db()
            clock.now = max(clock.now, row.due_at)
        pauses = [after - before for before, after in pairwise(tried)]
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == (FIRST_RETRY, LONGEST_RETRY)
        assert tried[-1] >= GIVE_UP > tried[-2]
        assert len(tried) < 60
        assert (row.state, row.problem) == (Notice.State.FAILED, "It answered 500.")
        deliver_due(clock)
        (message,) = django_mail.outbox
        assert message.subject == "Your webhook was switched off"
        assert "It had been failing for a day. It answered 500." in message.body
        assert outbox.note(Event.FINISHED, [hooked.pk], about="next", path="/") == 0, "nothing is written for it"

    def test_what_waits_behind_one_that_fails_waits_with_it(
        self, hooked: Person, double: WebhookDouble, clock: Clock
    ) -> None:
        double.answer = "close"
        rows = [note(hooked, clock, about=f"{place}") for place in range(5)]
        deliver_due(clock)
        assert double.connections == 1
        assert {Notice.objects.get(pk=row.pk).due_at for row in rows} == {clock.now + FIRST_RETRY}

    def test_one_that_is_well_again_gets_all_of_it_in_order(
        self, hooked: Person, double: WebhookDouble, clock: Clock
    ) -> None:
        double.answer = status(503)
        rows = [note(hooked, clock, about=f"{place}") for place in range(3)]
        deliver_due(clock)
        double.answer = status(204)
        clock.forward(FIRST_RETRY)
        assert deliver_due(clock) == 3
        assert [request.json["id"] for request in double.posted[1:]] == [row.pk for row in rows]
        hook = Webhook.objects.get()
        assert (hook.failing_since, hook.problem) == (None, "")

    def test_as_long_as_it_asks_for(self, hooked: Person, double: WebhookDouble, clock: Clock) -> None:
        double.answer = status(429, "Retry-After: 600")
        row = note(hooked, clock)
        deliver_due(clock)
        row.refresh_from_db()
        assert row.due_at == clock.now + timedelta(seconds=600)
        double.answer = status(429, "Retry-After: 80000")
        clock.forward(timedelta(seconds=600))
        deliver_due(clock)
        row.refresh_from_db()
        assert row.due_at == clock.now + LONGEST_RETRY, "within bounds"

    def test_a_failure_long_after_the_last_is_the_first_of_its_kind(
        self, hooked: Person, double: WebhookDouble, clock: Clock
    ) -> None:
        double.answer = status(500)
        note(hooked, clock)
        deliver_due(clock)
        Notice.objects.all().delete()
        clock.forward(3 * GIVE_UP)
        note(hooked, clock)
        deliver_due(clock)
        hook = Webhook.objects.get()
        assert (hook.off_at, hook.failing_since) == (None, clock.now)

    def test_a_redirect_is_a_failure(self, hooked: Person, double: WebhookDouble, clock: Clock) -> None:
        double.answer = status(302, f"Location: {double.address('/inner')}")
        row = note(hooked, clock)
        deliver_due(clock)
        row.refresh_from_db()
        assert row.problem == "It answered 302. Redirects are not followed."
        assert [request.path for request in double.posted] == ["/hook?key=7"]

    def test_an_address_that_leads_inward_by_now(
        self, hooked: Person, double: WebhookDouble, clock: Clock, settings: Any
    ) -> None:
        settings.DEBUG = False
        row = note(hooked, clock)
        deliver_due(clock)
        row.refresh_from_db()
        assert row.state == Notice.State.WAITING
        assert row.problem
        assert double.connections == 0

    def test_a_secret_of_the_site_that_has_changed(
        self, hooked: Person, double: WebhookDouble, clock: Clock, settings: Any
    ) -> None:
        settings.SECRET_KEY = "another"
        row = note(hooked, clock)
        deliver_due(clock)
        row.refresh_from_db()
        assert "Save it again" in row.problem

    def test_what_is_removed_is_not_sent(self, hooked: Person, double: WebhookDouble, clock: Clock) -> None:
        row = note(hooked, clock)
        Webhook.objects.all().delete()
        deliver_due(clock)
        row.refresh_from_db()
        assert row.state == Notice.State.FAILED
        assert double.connections == 0

    def test_whose_account_is_closed_gets_nothing(self, hooked: Person, double: WebhookDouble, clock: Clock) -> None:
        note(hooked, clock)
        Person.objects.filter(pk=hooked.pk).update(is_active=False)
        assert deliver_due(clock) == 0
        assert double.connections == 0

    def test_one_that_fails_keeps_nobody_else_waiting(
        self, hooked: Person, stranger: Person, double: WebhookDouble, clock: Clock
    ) -> None:
        with WebhookDouble() as well:
            services.save_webhook(person=stranger, address=well.address())
            services.choose(person=stranger, wanted=[(Event.FINISHED, Way.WEBHOOK)])
            double.answer = "close"
            people = [hooked.pk, stranger.pk]
            outbox.note(Event.FINISHED, people, about="run", path="/", now=clock.now)
            assert deliver_due(clock) == 1
            assert len(well.posted) == 1


class TestJob:
    def test_it_sends_what_is_due_and_ends(self, hooked: Person, double: WebhookDouble, clock: Clock) -> None:
        note(hooked, clock)
        assert do(Kind.DELIVER_NOTICES) is None
        assert len(double.posted) == 1

    def test_it_comes_again_when_the_next_notice_is_due(
        self, hooked: Person, double: WebhookDouble, clock: Clock
    ) -> None:
        double.answer = status(500)
        note(hooked, clock)
        later = do(Kind.DELIVER_NOTICES)
        assert isinstance(later, Later)
        assert later.after_s == pytest.approx(FIRST_RETRY.total_seconds(), abs=30)
        assert later.fault == "", "the row has it"

    def test_notice_of_a_dead_worker_is_resent_under_the_same_id(
        self, hooked: Person, double: WebhookDouble, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        note(hooked, clock)
        with monkeypatch.context() as context:
            context.setattr(delivery, "sent", dies)
            with pytest.raises(KeyboardInterrupt):
                deliver_due(clock)
        assert deliver_due(clock) == 1
        first, second = (request.json["id"] for request in double.posted)
        assert first == second


def html_of(message: EmailMessage) -> str:
    assert isinstance(message, EmailMultiAlternatives)
    ((html, kind),) = message.alternatives
    assert kind == "text/html"
    return str(html)


class TestMail:
    def test_it_is_text_and_html_with_a_link_that_ends_it(self, mailed: Person, clock: Clock) -> None:
        row = note(mailed, clock)
        assert deliver_due(clock) == 1
        (message,) = django_mail.outbox
        assert (message.to, message.from_email) == (["teo@example.org"], "hands@example.org")
        assert message.subject == "“Proverbs” is finished"
        assert message.content_subtype == "plain"
        stop = message.extra_headers["List-Unsubscribe"].strip("<>")
        assert stop.startswith("https://hands.example/account/notifications/stop/")
        assert message.extra_headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
        assert "https://hands.example/runs/proverbs/\n" in message.body
        assert message.body.rstrip().endswith(stop)
        assert message.message()["Message-ID"] == f"<notice-{row.pk}@hands.example>"
        html = html_of(message)
        assert 'href="https://hands.example/runs/proverbs/"' in html
        assert f'href="{stop}"' in html

    @pytest.mark.parametrize("title", ["Proverbs\r\nBcc: everybody@example.org", "\u202eProverbs\u200b", "<b>x</b>"])
    def test_a_name_adds_no_header_and_nothing_unseen(self, mailed: Person, clock: Clock, title: str) -> None:
        note(mailed, clock, title=title)
        assert deliver_due(clock) == 1
        (message,) = django_mail.outbox
        sent = message.message()
        assert sent["Bcc"] is None
        html = html_of(message)
        assert "\u202e" not in f"{message.subject}{message.body}{html}"
        assert "<b>" not in html
        assert message.recipients() == ["teo@example.org"]

    def test_unconfirmed_address_gets_only_the_question(
        self, volunteer: Person, sends_mail: None, clock: Clock
    ) -> None:
        services.save_address(person=volunteer, address="teo@example.org")
        services.choose(person=volunteer, wanted=[(Event.FINISHED, Way.EMAIL)])
        services.send_test(person=volunteer, way=Way.EMAIL)
        assert outbox.note(Event.FINISHED, [volunteer.pk], about="run", path="/") == 0
        clock.forward(timedelta(seconds=1))
        assert deliver_due(clock) == 1
        (message,) = django_mail.outbox
        assert message.subject == "Confirm your e-mail address"
        assert "List-Unsubscribe" not in message.extra_headers
        assert "/account/notifications/confirm/" in message.body

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (smtplib.SMTPRecipientsRefused({}), "The mail server refused it"),
            (ConnectionRefusedError(), "The mail server cannot be reached"),
            (RuntimeError("a bug"), "Something went wrong"),
        ],
    )
    def test_absent_mail_server_is_retried_and_given_up_after_a_day(
        self, mailed: Person, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
    ) -> None:
        def away(*_: Any, **__: Any) -> None:
            raise error

        row = note(mailed, clock)
        with monkeypatch.context() as context:
            context.setattr(django_mail.EmailMessage, "send", away)
            deliver_due(clock)
            row.refresh_from_db()
            assert words in row.problem
            assert row.due_at == clock.now + FIRST_RETRY
            clock.forward(GIVE_UP)
            deliver_due(clock)
        row.refresh_from_db()
        assert row.state == Notice.State.FAILED

    def test_without_a_mail_server_nothing_is_sent(self, mailed: Person, clock: Clock, settings: Any) -> None:
        settings.SENDS_MAIL = False
        note(mailed, clock)
        assert deliver_due(clock) == 0
        assert django_mail.outbox == []


@pytest.mark.parametrize(
    ("failing", "pause"),
    [
        (timedelta(0), FIRST_RETRY),
        (timedelta(minutes=7), timedelta(minutes=7)),
        (timedelta(hours=9), LONGEST_RETRY),
    ],
)
def test_the_pause_is_as_long_as_it_has_been_failing(failing: timedelta, pause: timedelta) -> None:
    assert retry_in(failing) == pause


def test_a_batch_is_sent_at_once_by_a_few_threads(
    db: None, double: WebhookDouble, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(delivery.AT_ONCE)
    post = posting.post

    def slow(*args: Any) -> Any:
        together.wait(60)
        return post(*args)

    monkeypatch.setattr(posting, "post", slow)
    people = [Person.objects.create_user(f"person{place}") for place in range(delivery.AT_ONCE)]
    for person in people:
        services.save_webhook(person=person, address=double.address())
        services.choose(person=person, wanted=[(Event.FINISHED, Way.WEBHOOK)])
    outbox.note(Event.FINISHED, [person.pk for person in people], about="run", path="/", now=clock.now)
    assert deliver_due(clock) == len(people)
    assert len({json.loads(request.body)["id"] for request in double.posted}) == len(people)

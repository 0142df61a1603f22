"""The page on which people choose their notifications, and the links in e-mails."""

import re
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from accounts.models import Person
from notices import mail, outbox, selectors, services
from notices.mail import CONFIRM, STOP
from notices.models import CHOSEN, Event, Mailbox, Notice, Way, Webhook
from tests.web.browsing import as_, page
from web.pages.accounts.login import operator_secret

PAGE = "/account/notifications/"
EMAIL, WEBHOOK, NEW = f"{PAGE}email/", f"{PAGE}webhook/", f"{PAGE}new.json"
HOOK = "https://hook.example/private"
DISCORD = "https://discord.com/api/webhooks/1/private"


@pytest.fixture
def sends_mail(settings: Any) -> None:
    settings.SENDS_MAIL = True
    settings.PUBLIC_URL = "http://testserver"


@pytest.fixture
def mailbox(volunteer: Person, sends_mail: None) -> Mailbox:
    return services.save_address(person=volunteer, address="teo@example.org")


@pytest.fixture
def confirmed(mailbox: Mailbox) -> Mailbox:
    Mailbox.objects.update(confirmed_at=timezone.now())
    return mailbox


def boxes(text: str) -> dict[str, bool]:
    found = re.findall(r'<input type="checkbox" name="wanted" value="([^"]+)"( checked)?>', text)
    return {value: bool(checked) for value, checked in found}


class TestChoices:
    def test_choices_start_empty_and_dead_ways_are_not_offered(self, volunteer: Person) -> None:
        text = page(as_(volunteer).get(PAGE))
        assert boxes(text) == {f"{event}-browser": False for event in CHOSEN}
        assert "E-mail" not in text

    def test_what_is_chosen_is_kept(self, volunteer: Person, confirmed: Mailbox) -> None:
        services.save_webhook(person=volunteer, address=HOOK)
        client = as_(volunteer)
        wanted = ["needed-email", "stopped-webhook", "finished-browser", "test-email", "needed-pigeon", "x"]
        assert client.post(PAGE, {"wanted": wanted})["Location"] == f"{PAGE}?done=saved"
        ticked = {value for value, is_ticked in boxes(page(client.get(f"{PAGE}?done=saved"))).items() if is_ticked}
        assert ticked == set(wanted[:3])
        client.post(PAGE, {})
        assert selectors.choices_of(volunteer) == set()

    def test_what_is_not_offered_now_stays_as_it_was(self, volunteer: Person, confirmed: Mailbox) -> None:
        services.choose(person=volunteer, wanted=[(Event.NEEDED, Way.EMAIL)])
        services.save_address(person=volunteer, address="else@example.org")
        as_(volunteer).post(PAGE, {"wanted": ["finished-browser"]})
        assert selectors.choices_of(volunteer) == {(Event.NEEDED, Way.EMAIL), (Event.FINISHED, Way.BROWSER)}

    def test_operators_hear_of_failing_checks_unless_they_untick_it(self, volunteer: Person, settings: Any) -> None:
        secret = operator_secret()
        answer = Client().post(f"/operator/{secret}/", {"username": "Ines", "password": "seven calm otters"})
        assert answer.status_code == 302
        operator = Person.objects.get(username="Ines")
        assert selectors.choices_of(operator) == {(Event.TROUBLE, way) for way in Way}
        assert boxes(page(as_(operator).get(PAGE)))["trouble-browser"]
        as_(operator).post(PAGE, {})
        assert (Event.TROUBLE, Way.BROWSER) not in selectors.choices_of(operator)
        assert "trouble-browser" not in boxes(page(as_(volunteer).get(PAGE)))

    def test_operators_from_before_are_asked_to_be_told(self, operator: Person, volunteer: Person) -> None:
        import_module("notices.migrations.0002_trouble").choose_for_operators(apps, None)
        assert selectors.choices_of(operator) == {(Event.TROUBLE, way) for way in Way}
        assert selectors.choices_of(volunteer) == set()

    def test_the_account_page_leads_there(self, volunteer: Person) -> None:
        assert f'href="{PAGE}"' in page(as_(volunteer).get("/account/"))


class TestEmail:
    def test_an_address_is_asked_before_it_is_used(self, volunteer: Person, sends_mail: None) -> None:
        client = as_(volunteer)
        answer = client.post(EMAIL, {"address": "teo@example.org"}, follow=True)
        assert "We sent a link to" in page(answer)
        assert Notice.objects.get().event == Event.CONFIRM
        assert "needed-email" not in boxes(page(answer))

    def test_where_the_site_sends_none_none_is_taken(self, volunteer: Person) -> None:
        assert as_(volunteer).post(EMAIL, {"address": "teo@example.org"}).status_code == 409
        assert not Mailbox.objects.exists()

    @pytest.mark.parametrize("address", ["", "teo", "teo@example.org, noor@example.org"])
    def test_what_is_no_address(self, volunteer: Person, sends_mail: None, address: str) -> None:
        answer = as_(volunteer).post(EMAIL, {"address": address})
        assert answer.status_code == 400
        assert 'role="alert"' in page(answer)
        assert not Notice.objects.exists()

    def test_nobody_has_a_stranger_mailed_again_and_again(
        self, volunteer: Person, stranger: Person, sends_mail: None, settings: Any
    ) -> None:
        settings.RATES = settings.RATES | {"e-mails to one address": (2, 86_400), "e-mail addresses": (3, 86_400)}
        cache.clear()
        tries = [(volunteer, "victim@example.org"), (stranger, "VICTIM@example.org"), (stranger, "victim@example.org")]
        assert [as_(who).post(EMAIL, {"address": to}).status_code for who, to in tries] == [302, 302, 429]
        others = [f"{place}@example.org" for place in range(3)]
        assert [as_(volunteer).post(EMAIL, {"address": to}).status_code for to in others] == [302, 302, 429]

    def test_the_link_confirms_by_a_button_without_a_log_in(self, mailbox: Mailbox) -> None:
        address = mail.link(mailbox, CONFIRM).removeprefix("http://testserver")
        client = Client()
        assert "Teo" in page(client.get(address))
        mailbox.refresh_from_db()
        assert mailbox.confirmed_at is None, "programs that read e-mails follow links"
        assert "Confirmed" in page(client.post(address))
        mailbox.refresh_from_db()
        assert mailbox.confirmed_at is not None

    def test_a_test_is_sent_and_counted(self, volunteer: Person, confirmed: Mailbox, settings: Any) -> None:
        settings.RATES = settings.RATES | {"tests of notifications": (1, 3600)}
        cache.clear()
        client = as_(volunteer)
        assert "A test is on its way" in page(client.post(EMAIL, {"test": "1"}, follow=True))
        assert client.post(WEBHOOK, {"test": "1"}).status_code == 429
        assert [notice.way for notice in Notice.objects.filter(event=Event.TEST)] == [Way.EMAIL]

    def test_it_is_removed(self, volunteer: Person, confirmed: Mailbox) -> None:
        as_(volunteer).post(EMAIL, {"remove": "1"})
        assert not Mailbox.objects.exists()


class TestTheLinkThatEndsIt:
    @pytest.fixture
    def address(self, volunteer: Person, confirmed: Mailbox) -> str:
        services.choose(person=volunteer, wanted=[(Event.NEEDED, Way.EMAIL)])
        return mail.link(confirmed, STOP).removeprefix("http://testserver")

    def test_one_post_ends_it_without_cookie_or_token(self, volunteer: Person, address: str) -> None:
        """Mail programs unsubscribe with a single POST (RFC 8058)."""
        client = Client(enforce_csrf_checks=True)
        answer = client.post(address, {"List-Unsubscribe": "One-Click"})
        assert answer.status_code == 200
        assert "No more notifications will be sent" in page(answer)
        assert selectors.choices_of(volunteer) == set()

    def test_to_look_at_it_ends_nothing(self, volunteer: Person, address: str) -> None:
        assert "Stop all e-mail?" in page(Client().get(address))
        assert selectors.choices_of(volunteer)


class TestWebhook:
    def test_its_secret_is_shown_once_and_its_address_never(self, volunteer: Person) -> None:
        client = as_(volunteer)
        text = page(client.post(WEBHOOK, {"address": HOOK}))
        found = re.search(r'id="webhook-secret">(mhs_[\w-]{40,})<', text)
        assert found is not None
        again = page(client.get(PAGE))
        assert found[1] not in again
        assert "private" not in again
        assert "hook.example" in again

    def test_a_service_needs_no_secret(self, volunteer: Person) -> None:
        text = page(as_(volunteer).post(WEBHOOK, {"address": DISCORD}))
        assert "webhook-secret" not in text
        assert "in Discord's format" in text

    @pytest.mark.parametrize(
        "address", ["", "http://hook.example/", "https://10.0.0.1/", f"https://x.example/{'a' * 600}"]
    )
    def test_what_is_refused_is_told_beside_the_field(self, volunteer: Person, address: str) -> None:
        answer = as_(volunteer).post(WEBHOOK, {"address": address})
        assert answer.status_code == 400
        assert 'role="alert"' in page(answer)
        assert not Webhook.objects.exists()

    def test_how_it_fares_is_told(self, volunteer: Person) -> None:
        client = as_(volunteer)
        services.save_webhook(person=volunteer, address=HOOK)
        Webhook.objects.update(failing_since=timezone.now(), problem="It answered 500.")
        assert "Failing since" in page(client.get(PAGE))
        Webhook.objects.update(off_at=timezone.now())
        text = page(client.get(PAGE))
        assert "Switched off on" in text
        assert "It answered 500." in text
        assert "Switch on again" in text
        assert "Switched on again." in page(client.post(WEBHOOK, {"on": "1"}, follow=True))
        assert Webhook.objects.get().off_at is None

    def test_it_is_removed(self, volunteer: Person) -> None:
        services.save_webhook(person=volunteer, address=HOOK)
        as_(volunteer).post(WEBHOOK, {"remove": "1"})
        assert not Webhook.objects.exists()


class TestBrowser:
    def test_who_chose_it_is_told_what_is_new(self, volunteer: Person) -> None:
        services.choose(person=volunteer, wanted=[(Event.FINISHED, Way.BROWSER)])
        now = timezone.now()
        outbox.note(Event.FINISHED, [volunteer.pk], about="run", title="<b>\u202eA", path="/runs/a/", now=now)
        outbox.note(Event.FINISHED, [volunteer.pk], about="b", path="/", now=now, after=timedelta(minutes=5))
        answer = as_(volunteer).get(NEW)
        (told,) = answer.json()["notices"]
        assert (told["headline"], told["path"]) == ("“<b>A” is finished", "/runs/a/")
        assert "no-store" in answer["Cache-Control"]

    def test_nobody_else_is(self, volunteer: Person, stranger: Person) -> None:
        services.choose(person=stranger, wanted=[(Event.FINISHED, Way.BROWSER), (Event.NEEDED, Way.EMAIL)])
        outbox.note(Event.FINISHED, [stranger.pk], about="run", path="/")
        nothing = {"wanted": False, "notices": []}
        assert as_(volunteer).get(NEW).json() == nothing
        assert Client().get(NEW).json() == nothing
        services.choose(person=volunteer, wanted=[(Event.FINISHED, Way.BROWSER)])
        assert as_(volunteer).get(NEW).json() == {"wanted": True, "notices": []}


def test_the_last_notices_are_told_with_how_they_went(volunteer: Person) -> None:
    services.save_webhook(person=volunteer, address=HOOK)
    for _ in range(selectors.RECENT + 3):
        services.send_test(person=volunteer, way=Way.WEBHOOK)
    last = Notice.objects.latest("pk")
    title, problem = "<b>words</b>", "<i>It answered 500.</i>"
    failed = {"event": Event.FINISHED, "title": title, "state": Notice.State.FAILED, "problem": problem}
    Notice.objects.filter(pk=last.pk).update(**failed)
    text = page(as_(volunteer).get(PAGE))
    assert text.count("A test from Manyhands") == selectors.RECENT - 1
    assert f"<bdi>“{escape(title)}” is finished</bdi>" in text
    assert f"Webhook, not sent. {escape(problem)}" in text

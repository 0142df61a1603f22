"""People's choices: mail addresses, webhooks, unsubscribe links, deletion and export."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from accounts.keys import unseal
from accounts.models import Person
from notices import mail, selectors, services
from notices.addresses import Refused
from notices.mail import CONFIRM, CONFIRM_S, STOP
from notices.models import Choice, Event, Mailbox, Notice, Way, Webhook
from peer_agent.protocol.errors import Problem

HOOK = "https://hook.example/secret-path?key=7"


def token(mailbox: Mailbox, purpose: str) -> str:
    return mail.link(mailbox, purpose).rstrip("/").rpartition("/")[2]


@pytest.fixture
def mailbox(volunteer: Person) -> Mailbox:
    return services.save_address(person=volunteer, address=" teo@example.org ")


@pytest.mark.parametrize(
    "address", ["", "teo", "teo@", "teo@example.org\nBcc: x@example.org", f"{'a' * 250}@example.org"]
)
def test_what_is_no_address(volunteer: Person, address: str) -> None:
    with pytest.raises(ValidationError):
        services.save_address(person=volunteer, address=address)


def test_an_address_is_confirmed_by_the_link_that_was_sent_there(mailbox: Mailbox) -> None:
    assert (mailbox.address, mailbox.confirmed_at) == ("teo@example.org", None)
    services.confirm_address(token=token(mailbox, CONFIRM))
    mailbox.refresh_from_db()
    assert mailbox.confirmed_at is not None
    services.confirm_address(token=token(mailbox, CONFIRM))


@pytest.mark.parametrize("wrong", ["abc", "", "a:b:c"])
def test_a_link_that_was_not_made_here(mailbox: Mailbox, wrong: str) -> None:
    for use in (services.confirm_address, services.stop_mail):
        with pytest.raises(Problem, match="E358"):
            use(token=wrong)


def test_a_link_is_good_for_what_it_was_made_for_alone(mailbox: Mailbox) -> None:
    with pytest.raises(Problem, match="E358"):
        services.confirm_address(token=token(mailbox, STOP))
    with pytest.raises(Problem, match="E358"):
        services.stop_mail(token=token(mailbox, CONFIRM))


def test_a_link_to_confirm_works_for_a_day(mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    old = token(mailbox, CONFIRM)
    now = timezone.now().timestamp()
    monkeypatch.setattr("django.core.signing.time.time", lambda: now + CONFIRM_S + 60)
    with pytest.raises(Problem, match="E358"):
        services.confirm_address(token=old)


def test_a_link_to_one_address_confirms_no_other(mailbox: Mailbox, volunteer: Person) -> None:
    old = token(mailbox, CONFIRM)
    services.save_address(person=volunteer, address="else@example.org")
    with pytest.raises(Problem, match="E358"):
        services.confirm_address(token=old)
    assert Mailbox.objects.get().confirmed_at is None


def test_another_address_has_to_be_confirmed_anew(mailbox: Mailbox, volunteer: Person) -> None:
    services.confirm_address(token=token(mailbox, CONFIRM))
    services.save_address(person=volunteer, address="else@example.org")
    assert Mailbox.objects.get().confirmed_at is None


def test_whose_account_is_closed_confirms_nothing(mailbox: Mailbox, volunteer: Person) -> None:
    Person.objects.filter(pk=volunteer.pk).update(is_active=False)
    with pytest.raises(Problem, match="E358"):
        services.confirm_address(token=token(mailbox, CONFIRM))


def test_the_link_below_an_e_mail_ends_e_mail_and_nothing_else(mailbox: Mailbox, volunteer: Person) -> None:
    services.choose(person=volunteer, wanted=[(Event.FINISHED, way) for way in Way])
    services.send_test(person=volunteer, way=Way.EMAIL)
    services.stop_mail(token=token(mailbox, STOP))
    assert selectors.choices_of(volunteer) == {(Event.FINISHED, Way.BROWSER), (Event.FINISHED, Way.WEBHOOK)}
    assert not Notice.objects.filter(way=Way.EMAIL).exists(), "also what waits is not sent"
    services.stop_mail(token=token(mailbox, STOP))


def test_the_link_to_an_old_address_ends_nothing_of_the_new_one(mailbox: Mailbox, volunteer: Person) -> None:
    old = token(mailbox, STOP)
    services.save_address(person=volunteer, address="else@example.org")
    services.choose(person=volunteer, wanted=[(Event.FINISHED, Way.EMAIL)])
    services.stop_mail(token=old)
    assert Choice.objects.exists()


def test_addresses_that_nobody_confirms_are_deleted(mailbox: Mailbox) -> None:
    services.forget_unconfirmed(mailbox.saved_at + services.UNCONFIRMED)
    assert Mailbox.objects.exists()
    services.forget_unconfirmed(mailbox.saved_at + services.UNCONFIRMED + timedelta(seconds=1))
    assert not Mailbox.objects.exists()


def test_only_what_can_be_chosen_is(volunteer: Person) -> None:
    services.choose(person=volunteer, wanted=[(Event.TEST, Way.EMAIL), (Event.NEEDED, Way.EMAIL)])
    assert selectors.choices_of(volunteer) == {(Event.NEEDED, Way.EMAIL)}
    services.choose(person=volunteer, wanted=[])
    assert selectors.choices_of(volunteer) == set()


def test_a_webhook_is_kept_sealed(volunteer: Person) -> None:
    secret = services.save_webhook(person=volunteer, address=HOOK)
    hook = Webhook.objects.get()
    assert (hook.host, hook.service) == ("hook.example", Webhook.Service.GENERIC)
    kept = "".join(map(str, Webhook.objects.values().get().values()))
    assert "secret-path" not in kept
    assert secret not in kept
    assert (unseal(hook.sealed_address), unseal(hook.sealed_secret)) == (HOOK, secret)
    assert services.save_webhook(person=volunteer, address=HOOK) != secret


def test_a_webhook_that_is_none(volunteer: Person) -> None:
    with pytest.raises(Refused):
        services.save_webhook(person=volunteer, address="http://hook.example/")
    assert not Webhook.objects.exists()


def test_one_that_was_switched_off_is_switched_on(volunteer: Person) -> None:
    services.save_webhook(person=volunteer, address=HOOK)
    Webhook.objects.update(off_at=timezone.now(), failing_since=timezone.now(), problem="It answered 500.")
    services.switch_on(person=volunteer)
    hook = Webhook.objects.get()
    assert (hook.off_at, hook.failing_since, hook.problem) == (None, None, "")


@pytest.mark.parametrize("way", [Way.EMAIL, Way.WEBHOOK])
def test_with_a_way_goes_what_was_chosen_for_it(mailbox: Mailbox, volunteer: Person, way: Way) -> None:
    services.save_webhook(person=volunteer, address=HOOK)
    services.choose(person=volunteer, wanted=[(Event.FINISHED, each) for each in Way])
    remove: Any = services.remove_address if way is Way.EMAIL else services.remove_webhook
    remove(person=volunteer)
    assert way not in {chosen for _, chosen in selectors.choices_of(volunteer)}
    assert len(selectors.choices_of(volunteer)) == 2


def test_an_account_leaves_nothing_behind(mailbox: Mailbox, volunteer: Person, stranger: Person) -> None:
    for person in (volunteer, stranger):
        services.save_webhook(person=person, address=HOOK)
        services.choose(person=person, wanted=[(Event.FINISHED, Way.BROWSER)])
        services.send_test(person=person, way=Way.WEBHOOK)
    services.forget_person(person=volunteer)
    for rows in (Choice, Mailbox, Webhook, Notice):
        assert not rows.objects.filter(person=volunteer).exists()
    assert Choice.objects.filter(person=stranger).exists()


def test_the_export_has_all_but_secrets(mailbox: Mailbox, volunteer: Person) -> None:
    services.save_webhook(person=volunteer, address=HOOK)
    services.choose(person=volunteer, wanted=[(Event.FINISHED, Way.EMAIL)])
    found = selectors.exported(volunteer)
    assert found["choices"] == [{"event": "finished", "way": "email"}]
    assert found["email"][0]["address"] == "teo@example.org"
    assert found["webhook"][0]["host"] == "hook.example"
    assert [row["event"] for row in found["sent"]] == ["confirm"]
    assert "sealed" not in str(found)

"""Functions that change a person's notification settings."""

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.core.validators import EmailValidator
from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext

from accounts.keys import seal
from accounts.models import Person
from notices import addresses, mail, outbox
from notices.models import OPERATORS_CHOOSE, Choice, Event, Mailbox, Notice, Way, Webhook
from peer_agent.protocol.errors import Problem

UNCONFIRMED = timedelta(days=7)  # unconfirmed addresses are deleted after this time
SECRET_PREFIX = "mhs_"  # noqa: S105 (the prefix of secrets, for programs that look for them)


@transaction.atomic
def choose(*, person: Person, wanted: Collection[tuple[Event, Way]]) -> None:
    Choice.objects.filter(person=person).delete()
    chosen = sorted({(event, way) for event, way in wanted if event in OPERATORS_CHOOSE})
    Choice.objects.bulk_create(Choice(person=person, event=event, way=way) for event, way in chosen)


@transaction.atomic
def save_address(*, person: Person, address: str) -> Mailbox:
    """Store an e-mail address and send it a request for confirmation. Raises ValidationError if it is not valid."""
    address = address.strip()
    EmailValidator(gettext("This is not an e-mail address."))(address)
    if len(address) > 254:
        raise ValidationError(gettext("This is not an e-mail address."))
    facts = {"address": address, "saved_at": timezone.now(), "confirmed_at": None}
    mailbox, _ = Mailbox.objects.update_or_create(person=person, defaults=facts)
    path, about = settings_path(), secrets.token_hex(8)
    outbox.note_directly(Event.CONFIRM, person.pk, Way.EMAIL, about=about, title=person.username, path=path)
    return mailbox


def confirmable(*, token: str) -> Mailbox:
    """Return the mailbox that a link confirms. Raises Problem E358 if the link expired or the address has changed."""
    mailbox = mail.mailbox_of(token, mail.CONFIRM)
    if mailbox is None:
        raise Problem.of("E358")
    return mailbox


def confirm_address(*, token: str) -> None:
    """Confirm an e-mail address, so that it can get notices. Raises Problem E358 if the link is no longer valid."""
    mailbox = confirmable(token=token)
    Mailbox.objects.filter(pk=mailbox.pk, address=mailbox.address, confirmed_at=None).update(
        confirmed_at=timezone.now()
    )


@transaction.atomic
def remove_address(*, person: Person) -> None:
    Mailbox.objects.filter(person=person).delete()
    _end(person.pk, Way.EMAIL)


@transaction.atomic
def stop_mail(*, token: str) -> None:
    """Unsubscribe an address through a link in an e-mail. Raises Problem E358 if this site did not sign the link."""
    mailbox = mail.mailbox_of(token, mail.STOP)
    if mailbox is not None:
        _end(mailbox.person_id, Way.EMAIL)


@transaction.atomic
def save_webhook(*, person: Person, address: str) -> str:
    """Store a webhook. Return the secret that signs its posts, which its owner sees only once.

    Raises Refused if the site cannot post to the address.
    """
    target = addresses.parse(address.strip())
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    Webhook.objects.update_or_create(
        person=person,
        defaults={
            "sealed_address": seal(address.strip()),
            "sealed_secret": seal(secret),
            "host": target.host,
            "service": addresses.service_of(target),
            "saved_at": timezone.now(),
            "tried_at": None,
            "failing_since": None,
            "problem": "",
            "off_at": None,
        },
    )
    return secret


@transaction.atomic
def remove_webhook(*, person: Person) -> None:
    Webhook.objects.filter(person=person).delete()
    _end(person.pk, Way.WEBHOOK)


def switch_on(*, person: Person) -> None:
    Webhook.objects.filter(person=person).update(off_at=None, failing_since=None, problem="")


def send_test(*, person: Person, way: Way) -> None:
    outbox.note_directly(Event.TEST, person.pk, way, about=secrets.token_hex(8), path=settings_path())


@transaction.atomic
def forget_person(*, person: Person) -> None:
    for rows in (Choice, Mailbox, Webhook, Notice):
        rows.objects.filter(person=person).delete()


def forget_unconfirmed(now: datetime) -> None:
    Mailbox.objects.filter(confirmed_at=None, saved_at__lt=now - UNCONFIRMED).delete()


def settings_path() -> str:
    return reverse("web:notifications")


def _end(person_id: int, way: Way) -> None:
    Choice.objects.filter(person=person_id, way=way).delete()
    Notice.objects.filter(person=person_id, way=way, state=Notice.State.WAITING).delete()

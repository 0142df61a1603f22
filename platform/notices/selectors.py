"""Queries about a person's notices."""

from typing import Any

from accounts.models import Person
from notices.models import Choice, Mailbox, Notice, Webhook

RECENT = 10  # number shown on the settings page


def choices_of(person: Person) -> set[tuple[str, str]]:
    return set(Choice.objects.filter(person=person).values_list("event", "way"))


def mailbox_of(person: Person) -> Mailbox | None:
    return Mailbox.objects.filter(person=person).first()


def webhook_of(person: Person) -> Webhook | None:
    return Webhook.objects.filter(person=person).first()


def recent(person: Person) -> list[Notice]:
    return list(Notice.objects.filter(person=person).order_by("-at", "-pk")[:RECENT])


def exported(person: Person) -> dict[str, Any]:
    """Return everything stored about a person's notices, apart from the webhook's address and secret."""
    notices = Notice.objects.filter(person=person).order_by("pk")
    return {
        "choices": list(Choice.objects.filter(person=person).order_by("pk").values("event", "way")),
        "email": list(Mailbox.objects.filter(person=person).values("address", "saved_at", "confirmed_at")),
        "webhook": list(Webhook.objects.filter(person=person).values("host", "service", "saved_at", "off_at")),
        "sent": list(notices.values("event", "way", "title", "machine", "at", "state", "sent_at")),
    }

"""Tables of notices: choices, mailboxes, webhooks, and the outbox."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy, pgettext_lazy

Person = settings.AUTH_USER_MODEL

LONGEST_TITLE, LONGEST_NAME, LONGEST_PROBLEM = 120, 60, 200
LONGEST_ADDRESS = 500  # of a webhook


class Event(models.TextChoices):
    """Events that notices tell of; the last three cannot be chosen."""

    NEEDED = "needed", gettext_lazy("A run you are in needs volunteers")
    FINISHED = "finished", gettext_lazy("A run you are in is finished")
    STOPPED = "stopped", gettext_lazy("Your machine stopped")
    REQUEST = "request", gettext_lazy("Someone asks to join a run you manage")
    ACCEPTED = "accepted", gettext_lazy("Your request to join a run is accepted")
    DECLINED = "declined", gettext_lazy("Your request to join a run is declined")
    TEST = "test", "A test"
    CONFIRM = "confirm", "Whether an address is theirs"
    SWITCHED_OFF = "off", "Their webhook was switched off"


class Way(models.TextChoices):
    BROWSER = "browser", pgettext_lazy("way of a notice", "Browser")
    EMAIL = "email", pgettext_lazy("way of a notice", "E-mail")
    WEBHOOK = "webhook", "Webhook"


CHOSEN = (Event.NEEDED, Event.FINISHED, Event.STOPPED, Event.REQUEST, Event.ACCEPTED, Event.DECLINED)


class Choice(models.Model):
    """A person's choice of an event and a channel. Without a row nothing is sent."""

    person = models.ForeignKey(Person, models.CASCADE, related_name="notice_choices")
    event = models.CharField(max_length=8, choices=Event.choices)
    way = models.CharField(max_length=8, choices=Way.choices)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("person", "event", "way"), name="notice_chosen_once"),)

    def __str__(self) -> str:
        return f"{self.event} by {self.way}"


class Mailbox(models.Model):
    """A person's e-mail address. Until it is confirmed, only the confirmation request is sent there."""

    person = models.OneToOneField(Person, models.CASCADE, primary_key=True, related_name="mailbox")
    address = models.EmailField(max_length=254)
    saved_at = models.DateTimeField(default=timezone.now)
    confirmed_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return "an address" if self.confirmed_at else "an address that is not confirmed"


class Webhook(models.Model):
    """A person's webhook. Address and secret are sealed: anyone with the address can post there."""

    class Service(models.TextChoices):
        DISCORD = "discord", "Discord"
        SLACK = "slack", "Slack"
        GENERIC = "generic", "JSON"

    person = models.OneToOneField(Person, models.CASCADE, primary_key=True, related_name="webhook")
    sealed_address = models.TextField()
    sealed_secret = models.TextField()  # signs posts to a generic webhook
    host = models.CharField(max_length=255)
    service = models.CharField(max_length=8, choices=Service.choices)
    saved_at = models.DateTimeField(default=timezone.now)
    tried_at = models.DateTimeField(null=True, blank=True)
    failing_since = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=LONGEST_PROBLEM, blank=True)  # of the last try
    off_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.service} at {self.host}"


class Notice(models.Model):
    """One message to one person by one channel. `about` is its subject, told once a day (UTC).

    A WAITING row is tried from `due_at` on; a claim moves `due_at`, so that no other worker tries meanwhile. Browser
    notices wait for an open page and are never claimed.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        SENT = "sent"
        FAILED = "failed"  # and not tried again

    person = models.ForeignKey(Person, models.CASCADE, related_name="notices")
    event = models.CharField(max_length=8, choices=Event.choices)
    way = models.CharField(max_length=8, choices=Way.choices)
    about = models.CharField(max_length=80)
    day = models.IntegerField()  # since 1970
    title = models.CharField(max_length=LONGEST_TITLE, blank=True)  # the run's
    machine = models.CharField(max_length=LONGEST_NAME, blank=True)  # its name
    path = models.CharField(max_length=200)  # of the page to open
    at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    tries = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=LONGEST_PROBLEM, blank=True)  # of the last try

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("person", "event", "way", "about", "day"), name="notice_once_a_day"),
        )
        indexes = (
            models.Index(fields=("state", "due_at"), name="notice_due"),
            models.Index(fields=("at",), name="notice_by_age"),
        )

    def __str__(self) -> str:
        return f"{self.event} by {self.way}"

"""Tables of notices: people's choices, mailboxes and webhooks, and the outbox."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy, pgettext_lazy

Person = settings.AUTH_USER_MODEL

LONGEST_TITLE, LONGEST_NAME, LONGEST_PROBLEM = 120, 60, 200
LONGEST_ADDRESS = 500  # characters in a webhook's address


class Event(models.TextChoices):
    """An event that the site notifies people about. Only operators can choose `TROUBLE`.

    The last three cannot be chosen; they are always sent.
    """

    NEEDED = "needed", gettext_lazy("A run you are in needs volunteers")
    FINISHED = "finished", gettext_lazy("A run you are in is finished")
    STOPPED = "stopped", gettext_lazy("Your machine stopped")
    HALTED = "halted", gettext_lazy("A run you manage was paused because its loss rose")
    REQUEST = "request", gettext_lazy("Someone asks to join a run you manage")
    ACCEPTED = "accepted", gettext_lazy("Your request to join a run is accepted")
    DECLINED = "declined", gettext_lazy("Your request to join a run is declined")
    TROUBLE = "trouble", gettext_lazy("A check of this site fails, or passes again")
    TEST = "test", "A test"
    CONFIRM = "confirm", "Whether an address is theirs"
    SWITCHED_OFF = "off", "Their webhook was switched off"


class Way(models.TextChoices):
    BROWSER = "browser", pgettext_lazy("way of a notice", "Browser")
    EMAIL = "email", pgettext_lazy("way of a notice", "E-mail")
    WEBHOOK = "webhook", "Webhook"


CHOSEN = (Event.NEEDED, Event.FINISHED, Event.STOPPED, Event.HALTED, Event.REQUEST, Event.ACCEPTED, Event.DECLINED)
OPERATORS_CHOOSE = (*CHOSEN, Event.TROUBLE)


class Choice(models.Model):
    """A person's choice to be notified of an event through a channel. If there is no row, the site sends nothing."""

    person = models.ForeignKey(Person, models.CASCADE, related_name="notice_choices")
    event = models.CharField(max_length=8, choices=Event.choices)
    way = models.CharField(max_length=8, choices=Way.choices)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("person", "event", "way"), name="notice_chosen_once"),)

    def __str__(self) -> str:
        return f"{self.event} by {self.way}"


class Mailbox(models.Model):
    """A person's e-mail address. Until the person confirms it, the site sends only the request to confirm it."""

    person = models.OneToOneField(Person, models.CASCADE, primary_key=True, related_name="mailbox")
    address = models.EmailField(max_length=254)
    saved_at = models.DateTimeField(default=timezone.now)
    confirmed_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return "an address" if self.confirmed_at else "an address that is not confirmed"


class Webhook(models.Model):
    """A person's webhook. Its address and secret are encrypted, because anyone with the address can post to it."""

    class Service(models.TextChoices):
        DISCORD = "discord", "Discord"
        SLACK = "slack", "Slack"
        GENERIC = "generic", "JSON"

    person = models.OneToOneField(Person, models.CASCADE, primary_key=True, related_name="webhook")
    sealed_address = models.TextField()
    sealed_secret = models.TextField()  # for signing posts to a generic webhook
    host = models.CharField(max_length=255)
    service = models.CharField(max_length=8, choices=Service.choices)
    saved_at = models.DateTimeField(default=timezone.now)
    tried_at = models.DateTimeField(null=True, blank=True)
    failing_since = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=LONGEST_PROBLEM, blank=True)  # what went wrong on the last attempt
    off_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.service} at {self.host}"


class Notice(models.Model):
    """A notice to a person through a channel, which announces a subject (`about`) at most once a day (UTC).

    A WAITING row may be sent once `due_at` is reached; a failed attempt postpones `due_at`. Notices for the browser are
    fetched by open pages and stay WAITING.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        SENT = "sent"
        FAILED = "failed"  # will not be retried

    person = models.ForeignKey(Person, models.CASCADE, related_name="notices")
    event = models.CharField(max_length=8, choices=Event.choices)
    way = models.CharField(max_length=8, choices=Way.choices)
    about = models.CharField(max_length=80)
    day = models.IntegerField()  # since 1970
    title = models.CharField(max_length=LONGEST_TITLE, blank=True)  # the run's title
    machine = models.CharField(max_length=LONGEST_NAME, blank=True)  # the machine's name
    path = models.CharField(max_length=200)  # path of the page to open
    at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    tries = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=LONGEST_PROBLEM, blank=True)  # what went wrong on the last attempt

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


class Trouble(models.Model):
    """The state of one of the site's checks, and whether its operators have been told that it fails."""

    check_name = models.CharField(max_length=20, primary_key=True)
    since = models.DateTimeField(null=True)  # None while the check passes
    is_told = models.BooleanField(default=False)  # operators have been told of the failure
    told_at = models.DateTimeField(null=True)  # when they were last told of it

    def __str__(self) -> str:
        return self.check_name

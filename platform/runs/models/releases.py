"""What people download and try, who is named on it, and its place on the Hub."""

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from runs.models.run import Run

Person = settings.AUTH_USER_MODEL


class Release(models.Model):
    """What people download once the run has reached its last step."""

    class State(models.TextChoices):
        PREPARING = "preparing"
        READY = "ready"
        FAILED = "failed"

    run = models.OneToOneField(Run, models.PROTECT, related_name="release")
    state = models.CharField(max_length=10, choices=State.choices, default=State.PREPARING)
    folder = models.CharField(max_length=200, blank=True)  # relative to the storage folder
    files = models.JSONField(default=list, blank=True)  # [{name, size, sha256}]
    archive = models.CharField(max_length=200, blank=True)  # name of the file that holds all others
    wanted_index = models.BigIntegerField(null=True, blank=True)  # of the snapshot that is wanted; null: the newest
    is_chosen = models.BooleanField(default=False)  # … because the organizer said so
    index = models.BigIntegerField(null=True, blank=True)  # … and of the one that is
    step = models.BigIntegerField(null=True, blank=True)  # after which it was made
    sample = models.TextField(blank=True)  # what the model writes
    named = models.JSONField(default=list, blank=True)  # names of people on its card
    created_at = models.DateTimeField(default=timezone.now)
    fault = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"release of {self.run_id}"


class NamedVolunteer(models.Model):
    """Someone who wants to be named on the card of a run's model. Without a row they are counted, not named."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="named")
    person = models.ForeignKey(Person, models.CASCADE, related_name="+")
    agreed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "person"), name="named_once"),)

    def __str__(self) -> str:
        return f"{self.person_id} in {self.run_id}"


class HubAccount(models.Model):
    """An organizer's account on the Hub. The token is sealed (`accounts.keys`) and never shown again."""

    person = models.OneToOneField(Person, models.CASCADE, related_name="hub_account")
    name = models.CharField(max_length=100)
    namespaces = models.JSONField(default=list)  # where the token may write
    sealed_token = models.TextField()
    saved_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.name


class Publication(models.Model):
    """A run's model on the Hub, as its organizer wants it and as it is: the release, and checkpoints before it."""

    class State(models.TextChoices):
        WAITING = "waiting"
        SENDING = "sending"
        PUBLISHED = "published"
        FAILED = "failed"

    run = models.OneToOneField(Run, models.CASCADE, related_name="publication")
    repository = models.CharField(max_length=200)  # NAMESPACE/NAME
    private = models.BooleanField(default=False)
    replace = models.BooleanField(default=False)  # files of the same name that somebody else put there
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    commit = models.CharField(max_length=64, blank=True)  # the last one that we made
    url = models.CharField(max_length=300, blank=True)  # where it is, once it was published
    fault = models.TextField(blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    asked_by = models.ForeignKey(
        Person, models.PROTECT, null=True, related_name="+"
    )  # whose token; null: the organizer's
    published_at = models.DateTimeField(null=True, blank=True)
    failing_since = models.DateTimeField(null=True, blank=True)  # nothing has reached the Hub; null: something did
    checkpoint_every = models.IntegerField(default=0)  # steps; 0: the release alone
    in_branches = models.BooleanField(default=False)  # each checkpoint in one of its own
    checkpoint_step = models.BigIntegerField(default=0)  # of the last one there; 0: none
    checkpoint_url = models.CharField(max_length=300, blank=True)
    checkpoint_fault = models.TextField(blank=True)
    checkpoint_retry_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.repository


class Trial(models.Model):
    """A prompt that a visitor has given to a released model, and what it wrote. It is forgotten within the hour."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)  # who knows it reads the text
    run = models.ForeignKey(Run, models.CASCADE, related_name="trials")
    asker = models.CharField(max_length=64)  # a keyed digest of the person or the address: nobody can read it back
    slot = models.PositiveSmallIntegerField(null=True, unique=True)  # one of the site's, while it waits
    prompt = models.TextField()
    text = models.TextField(blank=True)
    is_whole = models.BooleanField(default=True)  # all of the prompt was read
    fault = models.TextField(blank=True)
    asked_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("asker",), condition=models.Q(slot__isnull=False), name="one_trial_at_a_time"
            ),
        )

    def __str__(self) -> str:
        return f"trial of {self.run_id}"

    @property
    def is_waiting(self) -> bool:
        return self.slot is not None

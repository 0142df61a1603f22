"""Tables for releases, trials of released models, people named on model cards, and publications on the Hub."""

import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from runs.models.run import Run

Person = settings.AUTH_USER_MODEL


class Release(models.Model):
    """The model that people download once a run has finished."""

    class State(models.TextChoices):
        PREPARING = "preparing"
        READY = "ready"
        FAILED = "failed"

    run = models.OneToOneField(Run, models.PROTECT, related_name="release")
    state = models.CharField(max_length=10, choices=State.choices, default=State.PREPARING)
    folder = models.CharField(max_length=200, blank=True)  # relative to the storage folder
    files = models.JSONField(default=list, blank=True)  # [{name, size, sha256}]
    archive = models.CharField(max_length=200, blank=True)  # name of the archive of all the others
    wanted_index = models.BigIntegerField(null=True, blank=True)  # snapshot to release, by log index; null: the newest
    is_chosen = models.BooleanField(default=False)  # wanted_index was the organizer's choice
    index = models.BigIntegerField(null=True, blank=True)  # of the snapshot in this release
    step = models.BigIntegerField(null=True, blank=True)  # of the snapshot in this release
    sample = models.TextField(blank=True)  # text written by the model
    named = models.JSONField(default=list, blank=True)  # people named on the model's card
    created_at = models.DateTimeField(default=timezone.now)
    fault = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"release of {self.run_id}"


class NamedVolunteer(models.Model):
    """A person who agreed to be named on the card of a run's model. Everyone else is merely counted there."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="named")
    person = models.ForeignKey(Person, models.CASCADE, related_name="+")
    agreed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "person"), name="named_once"),)

    def __str__(self) -> str:
        return f"{self.person_id} in {self.run_id}"


class HubAccount(models.Model):
    """An organizer's account on the Hub. The token is stored encrypted (`accounts.keys`) and never shown again."""

    person = models.OneToOneField(Person, models.CASCADE, related_name="hub_account")
    name = models.CharField(max_length=100)
    namespaces = models.JSONField(default=list)  # namespaces that the token may write to
    sealed_token = models.TextField()
    saved_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.name


class Publication(models.Model):
    """The organizer's request to publish a run's model on the Hub, and what has been published so far."""

    class State(models.TextChoices):
        WAITING = "waiting"
        SENDING = "sending"
        PUBLISHED = "published"
        FAILED = "failed"

    run = models.OneToOneField(Run, models.CASCADE, related_name="publication")
    repository = models.CharField(max_length=200)  # NAMESPACE/NAME
    private = models.BooleanField(default=False)
    replace = models.BooleanField(default=False)  # may overwrite files that the site did not write
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    commit = models.CharField(max_length=64, blank=True)  # the site's last commit
    url = models.CharField(max_length=300, blank=True)  # set once the model has been published
    fault = models.TextField(blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    asked_by = models.ForeignKey(
        Person, models.PROTECT, null=True, related_name="+"
    )  # whose token is used; null: the organizer's
    published_at = models.DateTimeField(null=True, blank=True)
    # All pushes since then have failed; null: pushes are not failing.
    failing_since = models.DateTimeField(null=True, blank=True)
    checkpoint_every = models.IntegerField(default=0)  # in steps; 0 to publish only the release
    in_branches = models.BooleanField(default=False)  # each checkpoint gets a branch of its own
    checkpoint_step = models.BigIntegerField(default=0)  # step of the last checkpoint on the Hub; 0 if none
    checkpoint_url = models.CharField(max_length=300, blank=True)
    checkpoint_fault = models.TextField(blank=True)

    def __str__(self) -> str:
        return self.repository


class Trial(models.Model):
    """A visitor's prompt to a released model and the text that the model wrote. It is deleted within the hour."""

    # Anyone who knows the id can read the text.
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    run = models.ForeignKey(Run, models.CASCADE, related_name="trials")
    asker = models.CharField(max_length=64)  # keyed, irreversible digest of person or address
    slot = models.PositiveSmallIntegerField(null=True, unique=True)  # slot in the site's queue while waiting
    prompt = models.TextField()
    text = models.TextField(blank=True)
    is_whole = models.BooleanField(default=True)  # False if the model read only part of it
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

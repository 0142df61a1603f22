"""What hosts write for the rest of the site: who is in a run now, whose snapshot is taken, under which hash."""

from django.db import models
from django.utils import timezone

from accounts.models import Machine
from runs.models import Run


class Presence(models.Model):
    """Who is in a run now and how far the step is. Nothing is decided from it; it is written anew every second.

    `plan` is the last one, and outlives its host; `links` is what each machine's carries, for its owner's eyes; `crowd`
    is when the number of trainers changed: [seconds of UTC, how many from then on], the newest last.
    """

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="presence")
    at = models.DateTimeField(auto_now=True)
    phase = models.CharField(max_length=12)
    done = models.BigIntegerField(default=0)  # samples in the accumulators
    target = models.BigIntegerField(default=0)
    void_rounds = models.BigIntegerField(default=0)
    members = models.JSONField(default=list)
    plan = models.JSONField(null=True, default=None)
    links = models.JSONField(default=dict)
    crowd = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{len(self.members)} peers"


class Election(models.Model):
    """Whose machine, and nobody else's, may upload the state of an entry, until when."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="elections")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    peer = models.CharField(max_length=32)
    until = models.DateTimeField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="one_keeper_an_entry"),)

    def __str__(self) -> str:
        return f"{self.peer[:8]} hands in step {self.step}"


class Admission(models.Model):
    """The hash that most people's copies have at an entry: a file of another one is not taken."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="admissions")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()  # bytes
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="one_hash_an_entry"),)

    def __str__(self) -> str:
        return f"{self.sha256[:8]} at step {self.step}"


class PendingSnapshot(models.Model):
    """An elected keeper's file that waits for its hash to be admitted: `runs/<run>/pending/<sha256>` in storage."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="pending_snapshots")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()
    state_digest = models.CharField(max_length=16)
    expires = models.DateTimeField(db_index=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="one_pending_an_entry"),)

    def __str__(self) -> str:
        return f"{self.sha256[:8]} waits at step {self.step}"


class UploadSlot(models.Model):
    """One upload at a time a machine; held by renewal while bytes come."""

    machine = models.OneToOneField(Machine, models.CASCADE, primary_key=True, related_name="upload_slot")
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"an upload of {self.machine_id}"

"""Tables for a run's presence, and for snapshot uploads: elections, admitted hashes, pending files and upload slots.

`Parcel` carries messages between the site's processes.
"""

from django.db import models
from django.db.models.functions import Now
from django.utils import timezone

from accounts.models import Machine
from runs.models import Run


class Presence(models.Model):
    """A run's machines and the progress of its current step. The run's host writes the row every second.

    Pages read the row; the coordinator never does. `plan` is the last plan, kept when the run loses its host. `links`
    has each machine's bandwidth, for the machine's owner and the organizer. `crowd` lists changes in the number of
    trainers as [UTC seconds, new number], latest last.
    """

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="presence")
    at = models.DateTimeField(auto_now=True)
    phase = models.CharField(max_length=12)
    done = models.BigIntegerField(default=0)  # samples in accumulators
    target = models.BigIntegerField(default=0)
    void_rounds = models.BigIntegerField(default=0)
    members = models.JSONField(default=list)
    plan = models.JSONField(null=True, default=None)
    links = models.JSONField(default=dict)
    crowd = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{len(self.members)} peers"


class Election(models.Model):
    """The only machine that may upload the state at a log entry, and the time by which it must begin."""

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
    """The SHA-256 of most people's copies of the state at a log entry. The site rejects all other files for it."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="admissions")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    size = models.BigIntegerField()  # in bytes
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="one_hash_an_entry"),)

    def __str__(self) -> str:
        return f"{self.sha256[:8]} at step {self.step}"


class PendingSnapshot(models.Model):
    """A file uploaded by an elected keeper and stored like a snapshot. It becomes one if its hash is admitted."""

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
    """A machine's permission to upload, one file at a time. The site renews it as bytes arrive."""

    machine = models.OneToOneField(Machine, models.CASCADE, primary_key=True, related_name="upload_slot")
    until = models.DateTimeField()

    def __str__(self) -> str:
        return f"an upload of {self.machine_id}"


class Parcel(models.Model):
    """A message to one of the site's processes, or to all (“groups”), sent while Redis is down (see `bridge`)."""

    recipient = models.CharField(max_length=32)
    data = models.BinaryField()
    at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{len(self.data)} bytes for {self.recipient[:8]}"

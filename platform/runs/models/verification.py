"""Tables of how snapshots are verified: the site replays the log, and says what it found."""

from django.db import models
from django.utils import timezone


class Verification(models.Model):
    """The replay that is under way for a run, held by one worker: whoever finds `touched_at` old may take over."""

    run = models.OneToOneField("runs.Run", models.CASCADE, primary_key=True, related_name="verification")
    touched_at = models.DateTimeField(null=True, blank=True)  # null: nobody is at it
    first_step = models.BigIntegerField(default=0)  # of the verified snapshot it begins with
    step = models.BigIntegerField(default=0)  # how far it is
    last_step = models.BigIntegerField(default=0)
    retry_at = models.DateTimeField(null=True, blank=True)  # after a failure; nobody begins before
    failures = models.IntegerField(default=0)  # one after another
    fault = models.TextField(blank=True)  # of the last try; empty where it went well

    def __str__(self) -> str:
        return f"step {self.step} of {self.last_step}"


class ReplayRequest(models.Model):
    """A state that the coordinator asked the log for, or that the log contradicts; answered once there is a digest."""

    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="replays")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    state_digest = models.CharField(max_length=16, blank=True)
    answered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("index",)
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="replay_index_once"),)

    def __str__(self) -> str:
        return f"replay up to step {self.step}"


class RefusedSnapshot(models.Model):
    """A file that was admitted, and is not what the log gives. It is on no disk any more."""

    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="refused_snapshots")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    file = models.CharField(max_length=64)  # sha256, hex
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("index",)
        constraints = (models.UniqueConstraint(fields=("run", "file"), name="refused_snapshot_once"),)

    def __str__(self) -> str:
        return f"refused at step {self.step}"


class RelayAddress(models.Model):
    """Where a relay that keeps logs was last heard of; the site fetches averaged bytes there. `peer`: its machine."""

    peer = models.CharField(max_length=32, primary_key=True)
    url = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=200, blank=True)
    heard_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.url

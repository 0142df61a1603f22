"""States of the model where replicas begin, and how the site verifies them by replaying the log."""

from django.db import models
from django.utils import timezone

from peer_agent.protocol.log.records import GENESIS
from runs.models.run import Run


class Snapshot(models.Model):
    """A state at `step`: `runs/<run>/snapshots/<file>.safetensors` in storage. A newcomer may load it."""

    class State(models.TextChoices):
        ADMITTED = "admitted"  # most people's copies have this hash
        VERIFIED = "verified"  # the site's replay from a verified snapshot gave it

    run = models.ForeignKey(Run, models.PROTECT, related_name="snapshots")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    digest = models.CharField(max_length=64, default=GENESIS)  # of the log there
    state_digest = models.CharField(max_length=16)
    file = models.CharField(max_length=64, db_index=True)  # sha256, hex
    size = models.BigIntegerField()  # bytes
    created_at = models.DateTimeField(default=timezone.now)
    is_undone = models.BooleanField(default=False)  # a rollback went back before it, or restated it at its own entry
    is_stored = models.BooleanField(default=True)  # its file is on disk (runs.snapshots.retention)
    state = models.CharField(max_length=8, choices=State.choices, default=State.ADMITTED)
    verified_at = models.DateTimeField(null=True, blank=True)
    heldout_loss = models.FloatField(null=True, blank=True)  # mean nats; null until it is measured
    heldout_figures = models.JSONField(default=dict, blank=True)  # other figures measured with it, by name

    written = models.JSONField(default=list, blank=True)  # pairs of a prompt and the model's continuation

    class Meta:
        ordering = ("-index",)
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="snapshot_index_once"),)

    def __str__(self) -> str:
        return f"snapshot at step {self.step}"


class Verification(models.Model):
    """A run's replay, claimed by one worker at a time. Another worker may take it over once `touched_at` is stale."""

    run = models.OneToOneField("runs.Run", models.CASCADE, primary_key=True, related_name="verification")
    touched_at = models.DateTimeField(null=True, blank=True)  # null: no worker has it
    first_step = models.BigIntegerField(default=0)  # of the verified snapshot it begins with
    step = models.BigIntegerField(default=0)  # its progress
    last_step = models.BigIntegerField(default=0)
    retry_at = models.DateTimeField(null=True, blank=True)  # after a failure; no worker begins earlier
    failures = models.IntegerField(default=0)  # one after another
    fault = models.TextField(blank=True)  # of the last try; empty if it succeeded

    def __str__(self) -> str:
        return f"step {self.step} of {self.last_step}"


class ReplayRequest(models.Model):
    """A state that the coordinator wants replayed, or that the log contradicts; answered once there is a digest."""

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
    """A file that was admitted although the log gives another state. It has been deleted."""

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
    """The last known address of a relay that keeps logs, for fetching averaged bytes. `peer`: its machine."""

    peer = models.CharField(max_length=32, primary_key=True)
    url = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=200, blank=True)
    heard_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.url

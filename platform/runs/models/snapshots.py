"""States of the model, where replicas begin, and how the site verifies them by replaying the log."""

from django.db import models
from django.utils import timezone

from peer_agent.protocol.log.records import GENESIS
from runs.models.run import Run


class Snapshot(models.Model):
    """A state at `step`: `runs/<run>/snapshots/<file>.safetensors` in storage. Newcomers may load it."""

    class State(models.TextChoices):
        ADMITTED = "admitted"  # most people's copies have this hash
        VERIFIED = "verified"  # the site's own replay of the log, from a verified one, gave it

    run = models.ForeignKey(Run, models.PROTECT, related_name="snapshots")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    digest = models.CharField(max_length=64, default=GENESIS)  # of the log there
    state_digest = models.CharField(max_length=16)
    file = models.CharField(max_length=64, db_index=True)  # sha256, hex
    size = models.BigIntegerField()  # bytes
    created_at = models.DateTimeField(default=timezone.now)
    is_undone = models.BooleanField(default=False)  # a rollback went back before it, or has it under a place of its own
    is_stored = models.BooleanField(default=True)  # its file is there (runs.snapshots.retention)
    state = models.CharField(max_length=8, choices=State.choices, default=State.ADMITTED)
    verified_at = models.DateTimeField(null=True, blank=True)
    heldout_loss = models.FloatField(null=True, blank=True)  # mean nats; null until it is measured, if it ever is
    heldout_figures = models.JSONField(default=dict, blank=True)  # by name, what else was measured with it

    written = models.JSONField(default=list, blank=True)  # pairs of a prompt and what the model wrote after it

    class Meta:
        ordering = ("-index",)
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="snapshot_index_once"),)

    def __str__(self) -> str:
        return f"snapshot at step {self.step}"


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

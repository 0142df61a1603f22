"""States of the model, where replicas begin."""

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

"""Tables for model states that replicas start from, and for verifying them by replaying the log."""

from django.db import models
from django.utils import timezone

from peer_agent.protocol.log.records import GENESIS
from runs.models.run import Run


class Snapshot(models.Model):
    """The model's state at `step`, from which newcomers can start. Path: `runs/<run>/snapshots/<file>.safetensors`."""

    class State(models.TextChoices):
        ADMITTED = "admitted"  # most people's copies have this hash
        VERIFIED = "verified"  # the site replayed the log from a verified snapshot and got the same result

    run = models.ForeignKey(Run, models.PROTECT, related_name="snapshots")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    digest = models.CharField(max_length=64, default=GENESIS)  # of the log at this entry
    state_digest = models.CharField(max_length=16)
    file = models.CharField(max_length=64, db_index=True)  # sha256, hex
    size = models.BigIntegerField()  # in bytes
    created_at = models.DateTimeField(default=timezone.now)
    # A rollback went to an earlier state, or stored this state again at its own entry.
    is_undone = models.BooleanField(default=False)
    is_stored = models.BooleanField(default=True)  # the file is on disk (runs.snapshots.retention)
    state = models.CharField(max_length=8, choices=State.choices, default=State.ADMITTED)
    is_bridged = models.BooleanField(default=False)  # vouched for only by the majority, because averages are lost
    verified_at = models.DateTimeField(null=True, blank=True)
    heldout_loss = models.FloatField(null=True, blank=True)  # mean, in nats; null until measured
    # Other figures measured on the held-out data, by name
    heldout_figures = models.JSONField(default=dict, blank=True)

    written = models.JSONField(default=list, blank=True)  # (prompt, continuation) pairs

    class Meta:
        ordering = ("-index",)
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="snapshot_index_once"),)

    def __str__(self) -> str:
        return f"snapshot at step {self.step}"


class Verification(models.Model):
    """The progress of the replay that verifies a run's next snapshot."""

    run = models.OneToOneField("runs.Run", models.CASCADE, primary_key=True, related_name="verification")
    first_step = models.BigIntegerField(default=0)  # step of the verified snapshot where the replay starts
    step = models.BigIntegerField(default=0)  # step reached by the replay
    last_step = models.BigIntegerField(default=0)
    fault = models.TextField(blank=True)  # from the last attempt; empty if it succeeded

    def __str__(self) -> str:
        return f"step {self.step} of {self.last_step}"


class ReplayRequest(models.Model):
    """A request to replay the log up to an entry, from the coordinator or because the site refused a snapshot there.

    `state_digest` is the result. It is empty until then.
    """

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


class Recheck(models.Model):
    """A request to compute contributions of a run's last steps again, and its outcome (`snapshots.recheck`).

    `about`: the machine whose work is disputed, or "" if the loss rose.
    """

    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="rechecks")
    about = models.CharField(max_length=32, blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    evidence = models.BinaryField(default=b"")  # the contributions' sketches, as JSON; empty once there is an outcome
    outcome = models.JSONField(null=True)
    fault = models.TextField(blank=True)  # why the last attempt failed
    is_heeded = models.BooleanField(default=False)  # the coordinator has acted on the outcome

    class Meta:
        db_table = "runs_recheck_request"  # the table `runs_recheck` was an earlier version's

    def __str__(self) -> str:
        return f"recheck of {self.run_id}"


class RefusedSnapshot(models.Model):
    """A file that was admitted as a snapshot although it contradicts the log. The site has since deleted it."""

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
    """The last known address of a relay that stores logs. The site fetches averages there. `peer` is its machine."""

    peer = models.CharField(max_length=32, primary_key=True)
    url = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=200, blank=True)
    heard_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.url

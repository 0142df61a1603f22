"""The replicated log: its end, its entries, what is leased and covered."""

from django.db import models
from django.utils import timezone

from peer_agent.protocol.log.records import GENESIS
from runs.models.run import Run


class Head(models.Model):
    """The end of a run's log, and the claim of the one process that may move it (rules 3 and 16)."""

    run = models.OneToOneField(Run, models.PROTECT, primary_key=True, related_name="head")
    index = models.BigIntegerField(default=0)  # entries committed
    step = models.BigIntegerField(default=0)  # updates committed
    digest = models.CharField(max_length=64, default=GENESIS)  # of the last record
    fence = models.IntegerField(default=0)
    owner = models.CharField(max_length=200, blank=True)
    claim_expires = models.DateTimeField(null=True, blank=True)
    void_rounds = models.BigIntegerField(default=0)  # rounds that could not finish (runs.timeline counts them)

    def __str__(self) -> str:
        return f"step {self.step}"


class LogEntry(models.Model):
    """One committed entry: the facts that pages and lists need. Narrow, because they read hundreds at a time.

    Of those that are in the model (`IN_MODEL`) there is one for each step up to the head's; a rollback undoes others.
    """

    class Kind(models.TextChoices):
        UPDATE = "update"
        ROLLBACK = "rollback"  # to `step`; it has no loss and no samples

    run = models.ForeignKey(Run, models.PROTECT, related_name="log")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.UPDATE)
    is_undone = models.BooleanField(default=False)  # by a later rollback
    at = models.DateTimeField(default=timezone.now)
    digest = models.CharField(max_length=64)
    loss = models.FloatField()  # mean nats over the round's loss tokens
    tokens = models.BigIntegerField()
    samples = models.BigIntegerField()
    peers = models.IntegerField()
    duration_s = models.FloatField()
    attempts = models.IntegerField()
    exact = models.BooleanField()
    state_digest = models.CharField(max_length=16, blank=True)
    # As in the record; null where it has none.
    learning_rate = models.FloatField(null=True)
    bytes_averaged = models.BigIntegerField(null=True)  # of gradients, by all reducers together

    class Meta:
        ordering = ("index",)
        verbose_name_plural = "log entries"
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="log_index_once"),)
        indexes = (models.Index(fields=("run", "step"), name="log_by_step"),)

    def __str__(self) -> str:
        return f"entry {self.index}"


IN_MODEL = models.Q(kind=LogEntry.Kind.UPDATE, is_undone=False)


class SealedRecord(models.Model):
    """The bulk of a log entry (54 kB with 200 machines). Read and written by `runs.ledger.sealed_records` alone."""

    entry = models.OneToOneField(LogEntry, models.PROTECT, primary_key=True, related_name="sealed")
    payload = models.BinaryField()
    signature = models.BinaryField()
    contributions = models.BinaryField(default=b"")  # their canonical JSON, beside the signed head

    def __str__(self) -> str:
        return f"record of entry {self.entry_id}"


class LeaseMark(models.Model):
    """How far a shard's samples have ever been leased in an epoch: raised before a lease is granted (rule 11)."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="marks")
    epoch = models.BigIntegerField()
    shard = models.IntegerField()
    mark = models.BigIntegerField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "epoch", "shard"), name="lease_mark_once"),)

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard}: {self.mark}"


class Coverage(models.Model):
    """Which samples of a shard are in committed updates of an epoch. Written with each commit (`ledger.coverage`)."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="coverage")
    epoch = models.BigIntegerField()
    shard = models.BigIntegerField()
    ranges = models.JSONField()  # [[start, stop), …] in ascending order; no two overlap or touch
    left_out = models.JSONField(default=list)  # likewise: in no update, since no gradient of them was finite

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "epoch", "shard"), name="coverage_once"),)

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard}: {len(self.ranges)} ranges"

"""Tables for the replicated log, lease marks and coverage, and the ledger with its sums.

Ledger rows are only ever added, never changed.
"""

from typing import Any, NoReturn

from django.conf import settings
from django.db import models
from django.utils import timezone

from peer_agent.protocol.log.records import GENESIS
from runs.models.run import Run


class Head(models.Model):
    """The end of a run's log, and the claim of its host, the only process that may extend the log (rules 3 and 16)."""

    run = models.OneToOneField(Run, models.PROTECT, primary_key=True, related_name="head")
    index = models.BigIntegerField(default=0)  # number of committed entries
    step = models.BigIntegerField(default=0)  # number of updates in the model
    digest = models.CharField(max_length=64, default=GENESIS)  # of the last record
    fence = models.IntegerField(default=0)
    owner = models.CharField(max_length=200, blank=True)
    claim_expires = models.DateTimeField(null=True, blank=True)
    archived = models.BigIntegerField(default=0)  # the site's archive has all averages up to this entry
    archive_bytes = models.BigIntegerField(default=0)
    gap = models.BigIntegerField(default=0)  # entry whose averages the archive is waiting for; 0 if none
    void_rounds = models.BigIntegerField(default=0)  # counted by `runs.timeline`

    def __str__(self) -> str:
        return f"step {self.step}"


class LogEntry(models.Model):
    """One committed log entry, with the facts that pages need.

    The row is small, because pages read hundreds at a time. Each step up to the head's step has exactly one entry in
    the model (`IN_MODEL`). All other entries have been undone by rollbacks, or are updates on a lost branch (rule 16).
    """

    class Kind(models.TextChoices):
        UPDATE = "update"
        ROLLBACK = "rollback"  # goes back to `step`; has no loss and no samples
        LOST = "lost"  # an update that a restored database had lost when the log went on; index -1, -2, …

    run = models.ForeignKey(Run, models.PROTECT, related_name="log")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.UPDATE)
    is_undone = models.BooleanField(default=False)  # undone by a later rollback, or lost
    at = models.DateTimeField(default=timezone.now)
    digest = models.CharField(max_length=64)
    loss = models.FloatField()  # mean over the round's loss tokens, in nats
    tokens = models.BigIntegerField()
    samples = models.BigIntegerField()
    peers = models.IntegerField()
    duration_s = models.FloatField()
    attempts = models.IntegerField()
    exact = models.BooleanField()
    state_digest = models.CharField(max_length=16, blank=True)
    # From the record; null if the record has none.
    learning_rate = models.FloatField(null=True)
    bytes_averaged = models.BigIntegerField(null=True)  # gradient bytes, summed over all reducers

    class Meta:
        ordering = ("index",)
        verbose_name_plural = "log entries"
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="log_index_once"),)
        indexes = (models.Index(fields=("run", "step"), name="log_by_step"),)

    def __str__(self) -> str:
        return f"entry {self.index}"


IN_MODEL = models.Q(kind=LogEntry.Kind.UPDATE, is_undone=False)


class SealedRecord(models.Model):
    """The large part of a log entry (54 kB with 200 machines). Only `runs.ledger.records` reads or writes it."""

    entry = models.OneToOneField(LogEntry, models.PROTECT, primary_key=True, related_name="sealed")
    payload = models.BinaryField()
    signature = models.BinaryField()
    contributions = models.BinaryField(default=b"")  # canonical JSON; the signed head has only its digest

    def __str__(self) -> str:
        return f"record of entry {self.entry_id}"


class AuditMark(models.Model):
    """The books of a run's last audit without faults, up to a log entry. Only `runs.ledger.audit` uses this table."""

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="audit_mark")
    index = models.BigIntegerField()
    digest = models.CharField(max_length=64)  # of that entry's record
    books = models.BinaryField()
    at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"audited up to entry {self.index}"


class LeaseMark(models.Model):
    """A shard's lease mark in an epoch: all leased samples lie below it. It is raised before a lease (rule 11)."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="marks")
    epoch = models.BigIntegerField()
    shard = models.IntegerField()
    mark = models.BigIntegerField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "epoch", "shard"), name="lease_mark_once"),)

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard}: {self.mark}"


class Coverage(models.Model):
    """The samples of a shard that an epoch's committed updates include. Each commit adds its own (`ledger.records`)."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="coverage")
    epoch = models.BigIntegerField()
    shard = models.BigIntegerField()
    ranges = models.JSONField()  # [[start, stop), …] in ascending order; ranges neither overlap nor touch
    # In the same form: samples in no update, because their gradients contained non-finite values.
    left_out = models.JSONField(default=list)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "epoch", "shard"), name="coverage_once"),)

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard}: {len(self.ranges)} ranges"


Person = settings.AUTH_USER_MODEL


class LedgerQuerySet(models.QuerySet["LedgerEntry"]):
    def update(self, **_: Any) -> NoReturn:
        raise TypeError("the ledger is append-only")

    def delete(self) -> NoReturn:
        raise TypeError("the ledger is append-only")


class LedgerEntry(models.Model):
    """One machine's work in a committed entry. Credit is read from these rows alone.

    A row whose credit was taken back has a `reversal`: a row of the same entry with the negative amounts.
    """

    run = models.ForeignKey(Run, models.PROTECT, related_name="ledger")
    entry = models.ForeignKey(LogEntry, models.PROTECT, related_name="contributions")
    step = models.BigIntegerField()
    person = models.ForeignKey(Person, models.PROTECT, related_name="contributions")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="contributions")
    samples = models.BigIntegerField()
    tokens = models.BigIntegerField()
    credit = models.BigIntegerField()  # tokens times elements of the parameter vector
    weight = models.BigIntegerField()  # tokens that count towards the loss
    reverses = models.OneToOneField("self", models.PROTECT, null=True, related_name="reversal")
    reason = models.CharField(max_length=200, blank=True, db_default="")  # why `reverses` was reversed

    objects = LedgerQuerySet.as_manager()

    class Meta:
        ordering = ("id",)
        verbose_name_plural = "ledger entries"
        constraints = (
            models.UniqueConstraint(
                fields=("entry", "machine"), condition=models.Q(reverses=None), name="ledger_machine_once_an_entry"
            ),
        )
        # The index includes the samples, so that queries for recent work read nothing but the index.
        indexes = (models.Index(fields=("run", "person", "step", "samples"), name="ledger_by_person_and_step"),)

    def __str__(self) -> str:
        return f"{self.samples} samples in step {self.step}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save a new row. Raises TypeError if the row already exists."""
        if not self._state.adding:
            raise TypeError("the ledger is append-only")
        super().save(*args, **kwargs)

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("the ledger is append-only")


KEPT = models.Q(reverses=None, reversal=None)  # ledger rows whose credit was not taken back


class MachineTotal(models.Model):
    """A machine's total work in a run, as a sum over the ledger. Each commit updates it, and the audit checks it."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="totals")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="totals")
    person = models.ForeignKey(Person, models.PROTECT, related_name="totals")
    samples = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)
    credit = models.BigIntegerField(default=0)  # tokens times elements, capped at the column's maximum
    rounds = models.BigIntegerField(default=0)
    # Rounds counted for the person: only one of their machines counts in each round.
    person_rounds = models.BigIntegerField(default=0)
    last_step = models.BigIntegerField(default=0)
    # Samples up to the entry at which an audit last confirmed the machine's work. The others are provisional.
    checked = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "machine"), name="total_machine_once_a_run"),)
        indexes = (models.Index(fields=("run", "person"), name="total_by_person"),)

    def __str__(self) -> str:
        return f"{self.samples} samples of {self.machine_id}"


class Check(models.Model):
    """The audits that a machine's work in a run has passed. Its work up to the entry `index` counts as checked."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="checks")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="checks")
    passed = models.BigIntegerField(default=0)  # since an audit last proved the machine's work false
    index = models.BigIntegerField(default=0)
    at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "machine"), name="check_machine_once_a_run"),)

    def __str__(self) -> str:
        return f"{self.machine_id} up to entry {self.index}"


class DailyTotal(models.Model):
    """A person's work in a run on one UTC day, updated by each commit (`ledger.totals`)."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="daily")
    person = models.ForeignKey(Person, models.PROTECT, related_name="daily")
    day = models.IntegerField()  # since 1970; all databases store such numbers alike
    samples = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "person", "day"), name="daily_person_once_a_day"),)
        indexes = (models.Index(fields=("day", "run"), name="daily_by_day"),)

    def __str__(self) -> str:
        return f"{self.samples} samples of {self.person_id} on day {self.day}"


class AveragedTotal(models.Model):
    """Gradient bytes that a relay or auxiliary has averaged in a run. Each commit updates them."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="averaged")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="averaged")
    person = models.ForeignKey(Person, models.PROTECT, related_name="averaged")
    bytes_averaged = models.BigIntegerField(default=0)  # capped at the column's maximum

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "machine"), name="averaged_machine_once_a_run"),)

    def __str__(self) -> str:
        return f"{self.bytes_averaged} bytes of {self.machine_id}"

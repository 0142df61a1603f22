"""Credit: rows that are only ever added, and sums over them."""

from typing import Any, NoReturn

from django.conf import settings
from django.db import models

from runs.models.log import LogEntry
from runs.models.run import Run

Person = settings.AUTH_USER_MODEL


class LedgerQuerySet(models.QuerySet["LedgerEntry"]):
    """Rows are added and read, nothing else."""

    def update(self, **_: Any) -> NoReturn:
        """Raises TypeError."""
        raise TypeError("the ledger is append-only")

    def delete(self) -> NoReturn:
        """Raises TypeError."""
        raise TypeError("the ledger is append-only")


class LedgerEntry(models.Model):
    """One machine's averaged-in work in one committed entry. Credit is read from here and from nowhere else."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="ledger")
    entry = models.ForeignKey(LogEntry, models.PROTECT, related_name="contributions")
    step = models.BigIntegerField()
    person = models.ForeignKey(Person, models.PROTECT, related_name="contributions")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="contributions")
    samples = models.BigIntegerField()
    tokens = models.BigIntegerField()
    credit = models.BigIntegerField()  # token-elements
    weight = models.BigIntegerField()  # loss tokens

    objects = LedgerQuerySet.as_manager()

    class Meta:
        ordering = ("id",)
        verbose_name_plural = "ledger entries"
        constraints = (models.UniqueConstraint(fields=("entry", "machine"), name="ledger_machine_once_an_entry"),)
        # With the samples, so that what people gave lately is read from it alone.
        indexes = (models.Index(fields=("run", "person", "step", "samples"), name="ledger_by_person_and_step"),)

    def __str__(self) -> str:
        return f"{self.samples} samples in step {self.step}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises TypeError on a row that exists."""
        if not self._state.adding:
            raise TypeError("the ledger is append-only")
        super().save(*args, **kwargs)

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        """Raises TypeError."""
        raise TypeError("the ledger is append-only")


class MachineTotal(models.Model):
    """What a machine has given to a run: written with each commit (`ledger.totals`), audited against the ledger."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="totals")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="totals")
    person = models.ForeignKey(Person, models.PROTECT, related_name="totals")
    samples = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)
    credit = models.BigIntegerField(default=0)  # token-elements; stays at the largest value that the column holds
    rounds = models.BigIntegerField(default=0)
    person_rounds = models.BigIntegerField(default=0)  # those that count for its person here; one in each round does
    last_step = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "machine"), name="total_machine_once_a_run"),)
        indexes = (models.Index(fields=("run", "person"), name="total_by_person"),)

    def __str__(self) -> str:
        return f"{self.samples} samples of {self.machine_id}"


class DailyTotal(models.Model):
    """What a person gave to a run in one day of UTC: written with each commit (`ledger.totals`)."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="daily")
    person = models.ForeignKey(Person, models.PROTECT, related_name="daily")
    day = models.IntegerField()  # since 1970: databases agree on what numbers are
    samples = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "person", "day"), name="daily_person_once_a_day"),)
        indexes = (models.Index(fields=("day", "run"), name="daily_by_day"),)

    def __str__(self) -> str:
        return f"{self.samples} samples of {self.person_id} on day {self.day}"


class AveragedTotal(models.Model):
    """Bytes of gradients that a relay or an auxiliary has averaged in a run: written with each commit, no samples."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="averaged")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="averaged")
    person = models.ForeignKey(Person, models.PROTECT, related_name="averaged")
    bytes_averaged = models.BigIntegerField(default=0)  # stays at the largest value that the column holds

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "machine"), name="averaged_machine_once_a_run"),)

    def __str__(self) -> str:
        return f"{self.bytes_averaged} bytes of {self.machine_id}"

"""The table of jobs."""

from django.db import models
from django.utils import timezone


class Job(models.Model):
    """A piece of background work to be done. There is at most one per kind and key.

    A worker leases a job and deletes it once the work is done. If the worker dies, its lease expires and another worker
    takes over. A failed job stays in the table until it is requested again.
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        FAILED = "failed"  # not retried automatically

    kind = models.CharField(max_length=24)
    key = models.CharField(max_length=64, blank=True)  # usually the id of the row being worked on
    state = models.CharField(max_length=8, choices=State.choices, default=State.QUEUED)
    due = models.DateTimeField()
    lease = models.CharField(max_length=16, blank=True)  # identifies the worker's lease while the job is running
    leased_until = models.DateTimeField(null=True)
    is_wanted_again = models.BooleanField(default=False)  # requested again since the last lease began
    failures = models.IntegerField(default=0)  # in a row
    fault = models.TextField(blank=True)  # why it last failed
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("kind", "key"), name="one_job_a_kind_and_key"),)
        indexes = (models.Index(fields=("state", "due"), name="job_due"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.key[:8]}"

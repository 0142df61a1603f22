"""What visitors let released models write."""

import uuid

from django.db import models
from django.utils import timezone

from runs.models.run import Run


class Trial(models.Model):
    """A prompt that a visitor has given to a released model, and what it wrote. It is forgotten within the hour."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)  # who knows it reads the text
    run = models.ForeignKey(Run, models.CASCADE, related_name="trials")
    asker = models.CharField(max_length=64)  # a keyed digest of the person or the address: nobody can read it back
    slot = models.PositiveSmallIntegerField(null=True, unique=True)  # one of the site's, while it waits
    prompt = models.TextField()
    text = models.TextField(blank=True)
    is_whole = models.BooleanField(default=True)  # all of the prompt was read
    fault = models.TextField(blank=True)
    asked_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("asker",), condition=models.Q(slot__isnull=False), name="one_trial_at_a_time"
            ),
        )

    def __str__(self) -> str:
        return f"trial of {self.run_id}"

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is written yet."""
        return self.slot is not None

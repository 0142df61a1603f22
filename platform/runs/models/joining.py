"""Who asked to become a member of a run by request."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from runs.models.run import Run

LONGEST_MESSAGE = 500

Person = settings.AUTH_USER_MODEL


class JoinRequest(models.Model):
    """Somebody asked. Without a row nobody did, or it was accepted, taken back or forgotten."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="join_requests")
    person = models.ForeignKey(Person, models.CASCADE, related_name="join_requests")
    message = models.CharField(max_length=LONGEST_MESSAGE, blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    declined_at = models.DateTimeField(null=True, blank=True)  # null: it waits

    class Meta:
        ordering = ("asked_at", "id")
        constraints = (models.UniqueConstraint(fields=("run", "person"), name="one_request_a_person"),)

    def __str__(self) -> str:
        return f"{self.person_id} asks to join {self.run_id}"

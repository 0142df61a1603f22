"""Who helps an organizer with a run: co-organizers and moderators."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from runs.models.run import Run

Person = settings.AUTH_USER_MODEL
GIVEN = (Run.Role.CO_ORGANIZER, Run.Role.MODERATOR)


class RunRole(models.Model):
    """A role that somebody holds in a run, or was invited to. Without a row it was refused, given up or taken back."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="roles")
    person = models.ForeignKey(Person, models.CASCADE, related_name="run_roles")
    role = models.CharField(max_length=12, choices=[(role.value, role.label) for role in GIVEN])
    invited_at = models.DateTimeField(default=timezone.now)
    invited_by = models.ForeignKey(Person, models.PROTECT, related_name="+")
    accepted_at = models.DateTimeField(null=True, blank=True)  # null: invited

    class Meta:
        ordering = ("accepted_at", "id")
        constraints = (
            models.UniqueConstraint(fields=("run", "person"), name="one_role_a_person"),
            models.CheckConstraint(condition=Q(role__in=[role.value for role in GIVEN]), name="role_can_be_given"),
        )

    def __str__(self) -> str:
        return f"{self.person_id} in {self.run_id}: {self.role}"

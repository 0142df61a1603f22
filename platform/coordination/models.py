"""What a host shows of its run between commits. Nothing is decided from it; it is written anew every second."""

from django.db import models

from runs.models import Run


class Presence(models.Model):
    """Who is in a run now and how far the step is."""

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="presence")
    at = models.DateTimeField(auto_now=True)
    phase = models.CharField(max_length=12)
    done = models.BigIntegerField(default=0)  # samples in the accumulators
    target = models.BigIntegerField(default=0)
    void_rounds = models.BigIntegerField(default=0)
    members = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{len(self.members)} peers"

"""Functions for tests of other packages: list the requested jobs, or do a job and return its outcome."""

from uuid import UUID

import coordination.background
import notices.delivery
import runs.background
import web.operator_alerts
from jobs import runner
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import Outcome

BACKGROUND = (
    coordination.background,
    notices.delivery,
    runs.background,
    web.operator_alerts,
)  # importing them registers their jobs


def requested() -> list[tuple[str, str]]:
    """Return the kind and the key of each job in the table, oldest first."""
    return list(Job.objects.order_by("pk").values_list("kind", "key"))


def requested_kinds() -> list[str]:
    return [kind for kind, _ in requested()]


def forget_requests() -> None:
    Job.objects.all().delete()


def do(kind: Kind, key: UUID | str = "") -> Outcome:
    """Do a job at once, whether or not it was requested, and return its outcome."""
    return runner._known[kind](Job(kind=kind, key=key.hex if isinstance(key, UUID) else key))

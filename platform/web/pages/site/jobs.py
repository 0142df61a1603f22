"""The operators' list of background jobs, with a button for retrying one."""

from typing import NamedTuple
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from jobs import queue
from jobs.models import Job
from jobs.queue import Kind
from runs.models import Dataset, Run
from web.http.requester import person_in

MOST_SHOWN = 50
TITLES: dict[Kind, Promise] = {
    Kind.DELETE_FILES: _("Delete files from the bucket"),
    Kind.DELIVER_NOTICES: _("Send notifications"),
    Kind.EXPIRE_PENDING: _("Delete uploads that were not confirmed"),
    Kind.FORGET_NAME: _("Erase a deleted account's name"),
    Kind.MAKE_RELEASE: _("Make the release"),
    Kind.MEASURE_HELDOUT: _("Measure held-out loss"),
    Kind.PREPARE_DATASET: _("Prepare the data"),
    Kind.PREPARE_RUN: _("Create the initial model"),
    Kind.PUBLISH_CHECKPOINT: _("Send a checkpoint to the Hub"),
    Kind.PUBLISH_RELEASE: _("Send the release to the Hub"),
    Kind.RECHECK: _("Compute contributions again"),
    Kind.REMAKE_RELEASE: _("Make the release again"),
    Kind.THIN_SNAPSHOTS: _("Delete old snapshots"),
    Kind.ARCHIVE_LOG: _("Archive the log"),
    Kind.VERIFY_SNAPSHOTS: _("Replay the log"),
    Kind.WATCH_CHECKS: _("Tell operators of failing checks"),
    Kind.WRITE_TRIAL: _("Continue a visitor's text"),
}


class Shown(NamedTuple):
    """A job as shown on the page. `about` is a run's or dataset's title, or empty; `slug` is set for runs."""

    job: Job
    title: Promise
    about: str
    slug: str


def jobs_shown() -> list[Shown]:
    """Return the jobs, most urgent first: those given up, those being retried after a failure, running and queued ones.

    Within each group, the job that has been due longest comes first. The job that runs every minute is left out, unless
    it is failing.
    """
    rank = {Job.State.FAILED: 0, Job.State.RUNNING: 2, Job.State.QUEUED: 3}
    jobs = sorted(
        Job.objects.exclude(kind=Kind.WATCH_CHECKS, fault="").order_by("due")[: 4 * MOST_SHOWN],
        key=lambda job: (1 if job.fault and job.state != Job.State.FAILED else rank[Job.State(job.state)], job.due),
    )[:MOST_SHOWN]
    ids = [UUID(job.key) for job in jobs if len(job.key) == 32 and job.kind != Kind.FORGET_NAME]
    runs = {
        pk.hex: (title, slug) for pk, title, slug in Run.objects.filter(pk__in=ids).values_list("pk", "title", "slug")
    }
    data = {pk.hex: (title, "") for pk, title in Dataset.objects.filter(pk__in=ids).values_list("pk", "title")}
    return [Shown(job, TITLES[Kind(job.kind)], *(runs | data).get(job.key, ("", ""))) for job in jobs]


@login_required
@require_POST
def try_again(request: HttpRequest, number: int) -> HttpResponse:
    """Queue a job to be retried at once. Do nothing if it has already been done."""
    if not person_in(request).is_superuser:
        raise PermissionDenied("This is for the operators of this site.")
    job = Job.objects.filter(pk=number).first()
    if job is not None:
        queue.try_again(Kind(job.kind), job.key)
    return redirect("web:checklist")

"""The operators' list of background jobs."""

from datetime import timedelta

from django.db.models import F

from accounts.models import Person
from jobs import queue
from jobs.models import Job
from jobs.queue import Kind, Lane
from runs.models import Run
from tests.web.browsing import as_, page
from web import health
from web.health import State
from web.pages.site.jobs import TITLES, jobs_shown


def given_up(kind: Kind, key: str, fault: str) -> Job:
    queue.put(kind, key)
    job = queue.claim(queue.LANES[kind])
    assert job is not None
    queue.give_up(job, fault)
    return job


def test_every_kind_has_a_title() -> None:
    assert set(TITLES) == set(Kind)


def test_what_failed_is_first_with_its_reason_and_its_run(operator: Person, run: Run) -> None:
    queue.put(Kind.VERIFY_SNAPSHOTS, run.pk)
    given_up(Kind.MEASURE_HELDOUT, run.pk.hex, "E360: It <ran> out of memory.")
    queue.put(Kind.WRITE_TRIAL, "0" * 32)
    assert [shown.job.kind for shown in jobs_shown()] == ["measure held-out", "verify snapshots", "write trial"]
    text = page(as_(operator).get("/operator/"))
    assert f'<a href="/runs/{run.slug}/">{run.title}</a>' in text
    assert "E360: It &lt;ran&gt; out of memory." in text
    assert text.count("Try again</button>") == 1, "the others are under way"


def test_an_operator_tries_a_job_again(operator: Person, volunteer: Person, run: Run) -> None:
    job = given_up(Kind.MEASURE_HELDOUT, run.pk.hex, "E360: no")
    assert as_(volunteer).post(f"/operator/jobs/{job.pk}/again/").status_code == 403
    assert queue.claim(Lane.MEASURE) is None
    assert as_(operator).post(f"/operator/jobs/{job.pk}/again/")["Location"] == "/operator/"
    assert queue.claim(Lane.MEASURE) == job
    queue.done(job)
    assert as_(operator).post(f"/operator/jobs/{job.pk}/again/").status_code == 302, "it is done"


def test_the_check_of_the_worker_tells_of_jobs(operator: Person, run: Run) -> None:
    health.worker_mark().parent.mkdir(parents=True, exist_ok=True)
    health.worker_mark().touch()
    queue.put(Kind.VERIFY_SNAPSHOTS, run.pk)
    assert health.check_worker().state == State.OK
    Job.objects.update(due=F("due") - timedelta(seconds=health.OVERDUE_S + 1))
    assert health.check_worker().said == "1 job waits for longer than usual."
    given_up(Kind.MEASURE_HELDOUT, run.pk.hex, "E360: no")
    found = health.check_worker()
    assert (found.said, found.is_down) == ("1 job has failed.", False)

"""Requests for jobs and their leases, on each database engine."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from jobs import queue
from jobs.models import Job
from jobs.queue import LANES, Kind, Lane
from tests.coordination.engines import in_other_thread
from tests.coordination.hosts.test_claims import wait_for_a_lock

VERIFY, WORKERS = Kind.VERIFY_SNAPSHOTS, 4

pytestmark = pytest.mark.usefixtures("database")


def lease() -> Job:
    found = queue.claim(Lane.REPLAY)
    assert found is not None
    return found


def expire() -> None:
    Job.objects.update(leased_until=Now() - timedelta(seconds=1))


def due_in_s() -> float:
    return (Job.objects.get().due - timezone.now()).total_seconds()


def test_each_kind_has_a_lane_and_each_lane_a_kind() -> None:
    assert set(LANES) == set(Kind)
    assert set(LANES.values()) == set(Lane)


class TestRequests:
    def test_a_job_is_done_once_however_often_it_is_requested(self) -> None:
        for _ in range(3):
            queue.put(VERIFY, "a")
        queue.done(lease())
        assert not Job.objects.exists()

    def test_a_request_is_due_in_the_same_millisecond(self) -> None:
        """A regression: SQLite compares times as text, and wrote this one with more digits than the present time."""
        queue.put(VERIFY, "a")
        with connection.cursor() as cursor:
            cursor.execute("SELECT CAST(due AS text) FROM jobs_job")
            ((due,),) = cursor.fetchall()
        assert connection.vendor != "sqlite" or len(due) <= len("2026-01-31 12:00:00.123")

    def test_a_request_is_part_of_the_callers_transaction(self) -> None:
        with transaction.atomic():
            queue.put(VERIFY, "a")
            transaction.set_rollback(True)
        assert queue.claim(Lane.REPLAY) is None

    def test_a_job_requested_while_it_runs_is_done_again(self) -> None:
        queue.put(VERIFY, "a")
        job = lease()
        queue.put(VERIFY, "a")
        assert queue.claim(Lane.REPLAY) is None, "not while it runs"
        queue.done(job)
        queue.done(lease())
        assert not Job.objects.exists()

    def test_a_later_request_waits_and_an_earlier_one_comes_first(self) -> None:
        queue.put(VERIFY, "a", after_s=60)
        assert queue.claim(Lane.REPLAY) is None
        queue.put(VERIFY, "a", after_s=120)
        assert 50 < due_in_s() < 61
        queue.put(VERIFY, "a")
        assert lease().key == "a"

    def test_a_retry_keeps_its_time_until_a_person_asks(self) -> None:
        queue.put(VERIFY, "a")
        queue.later(lease(), 60, "E346: no answer")
        queue.put(VERIFY, "a")
        assert due_in_s() > 50
        queue.try_again(VERIFY, "a")
        assert (lease().failures, Job.objects.get().fault) == (1, "E346: no answer")

    def test_a_job_that_was_given_up_waits_for_a_request(self) -> None:
        queue.put(VERIFY, "a")
        queue.give_up(lease(), "E360: no")
        assert queue.claim(Lane.REPLAY) is None
        assert (Job.objects.get().state, Job.objects.get().fault) == ("failed", "E360: no")
        queue.put(VERIFY, "a")
        assert lease().key == "a"

    def test_a_job_requested_while_it_fails_is_not_given_up(self) -> None:
        queue.put(VERIFY, "a")
        job = lease()
        queue.put(VERIFY, "a")
        queue.give_up(job, "E360: no")
        assert lease().key == "a"

    def test_a_request_during_a_wait_without_fault_is_done_at_once(self) -> None:
        queue.put(VERIFY, "a")
        queue.later(lease(), 60)
        queue.put(VERIFY, "a")
        assert lease().key == "a"

    def test_a_request_meets_the_end_of_the_job(self) -> None:
        """Another transaction has deleted the row but not committed: the request waits for it, and is not lost."""
        queue.put(VERIFY, "a")
        job = lease()
        with transaction.atomic():
            queue.done(job)
            asking: Any = in_other_thread(lambda: queue.put(VERIFY, "a"))
            if connection.vendor == "postgresql":
                wait_for_a_lock()
        asking.outcome()
        assert lease().key == "a"


class TestLeases:
    def test_the_job_that_waits_longest_is_first_and_lanes_are_apart(self) -> None:
        for key in ("a", "b"):
            queue.put(VERIFY, key)
        queue.put(Kind.WRITE_TRIAL, "c")
        Job.objects.filter(key="b").update(due=F("due") - timedelta(seconds=9))
        assert [lease().key, lease().key, queue.claim(Lane.REPLAY)] == ["b", "a", None]

    def test_of_many_workers_one_gets_the_job(self) -> None:
        queue.put(VERIFY, "a")
        asides = [in_other_thread(lambda: queue.claim(Lane.REPLAY)) for _ in range(WORKERS)]
        assert sum(aside.outcome() is not None for aside in asides) == 1

    def test_a_dead_workers_job_is_anothers_and_its_word_is_ignored(self) -> None:
        queue.put(VERIFY, "a")
        first = lease()
        assert queue.claim(Lane.REPLAY) is None
        expire()
        second = lease()
        assert second.failures == 1
        for say in (queue.done, queue.release, lambda job: queue.give_up(job, "no"), lambda job: queue.renew([job])):
            say(first)
            assert Job.objects.get().lease == second.lease
        queue.done(second)
        assert not Job.objects.exists()

    def test_a_renewed_lease_lasts(self) -> None:
        queue.put(VERIFY, "a")
        job = lease()
        expire()
        queue.renew([job])
        assert queue.claim(Lane.REPLAY) is None

    def test_a_job_that_ends_workers_is_given_up(self) -> None:
        queue.put(VERIFY, "a")
        for _ in range(queue.DEADLY):
            lease()
            expire()
        assert queue.claim(Lane.REPLAY) is None
        job = Job.objects.get()
        assert (job.state, job.fault) == ("failed", queue.DIED.format(times=queue.DEADLY))

    def test_a_site_that_is_alone_takes_all_back(self) -> None:
        queue.put(VERIFY, "a")
        lease()
        queue.release_all()
        assert lease().failures == 0

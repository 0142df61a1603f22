"""The contract of claims: each run has one host, numbered by a fence. Claims expire by the database's clock."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from coordination.hosts import claims
from runs.models import Head, Run
from tests.coordination.engines import PATIENCE_S, in_other_thread
from tests.coordination.example_run import Example, example_run

CLAIMANTS = 4


@pytest.fixture
def example(database: str) -> Example:
    return example_run()


def expire(run: Run) -> None:
    Head.objects.filter(run=run).update(claim_expires=Now() - timedelta(seconds=1))


def wait_for_a_lock() -> None:
    until = time.monotonic() + PATIENCE_S
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while time.monotonic() < until:
        with connection.cursor() as cursor:
            cursor.execute(waiting)
            if cursor.fetchone()[0]:
                return
    raise AssertionError("nobody waits")


class TestContract:
    def test_the_first_claim_wins_and_holds(self, example: Example) -> None:
        assert claims.claim(example.run, "one") == 1
        assert claims.claim(example.run, "two") is None
        assert claims.hosts_of() == {example.run.run_id: ("one", 1)}
        assert claims.live_runs() == []

    def test_a_claim_is_renewed_by_its_owner_alone(self, example: Example) -> None:
        fence = claims.claim(example.run, "one")
        assert fence is not None
        before = Head.objects.get().claim_expires
        assert claims.renew(example.run, "one", fence)
        after = Head.objects.get().claim_expires
        assert before is not None
        assert after is not None
        assert after > before
        assert not claims.renew(example.run, "two", fence)
        assert not claims.renew(example.run, "one", fence + 1)

    def test_a_released_run_is_free_at_once(self, example: Example) -> None:
        claims.release(example.run, "one", claims.claim(example.run, "one") or 0)
        assert claims.live_runs() == [example.run]
        assert claims.claim(example.run, "two") == 2

    def test_only_the_owner_releases(self, example: Example) -> None:
        claims.claim(example.run, "one")
        claims.release(example.run, "two", 1)
        claims.release(example.run, "one", 2)
        assert claims.live_runs() == []

    def test_a_claim_expires_and_the_fence_rises_by_one_each_time(self, example: Example) -> None:
        for fence in range(1, 5):
            assert claims.claim(example.run, f"host {fence}") == fence
            expire(example.run)
            assert claims.hosts_of() == {}
            assert claims.live_runs() == [example.run]

    def test_a_restored_database_gives_no_fence_a_second_time(
        self, example: Example, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claims, "EPOCH", 1_767_225_600)
        fence = claims.claim(example.run, "one") or 0
        assert 0 <= time.time() - claims.EPOCH - fence < 60
        with transaction.atomic():
            for owner in ("two", "three"):
                expire(example.run)
                lost = claims.claim(example.run, owner) or 0
            transaction.set_rollback(True)
        expire(example.run)
        assert lost == fence + 2
        monkeypatch.setattr(claims, "EPOCH", claims.EPOCH - 60)  # the restore took a minute
        assert (claims.claim(example.run, "four") or 0) > lost

    def test_a_host_that_comes_back_late_is_deposed(self, example: Example) -> None:
        fence = claims.claim(example.run, "one") or 0
        expire(example.run)
        assert claims.renew(example.run, "one", fence), "nobody has taken it: it may go on"
        expire(example.run)
        claims.claim(example.run, "two")
        assert not claims.renew(example.run, "one", fence)

    def test_the_hosts_own_clock_counts_for_nothing(self, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
        claims.claim(example.run, "one")
        far = timezone.now() + timedelta(days=4000)
        monkeypatch.setattr(timezone, "now", lambda: far)
        monkeypatch.setattr(time, "time", far.timestamp)
        assert claims.claim(example.run, "two") is None
        assert claims.hosts_of() == {example.run.run_id: ("one", 1)}

    def test_a_claim_lasts_as_long_as_it_says(self, example: Example) -> None:
        claims.claim(example.run, "one")
        left = claims.CLAIM - timedelta(seconds=claims.RENEW_S)
        assert Head.objects.filter(claim_expires__gt=Now() + left).exists()
        assert not Head.objects.filter(claim_expires__gt=Now() + claims.CLAIM).exists()

    @pytest.mark.parametrize("state", [Run.State.DRAFT, Run.State.FINISHING, Run.State.FINISHED])
    def test_only_live_runs_are_claimed(self, example: Example, state: Run.State) -> None:
        Run.objects.update(state=state)
        assert claims.live_runs() == []
        assert claims.claim(example.run, "one") is None

    def test_a_paused_run_has_a_host(self, example: Example) -> None:
        Run.objects.update(state=Run.State.PAUSED)
        assert claims.claim(example.run, "one") == 1

    def test_one_run_is_asked_for_by_its_name(self, example: Example) -> None:
        claims.claim(example.run, "one")
        assert claims.hosts_of(example.run.run_id) == {example.run.run_id: ("one", 1)}
        assert claims.hosts_of("0" * 32) == {}

    def test_a_process_that_is_alone_forgets_the_dead(self, example: Example) -> None:
        claims.claim(example.run, "one")
        claims.forget_the_dead()
        assert claims.claim(example.run, "two") == 2

    def test_of_many_claimants_exactly_one_wins(self, example: Example) -> None:
        for turn in range(1, 6):
            together = threading.Barrier(CLAIMANTS)

            def claim(name: str, together: threading.Barrier = together) -> int | None:
                together.wait(PATIENCE_S)
                return claims.claim(example.run, name)

            asides = [in_other_thread(lambda name=f"host {n}": claim(name)) for n in range(CLAIMANTS)]  # type: ignore[misc]
            fences = [aside.outcome() for aside in asides]
            assert sorted(fences, key=lambda fence: fence or 0) == [None] * (CLAIMANTS - 1) + [turn]
            expire(example.run)

    def test_a_claimant_that_waited_for_the_winner_gets_nothing(self, example: Example) -> None:
        """The second claimant waits for the lock on the winner's row. A subquery would still see the row from before
        the claim.
        """
        with transaction.atomic():
            assert claims.claim(example.run, "one") == 1
            second: Any = in_other_thread(lambda: claims.claim(example.run, "two"))
            if connection.vendor == "postgresql":
                wait_for_a_lock()
        assert second.outcome() is None
        head = Head.objects.get()
        assert (head.owner, head.fence) == ("one", 1)

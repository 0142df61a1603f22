"""The figures that all processes share, as Prometheus reads them."""

from collections import Counter
from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from accounts.models import Machine, Person
from coordination.models import Presence
from jobs import queue
from jobs.queue import Kind
from runs.models import AveragedTotal, Head, Run
from tests.runs.factories import owned
from web import health, metrics
from web.operator_alerts import note_changes

INTERNET = "93.184.216.34"


def figures() -> dict[tuple[Any, ...], float]:
    """Return the values of a scrape, by the name and the values of labels in alphabetical order."""
    text = metrics.exposition().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value for sample in samples}


def test_only_its_own_network_and_the_token_read_them(db: None, settings: Any) -> None:
    client = Client()
    assert client.get("/metrics").headers["Content-Type"].startswith("text/plain; version=")
    assert client.get("/metrics", REMOTE_ADDR=INTERNET).status_code == 404
    assert client.get("/metrics", HTTP_X_FORWARDED_FOR=INTERNET).status_code == 404
    settings.METRICS_TOKEN = "quiet otters"
    assert client.get("/metrics").status_code == 404
    assert client.get("/metrics", REMOTE_ADDR=INTERNET, HTTP_AUTHORIZATION="Bearer quiet otters").status_code == 200


def test_a_run_has_its_step_its_members_and_its_void_rounds(run: Run, operator: Person) -> None:
    Head.objects.filter(run=run).update(step=7, void_rounds=2)
    shown = {"name": "x", "state": "ready", "done": 0, "samples_per_s": 1.0}
    members = [
        {**shown, "peer": f"{place:032x}", "role": role} for place, role in enumerate(["trainer", "trainer", "relay"])
    ]
    Presence.objects.create(run=run, phase="accumulate", members=members)
    relay = owned(operator, kind=Machine.Kind.RELAY).machine
    AveragedTotal.objects.create(run=run, machine=relay, person=operator, bytes_averaged=5_000)
    found = figures()
    assert found["manyhands_run_step", run.slug] == 7
    assert found["manyhands_run_running", run.slug] == 1
    assert found["manyhands_run_void_rounds_total", run.slug] == 2
    assert [found["manyhands_run_members", role, run.slug] for role in ("trainer", "relay")] == [2, 1]
    assert found["manyhands_averaged_bytes_total", relay.id.hex, run.slug] == 5_000
    assert abs(found["manyhands_run_last_commit_timestamp_seconds", run.slug] - timezone.now().timestamp()) < 600
    Run.objects.filter(pk=run.pk).update(state=Run.State.PAUSED)
    assert figures()["manyhands_run_running", run.slug] == 0


def test_jobs_are_counted_by_kind_and_state(db: None) -> None:
    queue.put(Kind.VERIFY_SNAPSHOTS, "a")
    queue.put(Kind.VERIFY_SNAPSHOTS, "b")
    job = queue.claim(queue.Lane.REPLAY)
    assert job is not None
    queue.give_up(job, "E360: no")
    found = figures()
    assert {state: found["manyhands_jobs", "verify snapshots", state] for state in ("queued", "failed")} == {
        "queued": 1,
        "failed": 1,
    }
    assert found["manyhands_jobs_overdue_seconds",] < 60


def test_machines_may_claim_any_version(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = {("trainer", f"0.1.{number}"): 1 for number in range(60)} | {
        ("trainer", '"\n} 1'): 100,
        ("relay", "0.1.0"): 2,
    }
    monkeypatch.setattr(metrics, "LINKED", Counter(claimed))
    links = {key[1:]: value for key, value in figures().items() if key[0] == "manyhands_links"}
    assert links["relay", "0.1.0"] == 2
    assert links["trainer", "other"] > 100
    assert len(links) <= metrics.VERSIONS + 1
    assert sum(links.values()) == 162


def test_a_database_that_is_away_leaves_the_figures_of_the_process(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert figures()["manyhands_database_up",] == 1
    monkeypatch.setattr(metrics, "_read_runs", fail)
    found = figures()
    assert found["manyhands_database_up",] == 0
    assert "process_resident_memory_bytes" in {name for name, *_ in found}
    assert "manyhands_jobs_overdue_seconds" not in {name for name, *_ in found}


def fail(*_: object) -> None:
    raise DatabaseError


def test_a_failing_check_is_1(db: None) -> None:
    for name, state in (("disk", health.State.LOOK), ("clock", health.State.OK)):
        note_changes([health.Checked(name, name, health.Finding(state, ""))], timezone.now())
    found = {key[1]: value for key, value in figures().items() if key[0] == "manyhands_check_failing"}
    assert (found["disk"], found["clock"], len(found)) == (1, 0, len(health.CHECKS))

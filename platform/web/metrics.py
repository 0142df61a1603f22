"""The response to `/metrics`: this process's figures, and figures that all processes share, from the database.

Every site process reports the shared figures, so Prometheus queries must take their maximum over processes. Each scrape
makes a fixed number of database queries, and covers at most `RUNS` runs.
"""

import re
import shutil
from collections import Counter as Count
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError
from django.db import models as db
from django.utils import timezone
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, generate_latest

from accounts.models import Machine
from coordination import presence
from coordination.sockets.consumer import LINKED
from jobs.models import Job
from notices.models import Trouble
from runs.models import AveragedTotal, LogEntry, Run
from runs.states import LIVE
from web import health

RUNS, RELAYS = 100, 500  # most runs (the newest), and most relays
VERSIONS = 20  # of agents; rarer ones are counted together
VERSION = re.compile(r"\d+(\.\d+){1,3}[a-z0-9.+]{0,12}")
OTHER = "other"
DATABASE = [check for check in health.CHECKS if check.name == "database"]


def exposition() -> bytes:
    """Return the figures in Prometheus's text format. While the database is down, leave out its figures."""
    registry = CollectorRegistry()
    gauge = partial(Gauge, registry=registry)
    links = gauge("manyhands_links", "Machines linked to this process, by role and version.", ["role", "version"])
    for (role, version), number in _few(LINKED).items():
        links.labels(role, version).set(number)
    free = gauge("manyhands_disk_free_bytes", "Free space of the disk of a folder.", ["folder"])
    for folder in (Path(settings.DATA), *settings.RELAY_FOLDERS):
        if folder.exists():
            free.labels(str(folder)).set(shutil.disk_usage(folder).free)
    is_up = not any(each.finding.state == health.State.LOOK for each in health.look(DATABASE))
    stored = CollectorRegistry()
    try:
        if is_up:
            _read(stored)
    except DatabaseError:
        is_up, stored = False, CollectorRegistry()
    gauge("manyhands_database_up", "1 if the database answers this process.").set(is_up)
    return generate_latest(REGISTRY) + generate_latest(registry) + generate_latest(stored)


def _few(linked: Count[tuple[str, str]]) -> Count[tuple[str, str]]:
    """Return the number of links by role and version. Rare and odd versions are merged, since agents may claim any."""
    found: Count[tuple[str, str]] = Count()
    for place, ((role, version), number) in enumerate(linked.most_common()):
        is_usual = place < VERSIONS and VERSION.fullmatch(version) is not None
        if number > 0:
            found[role, version if is_usual else OTHER] += number
    return found


def _read(registry: CollectorRegistry) -> None:
    gauge = partial(Gauge, registry=registry)
    failing = gauge("manyhands_check_failing", "1 if a check of the site needs an operator.", ["check"])
    bad = set(Trouble.objects.exclude(since=None).values_list("check_name", flat=True))  # as of a minute ago
    for check in health.CHECKS:
        failing.labels(check.name).set(check.name in bad)
    jobs = gauge("manyhands_jobs", "Jobs in the table.", ["kind", "state"])
    for kind, state, number in Job.objects.order_by().values_list("kind", "state").annotate(number=db.Count("pk")):
        jobs.labels(kind, state).set(number)
    first = Job.objects.filter(state=Job.State.QUEUED).aggregate(first=db.Min("due"))["first"]
    waiting_s = max(0.0, (timezone.now() - first).total_seconds()) if first is not None else 0.0
    gauge("manyhands_jobs_overdue_seconds", "How long the first due job has been due.").set(waiting_s)
    runs = list(Run.objects.filter(state__in=LIVE).select_related("head").order_by("-created_at")[:RUNS])
    _read_runs(runs, registry)
    averaged = Counter(
        "manyhands_averaged_bytes", "Gradients that a relay averaged.", ["run", "relay"], registry=registry
    )
    relays = AveragedTotal.objects.filter(run__in=runs, machine__kind=Machine.Kind.RELAY).order_by("-pk")
    for slug, machine, size in relays.values_list("run__slug", "machine_id", "bytes_averaged")[:RELAYS]:
        averaged.labels(slug, machine.hex).inc(size)


def _read_runs(runs: Iterable[Run], registry: CollectorRegistry) -> None:
    gauge = partial(Gauge, registry=registry)
    at_head = LogEntry.objects.filter(run__in=runs, index=db.F("run__head__index"))
    commits, online = dict(at_head.values_list("run", "at")), presence.online_in(runs)
    step = gauge("manyhands_run_step", "Updates in a run's model.", ["run"])
    moved = gauge(
        "manyhands_run_last_commit_timestamp_seconds", "Time of the last commit; before it, of the opening.", ["run"]
    )
    running = gauge("manyhands_run_running", "1 if a run is to train now.", ["run"])
    members = gauge("manyhands_run_members", "Machines in a run, by role.", ["run", "role"])
    void = Counter("manyhands_run_void_rounds", "Void rounds since a run began.", ["run"], registry=registry)
    for run in runs:
        slug, at = run.slug, commits.get(run.pk, run.opened_at or run.created_at)
        step.labels(slug).set(run.head.step)
        moved.labels(slug).set(at.timestamp())
        running.labels(slug).set(run.state == Run.State.OPEN and run.later_start() is None)
        void.labels(slug).inc(run.head.void_rounds)
        for role, number in Count(peer.role for peer in online.get(run.pk, [])).items():
            members.labels(slug, role).set(number)

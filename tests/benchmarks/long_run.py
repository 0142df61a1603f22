"""The cost of a run with many steps and machines: hosting, viewing and disk space. See README.md."""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks.rig.figures import Figures, median, publish, say

LOOKS = 9
STEPS = 20  # steps measured before another relay joins
LIMIT_S = 900
PEAK = [0.0, 0.0]  # [MB before a relay joins, peak MB since then]


def begin(folder: Path) -> None:
    """Set up Django on a new database that is not protected against power cuts."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "config.settings", "MANYHANDS_DATA": str(folder)}
    os.environ.pop("DATABASE_URL", None)
    import django

    django.setup()


def fill(steps: int, machines: int) -> Figures:
    from django.core.management import call_command
    from django.db import connection, transaction

    from accounts.models import Person
    from tests.long_run import long_run
    from tests.runs.factories import opened

    call_command("migrate", verbosity=0)
    organizer = Person.objects.create_user("Amina", None)
    began = time.monotonic()
    opened(organizer, slug="empty")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=OFF")
        cursor.execute("PRAGMA cache_size=-400000")
    with transaction.atomic():
        long_run(opened(organizer, slug="long"), steps=steps, machines=machines)
    return {"filled_s": time.monotonic() - began}


def host(slug: str) -> Figures:
    """Measure the time and memory that `store.load` takes when called by a host that has just claimed the run."""
    import psutil

    from coordination import store
    from runs.models import Run

    run_id = Run.objects.get(slug=slug).run_id
    before, began, spent = psutil.Process().memory_info().rss, time.perf_counter(), time.thread_time()
    state = store.load(store.run_named(run_id), 1)
    seconds, cpu = time.perf_counter() - began, time.thread_time() - spent
    return {"s": seconds, "cpu_s": cpu, "mb": (psutil.Process().memory_info().rss - before) / 1e6, "step": state.step}


def looks(slug: str) -> Figures:
    """Return the CPU milliseconds of the first page view and the median of later ones, excluding the run's lookup."""
    from django.utils import timezone

    from coordination.models import Presence
    from runs.models import Run
    from web.feed.live import look, prepare_looks

    prepare_looks()  # `serve` also calls this before it answers requests
    Presence.objects.update(at=timezone.now())
    run = Run.objects.get(slug=slug)
    spent = []
    for _ in range(LOOKS):
        began = time.thread_time()
        look(run.pk)
        spent.append(1000 * (time.thread_time() - began))
    return {"first": spent[0], "later": median(spent[1:])}


def join(slug: str) -> Figures:
    """Measure how relays without a log join over real WebSockets while a trainer works, and what they cost its steps.

    This process is also the host.
    """
    return asyncio.run(_join(slug))


async def _join(slug: str) -> Figures:
    from coordination.threads import in_thread
    from peer_agent.protocol.credentials import Role
    from runs.models import Head
    from tests.coordination.joining import joins, new_relay, served, watched
    from tests.coordination.peer_link import credential_of, identity_of
    from tests.coordination.peers import Contributor, taking_part
    from tests.coordination.running import hosts, until

    run, relays, trains, later = await in_thread(_participants)(slug)

    async def index() -> int:
        return (await in_thread(Head.objects.get)(run=run)).index

    name, last = run.run_id, await index()
    identity, other = (identity_of(credential_of(one, None, Role.RELAY), one.key) for one in (relays, later))
    trainer = identity_of(credential_of(trains, run), trains.key)
    with watched(setattr) as seen:
        async with served() as url, hosts(), taking_part(Contributor, trainer, name):
            await until(lambda: Head.objects.get(run=run).owner, "a host")
            peak = asyncio.create_task(_peak_mb())
            async with new_relay(url, identity, name) as relay, asyncio.timeout(LIMIT_S):
                joined = await joins(relay, last)
                peak.cancel()
                waited = seen.most_waiting, seen.most_bytes
                before = await index()
                await relay.until(before + STEPS)
                alone = await index()
                async with new_relay(url, other, name) as second:
                    await joins(second, alone)
                beside = await index()
            with contextlib.suppress(asyncio.CancelledError):
                await peak
    pages = seen.of(relays.machine.peer_id)
    return {
        **{field: getattr(joined, field) for field in joined.__struct_fields__},
        "pages": len(pages),
        "records": sum(page.records for page in pages),
        "mb": relay.bytes / 1e6,
        "longest_page_mb": max(page.bytes for page in pages) / 1e6,
        "most_waiting": waited[0],
        "most_waiting_mb": waited[1] / 1e6,
        "more_mb": PEAK[1] - PEAK[0],
        "step_s_alone": await in_thread(_step_s)(run, before, alone),
        "step_s_beside": await in_thread(_step_s)(run, alone, beside),
        "steps_beside": beside - alone,
    }


def _step_s(run: Any, first: int, last: int) -> float:
    """Return the median seconds between two entries of the log."""
    at = list(run.log.filter(index__gte=first, index__lte=last).order_by("index").values_list("at", flat=True))
    return median([(later - earlier).total_seconds() for earlier, later in pairwise(at)])


def _participants(slug: str) -> Any:
    from runs.models import Run, Snapshot
    from tests.runs.factories import owned

    run = Run.objects.select_related("organizer").get(slug=slug)
    newest = run.snapshots.order_by("-index").values_list("pk", flat=True)[:1]
    Snapshot.objects.filter(pk__in=list(newest)).update(is_stored=True, state=Snapshot.State.VERIFIED)
    return run, owned(run.organizer, "relay"), owned(run.organizer, "laptop"), owned(run.organizer, "later")


async def _peak_mb() -> None:
    """Record this process's initial and peak memory in `PEAK`, until cancelled."""
    import psutil

    process = psutil.Process()
    PEAK[:] = [process.memory_info().rss / 1e6] * 2
    while True:
        PEAK[1] = max(PEAK[1], process.memory_info().rss / 1e6)
        await asyncio.sleep(0.05)


def aside(folder: Path, part: str, *arguments: object) -> Any:
    """Run one part of the benchmark in a fresh process, so that it finds no caches from earlier parts."""
    command = [sys.executable, "-m", "tests.benchmarks.long_run", "--folder", folder, "--part", part, *arguments]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, timeout=LIMIT_S)
    return json.loads(done.stdout.splitlines()[-1])


def measure(steps: int, machines: int, repeats: int) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say(f"{steps} steps of {machines} machines are being written")
        filled = aside(folder, "fill", "--steps", steps, "--machines", machines)
        hosts = {slug: [aside(folder, "host", "--slug", slug) for _ in range(repeats)] for slug in ("empty", "long")}
        seen = [aside(folder, "looks", "--slug", "long") for _ in range(repeats)]
        joined = aside(folder, "join", "--slug", "long")
        size = (folder / "db.sqlite3").stat().st_size
    typical = {
        slug: {key: median(one[key] for one in found) for key in ("s", "cpu_s", "mb")} for slug, found in hosts.items()
    }
    return {
        "steps": steps,
        "machines": machines,
        "host_load_s": typical["long"]["s"],
        "host_load_cpu_s": typical["long"]["cpu_s"],
        "host_load_mb": typical["long"]["mb"] - typical["empty"]["mb"],
        "look_cpu_ms": {key: median(one[key] for one in seen) for key in ("first", "later")},
        "new_relay": joined,
        "database_mb": size / 1e6,
        **filled,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--part", choices=("fill", "host", "looks", "join"))
    parser.add_argument("--slug", default="long")
    asked = parser.parse_args()
    if asked.part is None:
        return publish("long_run", lambda: measure(asked.steps, asked.machines, asked.repeats))
    begin(asked.folder)
    parts: dict[str, Callable[[], Figures]] = {
        "fill": lambda: fill(asked.steps, asked.machines),
        "host": lambda: host(asked.slug),
        "looks": lambda: looks(asked.slug),
        "join": lambda: join(asked.slug),
    }
    print(json.dumps(parts[asked.part]()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

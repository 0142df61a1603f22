"""The cost of every page in a run with many people and steps: queries, time and size. Described in README.md."""

import argparse
import contextlib
import gzip
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.servers import private_postgres

SLUG = "run-0"
# pages that do not exist in this run: it has no release and no images, and no run was requested
NOT_HERE = (f"/runs/{SLUG}/try/", "/runs/asked/", f"/runs/{SLUG}/pictures/0.png")
OTHERS = 60  # further runs without a step
WARM = 2  # uncounted views of each page
MOST_QUERIES, MOST_MS = 20, 300.0  # 95 % of the views of a page must need fewer queries and less time


def begin(folder: Path, url: str) -> None:
    """Set up Django on a new PostgreSQL database, without rate limits."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "config.settings", "MANYHANDS_DATA": str(folder), "DATABASE_URL": url}
    os.environ.pop("MANYHANDS_DEBUG", None)
    import django
    from django.conf import settings

    django.setup()
    settings.RATES = dict.fromkeys(settings.RATES, (10**9, 1))
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.SECURE_SSL_REDIRECT = False


def fill(members: int, steps: int) -> Figures:
    """Write the large run and other runs without steps, then vacuum as autovacuum would for a large table."""
    from django.core.management import call_command
    from django.db import connection

    from accounts.models import Person
    from runs.models import LedgerEntry, Run
    from tests.crowded_run import crowded_run
    from tests.runs.factories import opened

    call_command("migrate", verbosity=0)
    operator = Person.objects.create_superuser("Ines", None)
    began = time.monotonic()
    crowded_run(operator, slug=SLUG, members=members, steps=steps)
    for place in range(1, OTHERS + 1):
        opened(operator, slug=f"run-{place}", visibility=Run.Visibility.PUBLIC)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("SELECT pg_database_size(current_database())")
        (size,) = cursor.fetchone()
    return {
        "filled_s": time.monotonic() - began,
        "ledger_rows": LedgerEntry.objects.count(),
        "database_mb": size / 1e6,
    }


def looks(paths: list[str], times: int) -> dict[str, Figures]:
    """View each page `times` times as an organizer who is also an operator and a trainer, and thus sees the most on
    each page.
    """
    from django.test import Client

    from accounts.models import Person
    from web.feed import polling

    polling.KEEP_S = polling.REST_S = 0.0  # disable the cache, which would answer most views
    client = Client(headers={"Accept-Encoding": "gzip"})
    client.force_login(Person.objects.get(username="Ines"))
    found = {}
    for path in paths:
        found[path] = page = looked(client, path, times)
        say(f"{path}: {page['queries']} queries, p95 {page['p95_ms']:.0f} ms, {page['kb']:.0f} kB")
    return found


def looked(client: Any, path: str, times: int) -> Figures:
    """Return the figures of a page. Raise RuntimeError if the page does not exist."""
    spent, worked, asked = [], [], 0
    for _ in range(WARM + times):
        with counted() as queries:
            began, cpu = time.perf_counter(), time.thread_time()
            answer = client.get(path)
            sent = answer.getvalue()
            spent.append(1000 * (time.perf_counter() - began))
            worked.append(1000 * (time.thread_time() - cpu))
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code}")
        asked = max(asked, len(queries)) if len(spent) > WARM else 0
    counts = spent[WARM:]
    whole = gzip.decompress(sent) if answer.get("Content-Encoding") == "gzip" else sent
    return {
        "queries": asked,
        "cpu_ms": median(worked[WARM:]),
        "median_ms": median(counts),
        "p95_ms": statistics.quantiles(counts, n=20, method="inclusive")[-1],
        "kb": len(whole) / 1e3,
        "sent_kb": len(sent) / 1e3,
    }


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    from django.db import connection

    asked: list[str] = []

    def ask(execute: Any, sql: str, *rest: Any) -> Any:
        asked.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(ask):
        yield asked


def measure(members: int, steps: int, times: int, only: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder, private_postgres() as url:
        begin(Path(folder), url)
        say(f"{steps} steps with {members} members are being written")
        filled = fill(members, steps)
        say(f"{filled['ledger_rows']} ledger rows in {filled['filled_s']:.0f} s, {filled['database_mb']:.0f} MB")
        from tests.web.test_queries import PAGES

        pages = looks([path for path in PAGES if only in path and not path.startswith(NOT_HERE)], times)
    over = [path for path, page in pages.items() if page["queries"] >= MOST_QUERIES or page["p95_ms"] > MOST_MS]
    return {"members": members, "steps": steps, "looks": times, **filled, "over": over, "pages": pages}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pages", description=__doc__)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--looks", type=int, default=40)
    parser.add_argument("--only", default="", help="pages whose address has this in it")
    asked = parser.parse_args(arguments)
    return publish("pages", lambda: measure(asked.members, asked.steps, asked.looks, asked.only))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

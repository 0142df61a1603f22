"""Faults in a whole site, one after another: the longest gap between commits, and how long a page shows old facts.

Two site processes behind a load balancer, PostgreSQL, Redis, a worker, two relays and three agents, each a real
process. Described in README.md.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import psycopg
import redis as redis_client
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.benchmarks.rig.figures import Figures, publish, say
from tests.end_to_end.rig.front import front
from tests.end_to_end.rig.swarm import Swarm
from tests.servers import free_port, private_postgres, redis_at

SITES, RELAYS, AGENTS = ("first", "second"), ("relay-a", "relay-b"), ("a", "b", "c")
SETTLED_S, AFTER_S = 6.0, 12.0  # quiet seconds before a fault, and watched seconds after it
QUIET_S, POLL_S = 9.0, 1.2  # as in frontend/src/feed.ts
RESTART_S = 1.0  # seconds until a process's supervisor restarts it
PATIENCE_S = 240.0
# The tests' server forgets its last commits in a crash; a site's does not.
DURABLE = "options=-c%20synchronous_commit%3Don"


class Redis:
    """A Redis server that can be ended and started again at the same port, without its data."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._life = ExitStack()

    def start(self) -> None:
        self._life.enter_context(redis_at(self.port))

    def end(self) -> None:
        self._life.close()


class Rig(NamedTuple):
    swarm: Swarm
    redis: Redis
    ports: dict[str, int]
    tokens: dict[str, str]

    def host(self) -> str:
        """Return the name of the site process that hosts the run now."""
        found = [(self.swarm.log(site).count("hosted at step"), site) for site in SITES]
        fences = {site: self.last_fence(site) for _, site in found}
        return max(fences, key=lambda site: fences[site])

    def last_fence(self, site: str) -> int:
        lines = [line for line in self.swarm.log(site).splitlines() if "under fence" in line]
        return int(lines[-1].rsplit(" ", 1)[-1]) if lines else 0

    def name_of(self, part: str) -> str:
        """Return the name of the process that a row calls "host", "other site", "relay", "agent" or by its name."""
        if part in ("host", "other site"):
            host = self.host()
            return host if part == "host" else next(site for site in SITES if site != host)
        return {"relay": RELAYS[0], "agent": AGENTS[0]}.get(part, part)


def pids(rig: Rig, what: str) -> list[int]:
    """Return the ids of the processes that a fault stops or kills."""
    if what == "postgresql":
        ((backend,),) = rig.swarm.rows("select pg_backend_pid()")
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(backend).parent()
            assert found is not None
            return [found.pid, *(child.pid for child in found.children(recursive=True))]
        server = next(p for p in psutil.process_iter(["name"]) if p.info["name"] == "postgres" and _is_ours(rig, p))
        return [server.pid, *(child.pid for child in server.children(recursive=True))]
    if what == "redis":
        with redis_client.Redis.from_url(rig.redis.url) as asking:
            return [int(asking.info("server")["process_id"])]
    return [rig.swarm.processes[rig.name_of(what)].pid]


def _is_ours(rig: Rig, process: psutil.Process) -> bool:
    folder = rig.swarm.environment["DATABASE_URL"].rpartition("host=")[2].partition("&")[0]
    with suppress(psutil.Error):
        return folder in " ".join(process.cmdline())
    return False


def stop(rig: Rig, what: str, seconds: float) -> None:
    stopped = pids(rig, what)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    rig.swarm.wait(lambda: all(is_stopped(pid) for pid in stopped), 5, f"{what} is stopped")
    time.sleep(seconds)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Return True if the process has stopped or ended. A stopped parent leaves an ended process as a zombie."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # a database connection that ended just before
        return True


def kill(rig: Rig, what: str, _: float) -> None:
    """Kill a process, and start it again a moment later, as its supervisor does."""
    if what == "redis":
        rig.redis.end()
        time.sleep(RESTART_S)
        rig.redis.start()
        return
    name = rig.name_of(what)
    rig.swarm.kill(name)
    time.sleep(RESTART_S)
    start(rig, name)


def down_redis(rig: Rig, seconds: float) -> None:
    rig.redis.end()
    time.sleep(seconds)
    rig.redis.start()


def crash_postgresql(rig: Rig, _: float) -> None:
    """Kill a server process of PostgreSQL, which then ends all others and recovers from its log."""
    with psycopg.connect(rig.swarm.environment["DATABASE_URL"]) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        with suppress(psycopg.Error):
            connection.execute("select 1")


def start(rig: Rig, name: str) -> None:
    if name in SITES:
        rig.swarm.start_site(name, port=str(rig.ports[name]), options="--no-worker --no-relay")
    elif name == "worker":
        start_worker(rig.swarm)
    elif name in RELAYS:
        rig.swarm.start_relay(name, rig.tokens[name])
    else:
        rig.swarm.start_agent(name, token=rig.tokens[name])


def start_worker(swarm: Swarm) -> None:
    own = {**os.environ, **swarm.environment, "MANYHANDS_DATA": str(swarm.data)}
    command = [sys.executable, "manage.py", "worker", "--attached"]
    swarm.start("worker", command, own, Path(__file__).parents[2])


ROWS: dict[str, Callable[[Rig, float], None]] = {
    f"{act.__name__} {what}": (lambda rig, seconds, act=act, what=what: act(rig, what, seconds))  # type: ignore[misc]
    for act, whats in (
        (stop, ("host", "other site", "worker", "relay", "agent", "redis", "postgresql")),
        (kill, ("host", "other site", "worker", "relay", "agent", "redis")),
    )
    for what in whats
}
ROWS["down redis"] = down_redis
ROWS["crash postgresql"] = crash_postgresql


class Page(threading.Thread):
    """Reads the run's page by the rules of feed.ts, and records when it learned that it was up to date."""

    def __init__(self, address: str, slug: str) -> None:
        super().__init__(daemon=True)
        self.address, self.slug = address, slug
        self.heard: list[float] = []
        self.over = threading.Event()

    def run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        while not self.over.is_set():
            polling = asyncio.create_task(self._poll())
            try:
                async with (
                    asyncio.timeout(5.0) as opening,
                    connect(
                        f"{self.address.replace('http', 'ws', 1)}/ws/runs/{self.slug}/",
                        max_size=None,
                        close_timeout=0.1,  # a browser does not wait for the other end to close, either
                    ) as socket,
                ):
                    opening.reschedule(None)
                    while not self.over.is_set():
                        await asyncio.wait_for(socket.recv(), QUIET_S)
                        polling.cancel()
                        self.heard.append(time.time())
            except (OSError, TimeoutError, WebSocketException):
                await asyncio.sleep(0.5)
            finally:
                polling.cancel()

    async def _poll(self) -> None:
        while not self.over.is_set():
            await asyncio.sleep(POLL_S)
            with suppress(OSError):
                await asyncio.to_thread(self._ask)
                self.heard.append(time.time())

    def _ask(self) -> None:
        with urllib.request.urlopen(f"{self.address}/runs/{self.slug}/feed.json", timeout=5) as answer:
            answer.read()


@contextmanager
def at_work(folder: Path) -> Iterator[tuple[Rig, Page]]:
    """Start everything, and yield once the run makes steps."""
    ports = {site: free_port() for site in SITES}
    redis = Redis()
    redis.start()
    try:
        with private_postgres() as database, front(list(ports.values())) as address:
            engines = {"DATABASE_URL": f"{database}&{DURABLE}", "REDIS_URL": redis.url, "MANYHANDS_PUBLIC_URL": address}
            with Swarm(folder, engines) as swarm:
                rig = Rig(swarm, redis, ports, {})
                for site in SITES:
                    start(rig, site)
                start_worker(swarm)
                operator = swarm.operator()
                for relay in RELAYS:
                    rig.tokens[relay] = swarm.token_of(operator)
                    start(rig, relay)
                swarm.open_endless_run(operator, "Many hands make light work. " * 2000, trainers=2)
                swarm.wait(lambda: len(swarm.online("relay")) == 2, PATIENCE_S, "both relays are there")
                for agent in AGENTS:
                    rig.tokens[agent] = swarm.token_of(operator)
                    start(rig, agent)
                swarm.wait_for_step(10)
                page = Page(address, swarm.slug)
                page.start()
                yield rig, page
                page.over.set()
    finally:
        redis.end()


def measure_row(rig: Rig, page: Page, name: str, seconds: float) -> Figures:
    """Cause one fault, and return its figures."""
    steadily(rig)
    step, began = rig.swarm.head(), time.time()
    ROWS[name](rig, seconds)
    steadily(rig)
    time.sleep(AFTER_S)
    now = time.time()
    rows = rig.swarm.rows(
        f'select "index", extract(epoch from at) from runs_logentry where {rig.swarm.of_run()} order by "index"'
    )
    commits = [float(at) for _, at in rows if float(at) >= began - SETTLED_S]
    figures = {
        "fault": name,
        "seconds": seconds,
        "steps": rig.swarm.head() - step,
        "longest_gap_s": longest_gap(commits, began, now),
        "feed_stale_s": longest_gap(page.heard, began, now),
        **books(rig),
    }
    say(json.dumps(figures))
    return figures


def steadily(rig: Rig) -> None:
    """Wait until the run has been making steps again for a while."""
    until, since, known = time.monotonic() + PATIENCE_S, time.monotonic(), -1
    while time.monotonic() - since < SETTLED_S or known < 0:
        assert time.monotonic() < until, f"no steps\n{rig.swarm.logs()}"
        with suppress(psycopg.Error):
            ((head,),) = rig.swarm.rows("select max(step) from runs_head")
            if known >= 0 and head == known and time.monotonic() - since > SETTLED_S / 2:
                since = time.monotonic()
            known = head
        time.sleep(0.5)


def longest_gap(moments: Sequence[float], began: float, ended: float) -> float:
    inside = [began - 1.0, *(at for at in moments if began - 1.0 <= at <= ended), ended]
    return max(later - earlier for earlier, later in pairwise(inside))


def books(rig: Rig) -> Figures:
    """Count lost entries or samples, duplicate log entries, and steps with differing digests."""
    of_run = rig.swarm.of_run()
    # A single statement, because steps are committed in the meantime.
    ((entries, first, last, distinct, samples, credited),) = rig.swarm.rows(
        'select count(*), min("index"), max("index"), count(distinct "index"), coalesce(sum(samples), 0), '
        f"(select coalesce(sum(samples), 0) from runs_ledgerentry where {of_run}) "
        f"from runs_logentry where {of_run}"
    )
    digests: dict[int, set[str]] = {}
    for agent in AGENTS:
        for step, digest in rig.swarm.digests(agent).items():
            digests.setdefault(step, set()).add(digest)
    return {
        "lost": (last - first + 1 - distinct) + int(samples != credited),
        "doubled": entries - distinct,
        "divergent": sum(len(found) > 1 for found in digests.values()),
    }


def measure(rows: Sequence[str], seconds: float) -> Figures:
    with tempfile.TemporaryDirectory() as folder, at_work(Path(folder) / "swarm") as (rig, page):
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return {"at": at, "rows": [measure_row(rig, page, name, seconds) for name in rows]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="how long a stopped process stays stopped")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS], default=[*ROWS])
    wanted: Any = parser.parse_args(arguments)
    return publish("faults", lambda: measure(wanted.rows, wanted.seconds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

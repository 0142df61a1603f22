"""The engines of a large site: PostgreSQL, Redis, and two site processes behind one address. One process is killed, or
is replaced by a newer version."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg

from demo.processes import ROOT
from peer_agent import __version__
from tests.end_to_end.rig.front import front
from tests.end_to_end.rig.swarm import Swarm
from tests.servers import free_port, private_postgres, private_redis

STEPS = 12
KILLED_AFTER = 4
SITES = ("first", "second")
HOSTED = re.compile(r"hosted at step (\d+) under fence (\d+)")


def hosted(swarm: Swarm, site: str) -> list[tuple[int, int]]:
    """Return the step and the fence for each time this site process became the run's host."""
    return [(int(step), int(fence)) for step, fence in HOSTED.findall(swarm.log(site))]


def relay_of(swarm: Swarm, site: str) -> Path:
    return swarm.data / ("relay" if site == SITES[0] else "relay-2")


def begin(swarm: Swarm, english: str, ports: tuple[int, int]) -> None:
    """Start two site processes on one data folder, two trainers, and a run hosted by one of the site processes."""
    for site, port in zip(SITES, ports, strict=True):
        swarm.start_site(site, port=str(port))
    organizer = swarm.sign_up("organizer")
    swarm.open_run(organizer, english, trainers=2, steps=STEPS, target_batch="24", snapshot_every="100")
    swarm.wait(lambda: len(swarm.online("relay")) == 2, 30, "both relays are there, through whichever process")
    for name in ("a", "b"):
        swarm.start_agent(name, token=swarm.token_of(organizer))


def test_the_hosting_process_is_killed_and_the_other_goes_on(tmp_path: Path, english: str) -> None:
    ports = free_port(), free_port()
    with private_postgres() as database, private_redis() as redis, front(ports) as address:
        engines = {"DATABASE_URL": database, "REDIS_URL": redis, "MANYHANDS_PUBLIC_URL": address}
        with Swarm(tmp_path, engines) as swarm:
            begin(swarm, english, ports)
            swarm.wait_for_step(KILLED_AFTER)
            (victim,) = [site for site in SITES if hosted(swarm, site)]
            (heir,) = set(SITES) - {victim}
            swarm.kill(victim)
            swarm.wait_finished()
            ((first_step, first_fence),), ((step, fence),) = hosted(swarm, victim), hosted(swarm, heir)
            assert (first_step, step >= KILLED_AFTER, fence > first_fence) == (0, True, True)
            settled(swarm, heir)


def settled(swarm: Swarm, heir: str) -> None:
    """Require that each step was committed once, under its host's fence, and that the books and the digests agree."""
    steps = swarm.items("steps")
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    records = swarm.records(relay_of(swarm, heir))
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert len({record["fence"] for record in records}) == 2
    ledger, committed = swarm.books(relay_of(swarm, heir))
    assert ledger == committed == sum(step["samples"] for step in steps)
    ours, theirs = swarm.digests("a"), swarm.digests("b")
    both = ours.keys() & theirs.keys()
    assert {step: ours[step] for step in both} == {step: theirs[step] for step in both}
    assert max(both) == STEPS


LATER = "9.9.9"
MIGRATION = """
from django.db import migrations

class Migration(migrations.Migration):
    after = {after}
    dependencies = [("jobs", "{before}")]
    operations = [migrations.RunSQL("CREATE TABLE {name} ()")]
"""


def later_version(folder: Path) -> Path:
    """Copy the site as a later version with two more migrations. The last must wait for the end of this version."""
    for part in ("platform", "peer_agent"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "manage.py", folder)
    (folder / "frontend").symlink_to(ROOT / "frontend")
    init = folder / "peer_agent" / "__init__.py"
    init.write_text(init.read_text().replace(__version__, LATER))
    for before, name, after in (("0001_initial", "0002_at_once", False), ("0002_at_once", "0003_late", True)):
        text = MIGRATION.format(before=before, name=name[5:], after=after)
        (folder / "platform" / "jobs" / "migrations" / f"{name}.py").write_text(text)
    return folder / "manage.py"


def tables(database: str) -> set[str]:
    with psycopg.connect(database) as connection:
        return {name for (name,) in connection.execute("SELECT tablename FROM pg_tables")}


def test_a_later_version_takes_over_without_a_stop(tmp_path: Path, english: str) -> None:
    """Its first migration is applied at once, and the second only when the earlier version has stopped."""
    ports = free_port(), free_port()
    later = later_version(tmp_path / "later")
    with private_postgres() as database, private_redis() as redis, front(ports) as address:
        engines = {"DATABASE_URL": database, "REDIS_URL": redis, "MANYHANDS_PUBLIC_URL": address}
        with Swarm(tmp_path, engines) as swarm:
            swarm.start_site(SITES[0], port=str(ports[0]))
            organizer = swarm.sign_up("organizer")
            swarm.open_run(organizer, english, trainers=2, steps=STEPS, target_batch="24", snapshot_every="100")
            for name in ("a", "b"):
                swarm.start_agent(name, token=swarm.token_of(organizer))
            swarm.wait_for_step(2)
            swarm.start_site(SITES[1], program=str(later), port=str(ports[1]))
            assert f"1 changes of the tables wait until version {__version__} has stopped" in swarm.log(SITES[1])
            assert tables(database) >= {"at_once"}
            assert "late" not in tables(database)
            swarm.wait_for_step(KILLED_AFTER)
            swarm.processes[SITES[0]].terminate()
            swarm.processes[SITES[0]].wait(30)
            swarm.wait_finished()
            assert [step["step"] for step in swarm.items("steps")] == list(range(1, STEPS + 1))
            own = {**os.environ, **engines, "MANYHANDS_DATA": str(swarm.data)}
            subprocess.run([sys.executable, str(later), "migrate", "-v0"], env=own, check=True)
            assert tables(database) >= {"late"}

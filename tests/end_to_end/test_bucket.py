"""Two hosts that share no folder, only PostgreSQL, Redis and a bucket on a real S3 server.

The bucket fails, then refuses to store anything, and then is slow. Each time the site says so and training goes on.
Then the run's host is killed and its disk is lost. The other host makes the release.
"""

import hashlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.rig.front import front
from tests.end_to_end.rig.swarm import Swarm
from tests.end_to_end.test_engines import SITES, hosted
from tests.servers import PrivateS3, free_port, private_postgres, private_redis, private_s3

STEPS = 60
TROUBLES = ("503", "403", "6")  # what `s3_server` answers, or the delay of its answers in seconds
STEPS_IN_TROUBLE = 5


@contextmanager
def two_hosts(folder: Path, s3: PrivateS3) -> Iterator[Swarm]:
    """Start two site processes, each with a data folder of its own, and a relay."""
    ports = free_port(), free_port()
    with private_postgres() as database, private_redis() as redis, front(ports) as address:
        engines = {"DATABASE_URL": database, "REDIS_URL": redis, "MANYHANDS_PUBLIC_URL": address}
        engines["MANYHANDS_SECRET_KEY"] = "what both hosts know, and no one else"
        with Swarm(folder, engines | s3.settings()) as swarm:
            for site, port in zip(SITES, ports, strict=True):
                data = str(folder_of(swarm, site))
                swarm.start_site(site, port=str(port), options="--no-relay", MANYHANDS_DATA=data)
            swarm.start_relay("relay", swarm.token_of(swarm.operator()))
            yield swarm


def folder_of(swarm: Swarm, site: str) -> Path:
    return swarm.folder / f"site{'' if site == SITES[0] else '-2'}"


def readiness(swarm: Swarm) -> list[str]:
    try:
        with urllib.request.urlopen(f"{swarm.url}/readyz") as answer:
            found: list[str] = json.load(answer).get("degraded", [])
            return found
    except urllib.error.URLError:
        return ["unknown"]


def test_a_run_outlives_its_host_and_that_hosts_disk(tmp_path: Path, english: str) -> None:
    with private_s3() as s3, two_hosts(tmp_path, s3) as swarm:
        organizer = swarm.sign_up("organizer")
        swarm.open_run(organizer, english, trainers=2, steps=STEPS, target_batch="240", snapshot_every="4")
        for name in ("a", "b"):
            swarm.start_agent(name, token=swarm.token_of(organizer))

        swarm.wait_for_step(2)
        for trouble in TROUBLES:
            s3.trouble.write_text(trouble)
            swarm.wait(lambda: "bucket" in readiness(swarm), 90, "the site says that the bucket fails or is slow")
            swarm.wait_for_step(swarm.head() + STEPS_IN_TROUBLE)  # training goes on
            s3.trouble.unlink()
            swarm.wait(lambda: "bucket" not in readiness(swarm), 90, "the bucket is well again")
        stored = f"select count(*) from runs_snapshot where {swarm.of_run()} and state = 'verified' and step > 0"
        swarm.wait(lambda: swarm.rows(stored) > [(0,)], 120, "a snapshot was stored and verified after that")

        victim = max(SITES, key=lambda site: max(hosted(swarm, site), default=(-1, -1)))
        (heir,) = set(SITES) - {victim}
        swarm.end(victim)
        shutil.rmtree(folder_of(swarm, victim))
        swarm.wait_finished()
        assert hosted(swarm, heir)
        assert [step["step"] for step in swarm.items("steps")] == list(range(1, STEPS + 1))
        ours, theirs = swarm.digests("a"), swarm.digests("b")
        assert max(ours) == max(theirs) == STEPS
        assert all(theirs[step] == digest for step, digest in ours.items() if step in theirs)

        swarm.released(tmp_path / "model")
        ((files,),) = swarm.rows(f"select cast(files as text) from runs_release where {swarm.of_run()}")
        for file in json.loads(files):
            url = f"{swarm.url}/api/v1/runs/{swarm.slug}/release/{file['name']}"
            with urllib.request.urlopen(url) as answer:
                assert answer.url.startswith(s3.url)
                assert hashlib.sha256(answer.read()).hexdigest() == file["sha256"]

"""The engines of a large site: PostgreSQL, Redis, and two site processes behind one address. One site process is
killed."""

import re
from pathlib import Path

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

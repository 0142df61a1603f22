"""A site with many machines: how late the coordinator and the run's page answer. See README.md.

The site and its relay are the product's processes. One further process holds all agents (`agents/trainer.py`), each
with its own links, credential and protocol core; a timer replaces the computation.
"""

import argparse
import asyncio
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import psutil
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demo.processes import ROOT
from demo.recipes import python_text
from peer_agent.display.lines import View
from peer_agent.machine.home import Home, KnownSite
from peer_agent.machine.limits import Limits
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role, public_bytes
from peer_agent.protocol.identifiers import PeerId
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl
from peer_agent.trainer.agent import Agent
from tests.benchmarks.agents.trainer import Pace, TimedJobs
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.benchmarks.rig.processes import leave_with_parent
from tests.end_to_end.rig.swarm import Swarm

UNIT_S, UNIT = 5.0, 2  # seconds and samples of a unit
JOINS_A_S = 8  # machines that join in a second; more would keep the process of all agents busy
ASKS_S, LOOKS_S = 0.25, 0.5  # seconds between two questions to the coordinator, and between two views of the page
GATHERS = 50_000  # samples in a step that the machines do not fill while they are measured
HERE_S = 300.0

ENROL = """
import json, sys, uuid
from accounts.keys import site_key
from accounts.models import Machine, Person
from peer_agent.protocol.credentials import public_bytes
people = Person.objects.bulk_create(Person(username="person %d" % at, password="!") for at in range({count}))
Machine.objects.bulk_create(
    Machine(id=uuid.UUID(peer), person=person, name="laptop", public_key=bytes.fromhex(key))
    for person, (peer, key) in zip(people, json.load(open({file!r})), strict=True)
)
print(public_bytes(site_key()).hex())
"""


def key_of(place: int) -> tuple[PeerId, Ed25519PrivateKey]:
    secret = hashlib.sha256(f"machine {place} of a crowd".encode()).digest()
    return PeerId(hashlib.sha256(secret).hexdigest()[:32]), Ed25519PrivateKey.from_private_bytes(secret)


class CrowdAccess(RunAccess):
    """Access to a run with a key that was enrolled without asking anybody."""

    def __init__(self, folder: Path, place: int, url: str, slug: str, site_key: str) -> None:
        peer, key = key_of(place)
        home = Home(folder / peer)
        home._write_privately(home.folder / "machine.key", key.private_bytes_raw().hex().encode())
        super().__init__(home, KnownSite(url, peer, f"person {place}", site_key), Role.TRAINER, slug)


async def _train(access: CrowdAccess) -> None:
    agent = Agent(access.home, access, MachineControl(access.home, Limits(threads=1)), View(io.StringIO()))
    agent.jobs = jobs = TimedJobs(agent)
    jobs.pace = Pace(UNIT_S / UNIT)
    await agent.run()


async def _crowd(folder: Path, url: str, slug: str, site_key: str, machines: int) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(machines + 64))
    async with asyncio.TaskGroup() as crowd:
        for place in range(machines):
            crowd.create_task(_train(CrowdAccess(folder, place, url, slug, site_key)))
            await asyncio.sleep(1 / JOINS_A_S)


async def _ask(access: CrowdAccess, seconds: float) -> list[float]:
    """Send heartbeats over a link without a hello, and return how long each answer of the run's host takes."""
    link, answered = await access.dial_control(), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        await link.send(m.Heartbeat(run=access.run, index=0))
        while not isinstance(await link.receive(), m.Rehello):
            pass
        answered.append(time.monotonic() - began)
        await asyncio.sleep(ASKS_S)
    await link.close()
    return answered


def measure(machines: int, *, rounds: bool, seconds: float) -> Figures:
    environment = {"MANYHANDS_PEOPLE_PER_ADDRESS": str(10 * machines)}
    with tempfile.TemporaryDirectory() as temporary, Swarm(Path(temporary) / "swarm", environment) as swarm:
        folder = Path(temporary)
        swarm.start_site()
        batch = machines * UNIT if rounds else GATHERS
        swarm.open_endless_run(swarm.sign_up("organizer"), python_text(), target_batch=str(batch), context="16")
        site_key = _enrol(swarm, folder, machines + 1)
        command = [sys.executable, "-m", __spec__.name, "--inside", temporary, swarm.url, swarm.slug, site_key]
        swarm.start("crowd", [*command, "--machines", str(machines)], dict(os.environ), ROOT)
        began = time.monotonic()
        swarm.wait(lambda: len(swarm.online("trainer")) >= machines, machines / JOINS_A_S + HERE_S, "all are there")
        say(f"{machines} machines are there after {time.monotonic() - began:.0f} s")
        asking = CrowdAccess(folder, machines, swarm.url, swarm.slug, site_key)
        first, site = swarm.head(), psutil.Process(swarm.processes["site"].pid)
        spent, crowd = _cpu_s(site), _cpu_s(psutil.Process(swarm.processes["crowd"].pid))
        pages: list[float] = []
        reading = Thread(target=_look, args=(swarm, seconds, pages))
        reading.start()
        answered = asyncio.run(_ask(asking, seconds))
        reading.join()
        steps = swarm.rows(
            f'select peers, attempts, duration_s, exact from runs_logentry where "index" > {first} and {swarm.of_run()}'
        )
        return {
            "machines": machines,
            "there": len(swarm.online("trainer")),
            "answers": len(answered),
            **{f"coordinator_{name}_s": value for name, value in _spread(answered).items()},
            **{f"page_{name}_s": value for name, value in _spread(pages).items()},
            "site_cores": (_cpu_s(site) - spent) / seconds,
            "crowd_cores": (_cpu_s(psutil.Process(swarm.processes["crowd"].pid)) - crowd) / seconds,
            "site_mb": site.memory_info().rss / 1e6,
            "steps": len(steps),
            "in_each_step": [row[0] for row in steps],
            "attempts": sum(row[1] for row in steps),
            "step_s": [row[2] for row in steps],
            "exact": all(row[3] for row in steps),
        }


def _enrol(swarm: Swarm, folder: Path, count: int) -> str:
    """Enrol the crowd's keys in the site's database, and return the site's public key."""
    keys = [(peer, public_bytes(key).hex()) for peer, key in map(key_of, range(count))]
    (folder / "keys.json").write_text(json.dumps(keys))
    code = ENROL.format(count=count, file=str(folder / "keys.json"))
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "--verbosity", "0", "--command", code]
    told = subprocess.run(
        command, env={**os.environ, "MANYHANDS_DATA": str(swarm.data)}, check=True, capture_output=True, text=True
    )
    return told.stdout.split()[-1]


def _look(swarm: Swarm, seconds: float, pages: list[float]) -> None:
    from demo.visitor import Visitor

    until, reader = time.monotonic() + seconds, Visitor(swarm.url)
    while time.monotonic() < until:
        began = time.monotonic()
        reader.read(f"/runs/{swarm.slug}/")
        pages.append(time.monotonic() - began)
        time.sleep(LOOKS_S)


def _cpu_s(process: psutil.Process) -> float:
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _spread(seconds: list[float]) -> dict[str, float]:
    found = sorted(seconds)
    return {"p50": found[len(found) // 2], "p95": found[int(0.95 * len(found))], "worst": found[-1]}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.crowd", description=__doc__)
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--rounds", action="store_true", help="a step as large as the crowd, so that all are in each")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inside", nargs=4, metavar=("FOLDER", "URL", "SLUG", "KEY"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.inside:
        leave_with_parent()
        folder, url, slug, key = asked.inside
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_crowd(Path(folder), url, slug, key, asked.machines))
        return 0
    return publish("crowd", lambda: measure(asked.machines, rounds=asked.rounds, seconds=asked.seconds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

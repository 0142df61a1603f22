"""A hostile puppet beside three honest agents at a real site, with a row of figures per fault. Described in
README.md."""

import argparse
import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct

from demo.recipes import python_text
from peer_agent.machine.home import Home
from peer_agent.protocol.credentials import Role
from peer_agent.site.credential import RunAccess, log_in
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.benchmarks.rig.processes import ROOT
from tests.benchmarks.rig.puppet import play
from tests.benchmarks.rig.strangers import VISITS, Ground, Visit, visit
from tests.end_to_end.rig.swarm import Swarm
from tests.hostile.behaviours import Behaviour
from tests.hostile.table import ROWS

HONEST = ("ann", "ben", "cid")
FIRST_ROWS = ("offers_a_loss_of_1_7e308", "hello_storm", "half_requests")
SECONDS = 16.0  # seconds measured while the puppet takes part
ALONE = 1 / 4  # share of SECONDS measured without the puppet, both before and after it
LEAD_S = 2.0  # seconds for the puppet to join the run
# prefixes of the simulation's required counts that a puppet can also observe over real links
SEEN = ("told", "changed")
REST_S = 5.0  # seconds for the puppet's after-effects to end
ENDLESS = 100_000
BATCH = "144"  # samples, so that a round takes seconds and the protocol's timeouts matter
WIRED: dict[str, Behaviour | Visit] = {
    **{row.name: row for row in ROWS if row.on_wire},
    **{row.name: row for row in VISITS},
}
OWN_CODE = os.pathsep.join([str(ROOT), str(ROOT / "platform")])


class Stage(Struct):
    swarm: Swarm
    folder: Path

    async def machines(self, row: str, count: int) -> list[RunAccess]:
        """Enrol machines for a new person, so that penalties from earlier rows do not count against them."""
        visitor = await asyncio.to_thread(self.swarm.sign_up, f"mallory-{secrets.token_hex(4)}")
        accesses = []
        for number in range(count):
            home = Home(self.folder / row / str(number))
            token = await asyncio.to_thread(self.swarm.token_of, visitor)
            known = await log_in(home, self.swarm.url, token, name=f"machine {number}")
            access = RunAccess(home, known, Role.TRAINER, self.swarm.slug)
            await access.renew()
            accesses.append(access)
        return accesses

    async def steps_per_minute(self, seconds: float) -> float:
        began, first = await self._step()
        await asyncio.sleep(seconds)
        ended, last = await self._step()
        return 60 * (last - first) / (ended - began)

    async def _step(self) -> tuple[float, int]:
        facts = await asyncio.to_thread(self.swarm.facts)
        return time.monotonic(), int(facts["step"])

    def ended(self) -> list[str]:
        return [name for name, process in self.swarm.processes.items() if process.poll() is not None]


async def row(stage: Stage, what: Behaviour | Visit, alone: float, seconds: float) -> Figures:
    """Measure the run's rate with the puppet present, and after it has left. `alone` is the rate before it arrived."""
    machines = await stage.machines(what.name, what.machines if isinstance(what, Behaviour) else 1)
    task = asyncio.create_task(_act(stage, what, machines, LEAD_S + seconds + 1))
    await asyncio.sleep(LEAD_S)
    beside = await stage.steps_per_minute(seconds)
    account = await task
    await asyncio.sleep(REST_S)
    after = await stage.steps_per_minute(ALONE * seconds)
    usual = (alone + after) / 2
    return {
        "row": what.name,
        "steps_per_minute_before": round(alone, 1),
        "steps_per_minute": round(beside, 1),
        "steps_per_minute_after": round(after, 1),
        "ratio": round(beside / usual, 2) if usual else None,
        "ended": stage.ended(),
        "did_not": _did_not(what, account),
        "account": dict(account.most_common(12)),
    }


def _did_not(what: Behaviour | Visit, account: Counter[str]) -> list[str]:
    """Return the required messages or changes that did not occur, and a core that quit. Any of them makes the row
    meaningless. After a refusal, nothing else is required.
    """
    if account["Quit"]:
        return ["stayed"]
    if not isinstance(what, Behaviour) or any(name.startswith("refused E") for name in account):
        return []
    seen = [bite for bite in what.bites if bite.startswith(SEEN)]
    return [bite for bite in ("told Greeting", *seen) if not account[bite]]


async def _act(stage: Stage, what: Behaviour | Visit, machines: list[RunAccess], seconds: float) -> Counter[str]:
    if isinstance(what, Behaviour):
        return await play(machines, what, seconds)
    ground = Ground(stage.swarm.url, stage.swarm.slug, machines[0], Counter())
    return await visit(what, ground, seconds)


def measure(names: list[str], seconds: float) -> Figures:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Swarm(Path(folder)) as swarm:
        stage = _begin(swarm, Path(folder))
        lines = asyncio.run(_rows(stage, names, seconds))
    return {
        "rows": len(lines),
        "ended": sorted({name for line in lines for name in line["ended"]}),
        "did_nothing": [line["row"] for line in lines if line["did_not"]],
        "least_ratio": min((line["ratio"] for line in lines if line["ratio"] is not None), default=None),
    }


async def _rows(stage: Stage, names: list[str], seconds: float) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    alone = await stage.steps_per_minute(ALONE * seconds)
    for name in names:
        lines.append(await row(stage, WIRED[name], alone, seconds))
        alone = lines[-1]["steps_per_minute_after"]
        print(json.dumps(lines[-1]), flush=True)
    return lines


def _begin(swarm: Swarm, folder: Path) -> Stage:
    swarm.start_site(PYTHONPATH=OWN_CODE)
    organizer = swarm.sign_up("organizer")
    swarm.open_run(organizer, python_text()[:150_000], trainers=1, steps=ENDLESS, target_batch=BATCH)
    for name in HONEST:
        swarm.start_agent(name, token=swarm.token_of(organizer), PYTHONPATH=OWN_CODE)
    swarm.wait(lambda: len(swarm.online("trainer")) == len(HONEST), 120, "all are there")
    swarm.wait_for_step(swarm.facts()["step"] + 3, 120)
    say(f"{len(HONEST)} honest agents at {swarm.url}")
    return Stage(swarm, folder)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=["all", *WIRED], default=list(FIRST_ROWS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args(arguments)
    names = list(WIRED) if "all" in given.rows else given.rows
    idle: list[str] = []

    def measured() -> Figures:
        figures = measure(names, given.seconds)
        idle.extend(figures["did_nothing"])
        return figures

    publish("hostile", measured)
    return 1 if idle else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

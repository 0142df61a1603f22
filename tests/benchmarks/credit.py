"""Two machines that compute nothing beside two honest agents at a real site: who gets the credit, and who notices.
Described in README.md."""

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
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from demo.recipes import python_text
from peer_agent.machine.home import Home
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.trainer import events as e
from peer_agent.site.credential import RunAccess, log_in
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.benchmarks.rig.processes import ROOT
from tests.benchmarks.rig.puppet import ENDED, Puppet
from tests.end_to_end.rig.swarm import Swarm
from tests.hostile.behaviours import Behaviour, Memory, Word

Gradient = Literal["noise", "zeros", "stale", "copies"]

SECONDS = 300.0
AFTER_S = 60.0  # seconds after the liars' last contribution, in which their credit must be taken back
BATCH = "96"
OWN_CODE = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
LIAR = "liar-"
NAMED = " contributed gradients other than those of its samples"


class Case(Struct, frozen=True):
    """Two liars' behaviour. `speed`: times an honest agent's; `says`: the loss per token that they state."""

    gradient: Gradient
    speed: float = 1.0
    says: float = 2.5

    @property
    def name(self) -> str:
        return f"{self.gradient} at {self.speed:g} x, says {self.says:g}"


CASES = (
    Case("noise"),
    Case("zeros", says=0.2),
    Case("stale", speed=10.0),
    Case("copies", speed=10.0),
    Case("noise", speed=1000.0, says=1e15),
    Case("zeros", speed=1000.0),
)


class Liar(Puppet):
    """A machine of a stranger that takes leases and contributes, but computes nothing."""

    def __init__(self, access: RunAccess, case: Case, account: Counter[str]) -> None:
        super().__init__(access, Behaviour(name=case.name, fault="", bites=(), says=self._lie), account)
        self.case, self._average = case, np.zeros(0, np.float32)

    def _lie(self, _: Memory, message: m.Message) -> list[Word]:
        if not isinstance(message, m.Offer):
            return [message]
        self.account["offers"] += 1
        return [replace(message, loss_sum=self.case.says * message.loss_tokens)]

    async def _compute(self, action: e.Compute) -> None:
        assert self.core.recipe is not None
        await asyncio.sleep(0.25 / self.case.speed)
        if self.core.in_hand is None or self.core.in_hand.job != action.job or self.accumulator.sending is not None:
            return
        (unit,) = action.units
        _, tokens = self.core.recipe.loss_units_in(unit.samples)
        self._computed = tokens
        await self._take(e.Computed(action.job, self.case.says * tokens, (tokens,), self.core.step))

    def _become(self, greeting: m.Greeting) -> None:
        super()._become(greeting)
        if self.case.gradient != "noise":
            self.noise = np.zeros(self.grid.elements, np.float32)

    async def _apply(self, action: e.Apply) -> None:
        """Take the last average as the next gradient, as it is or, to look like another one, slightly changed."""
        head = action.record.record
        if self.case.gradient in ("stale", "copies") and self.round is not None and self.round.is_of(head):
            await self.round.wait_for_chunks(head, 5.0)
            average = self.round.assembly.gradient(head)
            if isinstance(average, np.ndarray):
                mixed = np.random.default_rng(head.step).normal(1, 0.1, average.size).astype(np.float32)
                self.noise = average.copy() if self.case.gradient == "copies" else average * mixed
                self.account["copied"] += 1
        await super()._apply(action)


async def _play(access: RunAccess, case: Case, account: Counter[str], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await Liar(access, case, account).run()
    except (TimeoutError, *ENDED):
        pass


def measure(cases: tuple[Case, ...], seconds: float) -> Figures:
    lines = []
    for case in cases:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Swarm(Path(folder)) as swarm:
            lines.append(_case(swarm, Path(folder), case, seconds))
        print(json.dumps(lines[-1]), flush=True)
    return {"cases": lines}


def _case(swarm: Swarm, folder: Path, case: Case, seconds: float) -> dict[str, Any]:
    swarm.start_site(PYTHONPATH=OWN_CODE)
    people = {name: swarm.sign_up(name) for name in ("ann", "ben")}
    swarm.open_endless_run(people["ann"], python_text()[:150_000], target_batch=BATCH)
    for name, visitor in people.items():
        swarm.start_agent(name, token=swarm.token_of(visitor), PYTHONPATH=OWN_CODE)
    swarm.wait(lambda: len(swarm.online("trainer")) == len(people), 120, "both are there")
    swarm.wait_for_step(swarm.facts()["step"] + 12, 120)
    first, account = swarm.facts()["step"], Counter[str]()
    say(f"{case.name}: from step {first}")
    asyncio.run(_lie(swarm, folder, case, account, seconds))
    time.sleep(AFTER_S)
    return {"case": case.name, **_figures(swarm, first), "acted": account["offers"], "account": dict(account)}


async def _lie(swarm: Swarm, folder: Path, case: Case, account: Counter[str], seconds: float) -> None:
    machines = []
    for _ in range(2):
        name = LIAR + secrets.token_hex(4)
        visitor = await asyncio.to_thread(swarm.sign_up, name)
        token = await asyncio.to_thread(swarm.token_of, visitor)
        known = await log_in(Home(folder / name), swarm.url, token, name=name)
        access = RunAccess(Home(folder / name), known, Role.TRAINER, swarm.slug)
        await access.renew()
        machines.append(access)
    await asyncio.gather(*(_play(access, case, account, seconds) for access in machines))


def _figures(swarm: Swarm, first: int) -> dict[str, Any]:
    """Return the liars' share of the standing credit since they came, the error of the curve, and who was named.

    `named_after_rounds`: in how many updates each liar's work was when it was taken back for the first time.
    """
    rows = swarm.rows(
        "select p.username, l.samples, l.reverses_id from runs_ledgerentry l join accounts_person p"
        f" on p.id = l.person_id where l.{swarm.of_run()} and l.step > {first} order by l.id"
    )
    given, rounds, named = Counter[str](), Counter[str](), dict[str, int]()
    for name, samples, reverses in rows:
        given[name] += samples
        if not name.startswith(LIAR):
            continue
        if reverses is None:
            rounds[name] += 1
        else:
            named.setdefault(name, rounds[name])
    lines = [line for line in swarm.timeline() if NAMED in line]
    return {
        "liars_share": sum(given[name] for name in rounds) / max(1, given.total()),
        "curve_error": _curve_error(swarm, first),
        "named_after_rounds": sorted(named.values()),
        "liars_named": len({line.split()[0] for line in lines if line.startswith(LIAR)}),
        "honest_named": len({line.split()[0] for line in lines if not line.startswith(LIAR)}),
        "steps": swarm.facts()["step"] - first,
        "liars_rounds": sum(rounds.values()),
    }


def _curve_error(swarm: Swarm, first: int) -> float:
    """Return the mean relative difference of the curve from the losses of the honest agents, over all steps."""
    errors = []
    for record in swarm.records():
        parts = [part for part in record["contributions"] if not part["person"].startswith(LIAR)]
        if record["step"] > first and parts and record["kind"] == "update":
            weight = sum(part["weight"] for part in parts)
            loss = sum(part["evidence"]["loss_sum"] for part in parts) / weight
            errors.append(abs(record["loss"] / loss - 1))
    return round(float(np.mean(errors)), 4) if errors else 1.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.credit", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--cases", type=int, nargs="+", choices=range(len(CASES)), default=list(range(len(CASES))))
    given = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []

    def measured() -> Figures:
        figures = measure(tuple(CASES[number] for number in given.cases), given.seconds)
        found.extend(figures["cases"])
        return figures

    publish("credit", measured)
    return 0 if all(line["acted"] for line in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

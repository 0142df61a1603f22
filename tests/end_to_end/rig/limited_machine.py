"""A machine in its own network, limited by its owner on the page. test_limits.py checks the results.

Run `python -m tests.end_to_end.rig.limited_machine FOLDER` alone in a network namespace. Traffic is read from the
kernel's counters at the site's end of the machine's cable, and computing is judged by the machine's CPU time. The last
line of the output is a JSON object of results.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from demo.recipes import python_text
from demo.visitor import Visitor
from tests.end_to_end.rig.network_change import SITE, Laptop, laptop
from tests.end_to_end.rig.swarm import Swarm

CABLE, RECEIVED, SENT = "site:", 0, 8  # the cable's name and the columns in /proc/net/dev
REST_S = 3.0  # seconds for which a resting machine is observed
PACED_S = 20.0  # seconds for which a rate is measured, since data arrives a third of a megabyte at a time
MBPS, DUTY_PERCENT = 1.0, 20
SETTLED_S = 3.0  # seconds until earlier data has left the socket's buffer
LONGEST_S = 30  # longest wait until a download limit takes effect
FREE_STEPS, COUNTED_STEPS = 3, 8
HEARD_S = 10.0  # seconds until the machine knows its limits; half a second on an idle machine
GAME = "quiet-game"
# the month's limit, and the bytes that the machine is made to believe it has moved this month
MONTH_GB, MOVED = 100, 200 * 10**9


class Machine:
    def __init__(self, swarm: Swarm, owner: Visitor) -> None:
        self.swarm, self.owner = swarm, owner
        found = re.search(r"/machines/([-0-9a-f]{36})/limits/", owner.read("/machines/"))
        assert found is not None
        self.page, self.key = f"/machines/{found[1]}/", found[1].replace("-", "")

    @property
    def row(self) -> dict[str, Any]:
        query = (
            f"select report from accounts_machinecontrol where machine_id = '{self.key}' and reported_at is not null"
        )
        found = self.swarm.rows(query)
        return json.loads(found[0][0]) if found and found[0][0] else {}

    def shown(self) -> str:
        return " ".join(re.sub(r"<[^>]+>", " ", self.owner.read("/machines/")).split())

    def press(self, name: str, value: str = "1") -> None:
        self.owner.submit("/machines/", {name: value}, action=self.page)

    def limit(self, **fields: str) -> None:
        self.owner.submit(f"{self.page}limits/", fields)
        self.swarm.wait(lambda: self.row.get("revision") == self.revision, HEARD_S, "it has heard of its limits")

    @property
    def revision(self) -> int:
        return int(self.kept("revision"))

    def kept(self, column: str) -> Any:
        """Return a column of the owner's instructions stored on the site, or an empty string before the first
        instruction.
        """
        found = self.swarm.rows(f"select {column} from accounts_machinecontrol where machine_id = '{self.key}'")
        return found[0][0] if found else ""

    def until(self, why: str, limit_s: float = 60) -> float:
        """Wait until the machine rests for this reason, or works if `why` is empty. Return how many seconds it took."""
        began = time.monotonic()
        self.swarm.wait(lambda: self.row.get("why") == why, limit_s, f"it says {why or 'that it works'}")
        return time.monotonic() - began

    def works(self) -> None:
        self.until("")
        head = self.swarm.head()
        self.swarm.wait(lambda: self.swarm.made("laptop") >= head + 2, 120, "the laptop takes part")

    def process(self) -> psutil.Process:
        outer = psutil.Process(self.swarm.processes["laptop"].pid)
        inner = (child for child in outer.children(recursive=True) if "manyhands" in " ".join(child.cmdline()))
        return next(inner, outer)


def moved() -> tuple[int, int]:
    """Return how many bytes the machine sent and received, counted at the site's end."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith(CABLE))
    counters = line.split()[1:]
    return int(counters[RECEIVED]), int(counters[SENT])


def rates(seconds: float) -> tuple[float, float]:
    before = moved()
    time.sleep(seconds)
    return tuple(8e-6 * (after - first) / seconds for first, after in zip(before, moved(), strict=True))  # type: ignore[return-value]


def settle() -> None:
    """Wait until a download limit takes effect: the sender's last burst arrives, and then the rate drops."""
    has_come = False
    for _ in range(LONGEST_S):
        _, down = rates(1.0)
        if has_come and down < MBPS / 10:
            return
        has_come = has_come or down > MBPS


def step_rates(machine: Machine) -> tuple[float, float]:
    """Return the rates in Mb/s over whole steps. In each step, the machine sends a gradient and receives an average."""
    began, before, made = time.monotonic(), moved(), machine.swarm.made("laptop")
    machine.swarm.wait(lambda: machine.swarm.made("laptop") >= made + FREE_STEPS, 120, "steps without a limit")
    seconds = time.monotonic() - began
    return tuple(8e-6 * (after - first) / seconds for first, after in zip(before, moved(), strict=True))  # type: ignore[return-value]


def share_computed(process: psutil.Process, seconds: float) -> float:
    def used() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds


def journey(swarm: Swarm, roaming: Laptop) -> dict[str, Any]:
    swarm.start_site(host=SITE)
    organizer, owner = swarm.sign_up("organizer"), swarm.sign_up("owner")
    text = python_text()[:150_000]
    swarm.open_endless_run(organizer, text, trainers=1, width="64", target_batch="64")
    other = swarm.slug
    larger = {"width": "128", "layers": "2", "target_batch": "128", "snapshot_every": "25"}
    swarm.open_endless_run(organizer, text, trainers=1, **larger)
    swarm.start_agent("desk", token=swarm.token_of(organizer))
    swarm.start_agent("laptop", token=swarm.token_of(owner), inside=roaming.inside)
    swarm.wait(lambda: swarm.made("laptop") >= 2, 120, "the laptop takes part")
    machine = Machine(swarm, owner)
    facts: dict[str, Any] = {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "pause": lambda: paused(machine),
        "program": lambda: held_by_program(machine, swarm.folder),
        "hours": lambda: held_by_hours(machine),
        "rate": lambda: paced(machine),
        "duty": lambda: idle_part(machine),
        "threads": lambda: threads(machine),
        "month": lambda: month(swarm, machine, roaming),
        "move": lambda: moves(swarm, machine, other),
        "finish": lambda: finishes(swarm, machine),
    }
    for name, part in parts.items():
        facts[name] = part()
        print(f"{name}: {facts[name]}", file=sys.stderr)
    facts["log"] = swarm.log("laptop")
    return facts


def rests(machine: Machine) -> dict[str, Any]:
    """Measure a resting machine, after one second in which it may finish its micro-batch."""
    time.sleep(1.0)
    up, down = rates(REST_S)
    return {"up_mbps": up, "down_mbps": down, "computed": share_computed(machine.process(), REST_S)}


def paused(machine: Machine) -> dict[str, Any]:
    before = machine.process().memory_info().rss
    began = time.monotonic()
    machine.press("pause")
    machine.until("paused")
    answered_s = time.monotonic() - began
    quiet = rests(machine)
    freed = before - machine.process().memory_info().rss
    said = machine.shown()
    machine.press("resume")
    machine.works()
    return {"answered_s": answered_s, "said": "Paused by you." in said, "freed": freed, **quiet}


def held_by_program(machine: Machine, folder: Path) -> dict[str, Any]:
    machine.limit(programs=f"nothing-of-this-name\n{GAME}")
    machine.works()
    game = shutil.copy(shutil.which("sleep") or "", folder / GAME)
    with subprocess.Popen([game, "600"]) as process:
        answered_s = machine.until("program")
        detail = machine.row["detail"]
        quiet = rests(machine)
        process.kill()
    machine.works()
    machine.limit()
    return {"answered_s": answered_s, "detail": detail, **quiet}


def held_by_hours(machine: Machine) -> dict[str, Any]:
    """Set working hours that end within two minutes, and wait until the machine stops."""
    end = datetime.now().replace(second=0, microsecond=0) + timedelta(minutes=1)  # noqa: DTZ005 (of the same clock)
    day = end.weekday() if end.hour or end.minute else (end.weekday() - 1) % 7
    machine.limit(**{f"from_{day}": "00:00" if end.hour or end.minute > 1 else "23:00", f"to_{day}": f"{end:%H:%M}"})
    machine.until("hours", 90)
    late_s = (datetime.now() - end).total_seconds()  # noqa: DTZ005
    quiet = rests(machine)
    said = machine.shown()
    machine.limit()
    machine.works()
    return {"late_s": late_s, "said": "Outside its hours." in said, **quiet}


def paced(machine: Machine) -> dict[str, Any]:
    """Measure the rates over whole steps without a limit, then over a fixed time with each direction limited in
    turn."""
    free_up, free_down = step_rates(machine)
    machine.limit(up_mbps=str(MBPS))
    time.sleep(SETTLED_S)
    up, _ = rates(PACED_S)
    machine.limit(down_mbps=str(MBPS))
    settle()
    _, down = rates(PACED_S)
    machine.limit()
    machine.works()
    return {"free_up": free_up, "free_down": free_down, "up": up, "down": down, "limit": MBPS, "seconds": PACED_S}


def idle_part(machine: Machine) -> dict[str, Any]:
    """Compare the machine's share of the samples with and without a duty limit, alongside an equally fast machine."""
    free = share_of_samples(machine)
    machine.limit(duty_percent=str(DUTY_PERCENT))
    machine.works()
    part = share_of_samples(machine)
    machine.limit()
    return {"free": free, "part": part, "limit": DUTY_PERCENT / 100}


def share_of_samples(machine: Machine) -> float:
    head = machine.swarm.head()
    machine.swarm.wait(lambda: machine.swarm.head() >= head + COUNTED_STEPS, 240, "steps are made")
    records = [record for record in machine.swarm.records() if record["step"] > head]
    parts = [part for record in records for part in record["contributions"]]
    own = sum(int(part["samples"]) for part in parts if part["person"] == "owner")
    return own / sum(int(record["samples"]) for record in records)


def threads(machine: Machine) -> dict[str, Any]:
    machine.limit(threads="2")
    machine.swarm.wait(lambda: machine.row.get("threads") == 2, 10, "two threads are told")
    machine.limit()
    machine.swarm.wait(lambda: machine.row.get("threads") == 1, 10, "the command line's are told")
    return {"told": True}


def month(swarm: Swarm, machine: Machine, roaming: Laptop) -> dict[str, Any]:
    """Restart the machine with more traffic on record than its monthly limit allows."""
    machine.limit(month_gb=str(MONTH_GB))
    machine.works()
    counted, cable = machine.row["month_bytes"], sum(moved())
    swarm.end("laptop")
    for path in swarm.folder.joinpath("laptop").rglob("traffic.json"):
        told = json.loads(path.read_bytes())
        path.write_text(json.dumps(told | {"bytes": MOVED}))
    swarm.start_agent("laptop", inside=roaming.inside)
    machine.until("traffic", 60)
    quiet = rests(machine)
    machine.limit()
    machine.works()
    return {"counted": counted, "cable": cable, **quiet}


def moves(swarm: Swarm, machine: Machine, other: str) -> dict[str, Any]:
    machine.press("move", "no-such-run")
    swarm.wait(lambda: machine.row.get("could_not"), 90, "it says that it cannot")
    could_not = machine.row["could_not"]
    machine.works()
    first, swarm.slug = swarm.slug, other
    machine.press("move", other)
    swarm.wait(lambda: len(swarm.online("trainer")) == 1, 120, "it is in the other run")
    swarm.wait_for_step(2)
    head = swarm.head()
    swarm.slug = first
    return {"could_not": could_not, "head": head, "left": len(swarm.online("trainer")) == 1}


def finishes(swarm: Swarm, machine: Machine) -> dict[str, Any]:
    machine.press("finish")
    code = swarm.processes["laptop"].wait(90)
    swarm.wait(lambda: not machine.row, 30, "its report is forgotten")
    swarm.wait(lambda: "Offline" in machine.shown(), 30, "its owner sees it go")
    return {"code": code}


if __name__ == "__main__":
    with laptop() as roaming, Swarm(Path(sys.argv[1])) as swarm:
        print(json.dumps(journey(swarm, roaming)))

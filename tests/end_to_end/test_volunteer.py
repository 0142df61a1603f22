"""What a volunteer's machine goes through: sleep, a site that is away, a wish to leave. None of it is an error."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from demo.processes import ROOT, bare_environment
from demo.visitor import Visitor
from tests.benchmarks.memory import peak_of
from tests.end_to_end.rig.network_change import ALONE, networks_can_be_made
from tests.end_to_end.rig.swarm import MANYHANDS, Swarm

ROAMING = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")])}
AWAY, BACK = "Site not reachable (E134)", "Solved: Site not reachable."
NAP_S, OUTAGE_S = 30.0, 15.0  # what is promised to pass without a word of error
ENDLESS = 100_000


def begin(swarm: Swarm, english: str, *names: str, trainers: int = 1) -> Visitor:
    swarm.start_site()
    organizer = swarm.sign_up("organizer")
    swarm.open_run(organizer, english, trainers=trainers, steps=ENDLESS)
    for name in names:
        swarm.start_agent(name, token=swarm.token_of(organizer))
    return organizer


def ask(swarm: Swarm, agent: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A second command in the home of an agent."""
    home = swarm.folder / agent
    return subprocess.run(
        [MANYHANDS, *command], env=bare_environment(home), capture_output=True, text=True, timeout=120, check=False
    )


def status(swarm: Swarm, agent: str) -> dict[str, Any]:
    done = ask(swarm, agent, "status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def has_made(swarm: Swarm, agent: str, step: int) -> bool:
    return max(swarm.digests(agent), default=0) >= step


def head(swarm: Swarm) -> int:
    return int(swarm.facts()["step"])


def is_solved(said: str) -> bool:
    """The agent looks at its links once a second."""
    return said.count(AWAY) == said.count(BACK)


def test_sleep_and_a_site_that_is_away_are_not_errors(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        begin(swarm, english, "a", "b")
        swarm.wait(lambda: has_made(swarm, "b", 2), 120, "b takes part")
        swarm.processes["b"].send_signal(signal.SIGSTOP)
        time.sleep(NAP_S)
        assert status(swarm, "b")["stale"] is True
        slept_through = head(swarm)
        swarm.processes["b"].send_signal(signal.SIGCONT)
        swarm.wait(lambda: has_made(swarm, "b", slept_through + 2), 120, "b has caught up")
        swarm.kill("site")
        time.sleep(OUTAGE_S)
        before = head_of(swarm, "a")
        swarm.start_site()
        for name in ("a", "b"):
            swarm.wait(lambda name=name: has_made(swarm, name, before + 2), 120, f"{name} is back")  # type: ignore[misc]
        for name in ("a", "b"):
            assert swarm.processes[name].poll() is None
            swarm.wait(lambda name=name: is_solved(swarm.log(name)), 30, f"{name} says that it is over")  # type: ignore[misc]
            assert "Traceback" not in swarm.log(name)
            assert 1 <= swarm.log(name).count(AWAY) <= 2
        agree = swarm.digests("a").items() & swarm.digests("b").items()
        assert len(agree) >= 4
        assert all(swarm.digests("a").get(step, of) == of for step, of in swarm.digests("b").items())


@pytest.mark.skipif(not networks_can_be_made(), reason="this system lets no test make a network (ip, unshare)")
def test_a_network_that_is_lost_and_another_one_are_not_errors(tmp_path: Path) -> None:
    """The cable is pulled for longer than anybody waits; then the laptop wakes up under another address."""
    command = [*ALONE, sys.executable, "-m", "tests.end_to_end.rig.network_change", str(tmp_path)]
    done = subprocess.run(command, env=ROAMING, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert min(facts["went_on"]) >= 1, "the others went on without it"
    assert facts["alive"]
    assert facts["away"] == facts["back"]
    assert 1 <= facts["back"] <= 4, "told once each time, and calmly"
    assert not re.search(r"^\d\d:\d\d:\d\d  E\d{3}|Traceback", facts["log"], flags=re.MULTILINE)
    assert facts["differ"] == []
    assert facts["books"]


def head_of(swarm: Swarm, agent: str) -> int:
    return max(swarm.digests(agent))


def test_one_ctrl_c_finishes_the_step_and_leaves(tmp_path: Path, english: str) -> None:
    with Swarm(tmp_path) as swarm:
        begin(swarm, english, "a", "b", trainers=2)
        swarm.wait(lambda: has_made(swarm, "b", 2), 120, "b takes part")
        swarm.wait(lambda: status(swarm, "b").get("step", 0) >= 2, 60, "its status says so")
        facts = status(swarm, "b")
        assert (facts["running"], facts["stale"], facts["title"]) == (True, False, "A run")
        assert facts["pid"] == swarm.processes["b"].pid
        swarm.processes["b"].send_signal(signal.SIGINT)
        assert swarm.processes["b"].wait(90) == 0
        said = swarm.log("b")
        assert "This machine has left." in said.splitlines()[-1]
        last = head_of(swarm, "b")
        if "Finishing step" in said:
            step = int(said.split("Finishing step ")[1].split(";")[0])
            assert last == step, "it left with the step that it had promised to finish"
        assert status(swarm, "b") == {"running": False, "pid": None}
        swarm.wait(lambda: head(swarm) >= last + 2, 60, "a goes on alone")
        left = ask(swarm, "a", "leave")
        assert (left.returncode, left.stderr) == (0, "")
        assert left.stdout == f"The agent (process {swarm.processes['a'].pid}) has left.\n"
        assert swarm.processes["a"].wait(30) == 0
        assert "This machine has left." in swarm.log("a").splitlines()[-1]
        nobody = ask(swarm, "a", "leave")
        assert (nobody.returncode, nobody.stderr[:6]) == (1, "E116: ")
        ledger, committed = swarm.books()
        assert ledger == committed > 0


def test_the_same_command_goes_on_after_a_reboot(tmp_path: Path, english: str) -> None:
    """A machine whose power was cut has its lock, its status and its cache left over, and needs no new approval."""
    with Swarm(tmp_path) as swarm:
        begin(swarm, english, "a")
        swarm.wait(lambda: has_made(swarm, "a", 2), 120, "a takes part")
        swarm.kill("a")
        assert status(swarm, "a") == {"running": False, "pid": None}
        last = head_of(swarm, "a")
        swarm.start_agent("a")
        swarm.wait(lambda: has_made(swarm, "a", last + 2), 120, "a goes on")
        for _ in range(2):  # the second one does not wait for the step
            swarm.processes["a"].send_signal(signal.SIGINT)
        assert swarm.processes["a"].wait(10) == 0


def events(swarm: Swarm, agent: str) -> list[dict[str, Any]]:
    """What it has said to a program; its log lies between the lines."""
    return [json.loads(line) for line in swarm.log(agent).splitlines() if line.startswith('{"at":')]


def test_a_program_hears_everything_also_of_a_run_by_invitation(tmp_path: Path, english: str) -> None:
    """The size, the pace and the rank are read with the machine's own credential: nobody else may see them."""
    with Swarm(tmp_path) as swarm:
        organizer = begin(swarm, english)
        token = swarm.token_of(organizer)
        organizer.submit(f"/runs/{swarm.slug}/edit/", {"title": "A run", "purpose": "", "visibility": "private"})
        assert swarm.facts()["state"] == "away", "strangers do not see it"
        swarm.start_agent("a", token=token, options="--json")
        swarm.wait(lambda: any(event.get("rank") for event in events(swarm, "a")), 120, "its rank is told")
        process = swarm.processes["a"]
        peak = peak_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0
        told = events(swarm, "a")
        assert {"preflight", "note", "state", "figures", "step", "left"} <= {event["event"] for event in told}
        (preflight,) = [event for event in told if event["event"] == "preflight"]
        assert preflight["memory_bytes"] >= 0.9 * peak
        steps = [event for event in told if event["event"] == "step"]
        assert [event["step"] for event in steps] == list(range(steps[0]["step"], steps[-1]["step"] + 1))
        assert all(event["loss"] > 0 and 0 <= event["from_here"] <= event["samples"] for event in steps)
        figures = [event for event in told if event["event"] == "figures"]
        assert (figures[-1]["rank"], figures[-1]["hands"]) == (1, 1)
        assert max(event["up_mbps"] for event in figures) > 0
        assert told[-1]["event"] == "left"

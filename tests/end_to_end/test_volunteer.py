"""A volunteer's machine sleeps, cannot reach the site, or leaves. None of this is an error."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.processes import ROOT, bare_environment
from demo.visitor import Visitor
from peer_agent.machine.leave_request import FINISH_S
from tests.benchmarks.memory.training import peak_of
from tests.end_to_end.rig.network_change import ALONE, networks_can_be_made
from tests.end_to_end.rig.swarm import AWAY, BACK, MANYHANDS, Swarm, in_variable

ROAMING = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform")])}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Swarm, Visitor]]:
    with Swarm(tmp_path_factory.mktemp("volunteer")) as swarm:
        swarm.start_site()
        yield swarm, swarm.sign_up("organizer")


@pytest.fixture
def begun(site: tuple[Swarm, Visitor]) -> Iterator[tuple[Swarm, Visitor]]:
    yield site
    site[0].end_agents()


def begin(site: tuple[Swarm, Visitor], english: str, *names: str, trainers: int = 1) -> Swarm:
    swarm, organizer = site
    swarm.open_endless_run(organizer, english, trainers=trainers)
    for name in names:
        swarm.start_agent(name, token=swarm.token_of(organizer))
    return swarm


def ask(swarm: Swarm, agent: str, *command: str) -> subprocess.CompletedProcess[str]:
    home = swarm.folder / agent
    return subprocess.run(
        [MANYHANDS, *command], env=bare_environment(home), capture_output=True, text=True, timeout=120, check=False
    )


def status(swarm: Swarm, agent: str) -> dict[str, Any]:
    done = ask(swarm, agent, "status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def makes(swarm: Swarm, agent: str, step: int, what: str) -> None:
    swarm.wait(lambda: swarm.made(agent) >= step, 120, what)


def sleep_until_missed(swarm: Swarm, agent: str) -> None:
    """Suspend an agent until the run notices its absence, then wait until it has caught up."""
    swarm.wait(lambda: len(swarm.online("trainer")) == 2, 30, "the site shows both")
    swarm.processes[agent].send_signal(signal.SIGSTOP)
    swarm.wait(lambda: len(swarm.online("trainer")) == 1, 120, f"{agent} is missed")
    swarm.wait(lambda: status(swarm, agent)["stale"], 30, "its own status says so")
    slept_through = swarm.head()
    swarm.processes[agent].send_signal(signal.SIGCONT)
    makes(swarm, agent, slept_through + 2, f"{agent} has caught up")


def kill_site_until_told(swarm: Swarm, *agents: str) -> None:
    told = {name: swarm.said(name, AWAY) for name in agents}
    swarm.kill("site")
    for name, before in told.items():
        swarm.wait(lambda name=name, before=before: swarm.said(name, AWAY) > before, 60, f"{name} says so")  # type: ignore[misc]


def is_solved(swarm: Swarm, agent: str) -> bool:
    """Return True if the agent has reported the site's return as often as the site's absence."""
    return swarm.said(agent, AWAY) == swarm.said(agent, BACK)


def test_sleep_and_a_site_that_is_away_are_not_errors(begun: tuple[Swarm, Visitor], english: str) -> None:
    swarm = begin(begun, english, "a", "b")
    makes(swarm, "b", 2, "b takes part")
    sleep_until_missed(swarm, "b")
    kill_site_until_told(swarm, "a", "b")
    before = swarm.made("a")
    swarm.start_site()
    for name in ("a", "b"):
        makes(swarm, name, before + 2, f"{name} is back")
    for name in ("a", "b"):
        assert swarm.processes[name].poll() is None
        swarm.wait(lambda name=name: is_solved(swarm, name), 30, f"{name} says that it is over")  # type: ignore[misc]
        assert "Traceback" not in swarm.log(name)
        assert 1 <= swarm.said(name, AWAY) <= 2
    agree = swarm.digests("a").items() & swarm.digests("b").items()
    assert len(agree) >= 4
    assert all(swarm.digests("a").get(step, of) == of for step, of in swarm.digests("b").items())


@pytest.mark.skipif(not networks_can_be_made(), reason="this system lets no test make a network (ip, unshare)")
def test_a_network_that_is_lost_and_another_one_are_not_errors(tmp_path: Path) -> None:
    """The cable stays unplugged longer than any timeout. Later, the laptop wakes up with another address."""
    command = [*ALONE, sys.executable, "-m", "tests.end_to_end.rig.network_change", str(tmp_path)]
    done = subprocess.run(command, env=ROAMING, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert min(facts["went_on"]) >= 2, "the others went on without it"
    assert facts["alive"]
    assert facts["away"] == facts["back"]
    assert 1 <= facts["back"] <= 4, "told once each time, and calmly"
    assert not re.search(r"^\d\d:\d\d:\d\d  E\d{3}|Traceback", facts["log"], flags=re.MULTILINE)
    assert facts["differ"] == []
    assert facts["books"]


def test_one_ctrl_c_finishes_the_step_and_leaves(begun: tuple[Swarm, Visitor], english: str) -> None:
    swarm = begin(begun, english, "c", "d", trainers=2)
    makes(swarm, "d", 2, "d takes part")
    swarm.wait(lambda: status(swarm, "d").get("step", 0) >= 2, 60, "its status says so")
    facts = status(swarm, "d")
    assert (facts["running"], facts["stale"], facts["title"]) == (True, False, "A run")
    assert facts["pid"] == swarm.processes["d"].pid
    swarm.processes["d"].send_signal(signal.SIGINT)
    assert swarm.processes["d"].wait(90) == 0
    said = swarm.log("d")
    assert "This machine has left." in said.splitlines()[-1]
    last = swarm.made("d")
    if "Finishing step" in said:
        step = int(said.split("Finishing step ")[1].split(",")[0])
        assert last == step, "it left with the step that it had promised to finish"
    assert status(swarm, "d") == {"running": False, "pid": None}
    swarm.wait_for_step(last + 2, 60)  # agent c continues alone
    left = ask(swarm, "c", "leave")
    assert (left.returncode, left.stderr) == (0, "")
    assert left.stdout == f"The agent (process {swarm.processes['c'].pid}) has left.\n"
    assert swarm.processes["c"].wait(30) == 0
    assert "This machine has left." in swarm.log("c").splitlines()[-1]
    nobody = ask(swarm, "c", "leave")
    assert (nobody.returncode, nobody.stderr[:6]) == (1, "E116: ")
    ledger, committed = swarm.books()
    assert ledger == committed > 0


def test_the_same_command_goes_on_after_a_reboot(begun: tuple[Swarm, Visitor], english: str) -> None:
    """A power cut leaves the lock, the status and the cache behind. No new approval is needed."""
    swarm = begin(begun, english, "e")
    makes(swarm, "e", 2, "e takes part")
    swarm.kill("e")
    assert status(swarm, "e") == {"running": False, "pid": None}
    last = swarm.made("e")
    swarm.start_agent("e")
    makes(swarm, "e", last + 2, "e goes on")
    agent = swarm.processes["e"]
    agent.send_signal(signal.SIGINT)
    swarm.wait(lambda: swarm.said("e", "Finishing step") or agent.poll() is not None, 60, "e was asked")
    agent.send_signal(signal.SIGINT)  # a second request to leave does not wait for the step
    assert agent.wait(60) == 0


def events(swarm: Swarm, agent: str) -> list[dict[str, Any]]:
    """Return the JSON events that an agent printed, leaving out the log lines between them."""
    return [json.loads(line) for line in swarm.log(agent).splitlines() if line.startswith('{"at":')]


def test_a_program_hears_everything_also_of_a_run_by_invitation(begun: tuple[Swarm, Visitor], english: str) -> None:
    """With its credential, the machine can read the size, speed and rank, which are hidden from strangers."""
    swarm, organizer = begin(begun, english), begun[1]
    organizer.submit(f"/runs/{swarm.slug}/edit/", {"title": "A run", "purpose": "", "visibility": "private"})
    assert swarm.facts()["state"] == "away", "strangers do not see it"
    swarm.start_agent("f", token=swarm.token_of(organizer), options="--json")
    swarm.wait(lambda: any(event.get("rank") for event in events(swarm, "f")), 120, "its rank is told")
    process = swarm.processes["f"]
    peak = peak_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 0
    told = events(swarm, "f")
    assert {"preflight", "note", "state", "figures", "step", "left"} <= {event["event"] for event in told}
    (preflight,) = [event for event in told if event["event"] == "preflight"]
    assert preflight["memory_bytes"] >= 0.9 * peak
    steps = [event for event in told if event["event"] == "step"]
    assert [event["step"] for event in steps] == list(range(steps[0]["step"], steps[-1]["step"] + 1))
    assert all(event["loss"] > 0 and 0 <= event["from_here"] <= event["samples"] for event in steps)
    figures = [event for event in told if event["event"] == "figures"]
    assert (figures[-1]["rank"], figures[-1]["people"]) == (1, 1)
    assert max(event["up_mbps"] for event in figures) > 0
    assert told[-1]["event"] == "left"


# --- `examples/own_loop.py`, as people start it


def start_own(swarm: Swarm, name: str, token: str, *options: str) -> Path:
    home = swarm.folder / name
    home.mkdir()
    command = [sys.executable, str(ROOT / "examples" / "own_loop.py"), f"{swarm.url}/runs/{swarm.slug}/", *options]
    environment = bare_environment(home) | in_variable(token) | {"PYTHONPATH": str(ROOT)}
    swarm.start(name, command, environment, home)
    return home / "units.csv"


def test_an_own_loop_trains_beside_agents_and_finishes_its_step(begun: tuple[Swarm, Visitor], english: str) -> None:
    swarm = begin(begun, english, "usual", trainers=2)
    table = start_own(swarm, "own", swarm.token_of(swarm.sign_up("researcher")))
    swarm.wait(lambda: table.exists() and len(table.read_text().splitlines()) > 12, 300, "it computes")
    swarm.processes["own"].send_signal(signal.SIGINT)
    assert swarm.processes["own"].wait(2 * FINISH_S) != 0
    assert "KeyboardInterrupt" in swarm.log("own")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert all(2 < float(row["loss"]) < 8 and float(row["gradient_norm"]) > 0 for row in rows)
    agree = swarm.digests("usual").items() & swarm.digests("own").items()
    assert agree, "the same state after the same updates"
    credit = sum(row["samples"] for row in swarm.items("ledger") if row["person"] == "researcher")
    assert credit > sum(int(row["samples"]) for row in rows) / 2, "but what a cut came before"

"""The demo as a newcomer runs it: real processes over HTTP, observed from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo.processes import ROOT
from demo.visitor import Visitor
from tests.end_to_end.rig.swarm import is_alive
from tests.golden import golden, shape_of

LIMIT_S = 240
# the token is in the environment, because other users can read a command line
USUAL = {"PATH", "HOME", "MANYHANDS_HOME", "MANYHANDS_TOKEN"}


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-u", str(ROOT / "manage.py"), "demo", "--port", "0", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(done: Callable[[], object], what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def agents_of(demo: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the demo's child processes that are already running the agent's command."""
    found = []
    for child in psutil.Process(demo.pid).children():
        try:
            if "join" in child.cmdline():
                found.append(child)
        except (psutil.ZombieProcess, psutil.NoSuchProcess):
            continue
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a demo with two volunteers and six steps. Return its result and what was observed of its agents."""
    file = tmp_path_factory.mktemp("demo") / "out.json"
    seen: dict[int, dict[str, Any]] = {}
    with start("--peers", "2", "--steps", "6", "--exit", "--json", str(file)) as demo:
        while demo.poll() is None:
            for agent in agents_of(demo):
                look_at(agent, seen)
            time.sleep(0.2)
        said = demo.stdout.read() if demo.stdout else ""
    assert demo.returncode == 0, said
    return json.loads(file.read_text()), list(seen.values())


def look_at(agent: psutil.Process, seen: dict[int, dict[str, Any]]) -> None:
    try:
        listening = [c.laddr for c in agent.net_connections("all") if c.status == psutil.CONN_LISTEN]
        facts = seen.setdefault(agent.pid, {"environment": set(agent.environ()), "listening": [], "looks": 0})
    except psutil.Error:
        return
    facts["listening"] += listening
    facts["looks"] += 1


def test_the_result_has_its_shape(finished: tuple[dict[str, Any], Any]) -> None:
    result, _ = finished
    assert shape_of(result) == shape_of(golden("demo"))
    assert result["steps"] == 6
    assert {peer["name"] for peer in result["peers"]} == {"Amina", "Teo"}


def test_the_loss_falls_and_the_books_are_equal(finished: tuple[dict[str, Any], Any]) -> None:
    result, _ = finished
    assert result["final_loss"] < result["first_loss"]
    assert result["ledger_samples"] == result["committed_samples"] == sum(p["samples"] for p in result["peers"])


def test_agents_get_little_and_listen_on_nothing(finished: tuple[Any, list[dict[str, Any]]]) -> None:
    _, agents = finished
    assert len(agents) == 2
    for agent in agents:
        assert agent["looks"] > 5
        assert agent["environment"] - {"LC_CTYPE"} == USUAL  # Python sets LC_CTYPE by itself in a bare environment
        assert agent["listening"] == []


def test_the_model_loads_and_speaks_without_a_network(finished: tuple[dict[str, Any], Any]) -> None:
    result, _ = finished
    program = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
ids = tokenizer("The ", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=8, do_sample=False)[0]))
"""
    offline = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, result["model_path"]], env=offline, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("The ")
    assert len(done.stdout) > len("The ")


def test_everything_ends_with_the_demo_when_it_is_killed() -> None:
    with start("--peers", "1", "--steps", "1000") as demo:
        wait_until(lambda: agents_of(demo), "an agent starts")
        family = family_of(demo)
        demo.kill()
        demo.wait(LIMIT_S)
        wait_until(lambda: not any(is_alive(process) for process in family), "all children are gone")


def family_of(demo: "subprocess.Popen[str]") -> list[psutil.Process]:
    family = [psutil.Process(demo.pid), *psutil.Process(demo.pid).children(recursive=True)]
    assert len(family) >= 4, "demo, site, relay, agent"
    return family


def test_a_taken_port_names_its_holder(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, str(ROOT / "manage.py"), "demo", "--port", str(port), "--exit"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"E401: Port {port} is taken by ")
    assert "Traceback" not in done.stderr


def test_page_is_served_while_training_and_all_ends_on_request() -> None:
    with start("--peers", "1", "--steps", "1000") as demo:
        assert demo.stdout is not None
        address = next(line.split()[-1] for line in demo.stdout if "The run is at" in line)
        site, path = address[: address.index("/runs/")], address[address.index("/runs/") :]
        visitor = Visitor(site)
        wait_until(lambda: visitor.read_json(f"runs/{path.split('/')[2]}")["step"] >= 3, "three steps")
        page = visitor.read(path)
        assert "<svg" in page
        assert "Amina" in page
        family = family_of(demo)
        demo.send_signal(signal.SIGINT)
        assert "MANYHANDS_DATA=" in demo.stdout.read()
        assert demo.wait(LIMIT_S) == 0
        wait_until(lambda: not any(is_alive(process) for process in family), "all children are gone")

"""The time until `manage.py serve` answers and an agent has a gradient, and memory at rest. Described in README.md."""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from demo.processes import bare_environment
from demo.recipes import python_text
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rig.processes import own_mb, rss_mb, running
from tests.end_to_end.rig.swarm import MANYHANDS, Swarm, in_variable

POLL_S = 0.005
QUIET_S, LONGEST_S = 2.0, 20.0  # a process is at rest after this many seconds without growth; longest wait for that
IMPORTS = {
    "python": "",
    "torch_transformers": "import torch, transformers",
    "agent_modules": "import peer_agent.trainer.agent, peer_agent.display.lines",
}
# The agent, which prints when it has its first gradient.
AGENT = """
import sys, time
from peer_agent.trainer.jobs import Accumulation
compute = Accumulation.compute
async def timed(self, *arguments):
    found = await compute(self, *arguments)
    print("gradient at", time.time(), flush=True)
    return found
Accumulation.compute = timed
from peer_agent.cli import main
sys.exit(main())
"""
# What a person would write for the same gradient.
BY_HAND = """
import time, torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=32, n_embd=32, n_layer=1, n_head=2))
tokens = torch.randint(512, (2, 32))
model(tokens, labels=tokens).loss.backward()
print("gradient at", time.time(), flush=True)
"""
GRADIENT = re.compile(r"gradient at ([\d.]+)")


class Stopwatch(Swarm):
    def wait(self, done: Callable[[], object], limit_s: float, what: str) -> None:
        until = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < until, f"not within {limit_s:g} s: {what}"
            time.sleep(POLL_S)

    def time_start(self) -> float:
        began = time.perf_counter()
        self.start_site()
        return time.perf_counter() - began

    def time_stop(self) -> float:
        began = time.perf_counter()
        self.processes["site"].terminate()
        self.processes["site"].wait(20)
        return time.perf_counter() - began

    def relay(self) -> int:
        """Return the process id of the relay that the site starts, or 0 if the relay is not running."""
        for child in psutil.Process(self.processes["site"].pid).children():
            if "relay" in child.cmdline():
                return child.pid
        return 0


def at_rest(pid: int) -> Figures:
    """Wait until a process has stopped growing. Return its total resident memory and the private part of it, in MB."""
    until, best, since = time.monotonic() + LONGEST_S, 0.0, time.monotonic()
    while time.monotonic() < min(until, since + QUIET_S):
        rss = rss_mb(pid)
        if rss > 1.005 * best:
            best, since = rss, time.monotonic()
        time.sleep(0.1)
    return {"rss": rss_mb(pid), "own": own_mb(pid)}


def imports_mb(statement: str) -> float:
    with running("-c", f"{statement}\nprint('ready', flush=True)\ninput()") as child:
        child.hear()
        return rss_mb(child.pid)


def measure(repeats: int) -> Figures:
    """Measure starts in fresh and in existing folders. Measure memory on the last site."""
    empty, existing, stops = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(repeats):
            with Stopwatch(Path(folder, f"site{turn}")) as swarm:
                empty.append(swarm.time_start())
                stops.append(swarm.time_stop())
                existing.append(swarm.time_start())
                say(f"turn {turn + 1} of {repeats}")
                if turn + 1 == repeats:
                    memory, gradient = memory_of(swarm), gradients_of(swarm, repeats)
                stops.append(swarm.time_stop())
    return {
        "repeats": repeats,
        "to_healthz_s": {"empty": median(empty), "existing": median(existing)},
        "every_to_healthz_s": {"empty": empty, "existing": existing},
        "stop_s": median(stops),
        "help_s": median(help_s() for _ in range(repeats)),
        "first_gradient_s": gradient,
        "memory_mb": memory,
    }


def memory_of(swarm: Stopwatch) -> Figures:
    """Return the memory of a site without a run, of an agent waiting for a second agent, and of the libraries they
    import.
    """
    swarm.wait(swarm.relay, 30, "the relay runs")
    figures: Figures = {"relay": at_rest(swarm.relay()), "serve": at_rest(swarm.processes["site"].pid)}
    organizer = swarm.sign_up("organizer")
    swarm.open_run(organizer, python_text()[:150_000], trainers=2, steps=20)
    swarm.start_agent("agent", token=swarm.token_of(organizer))
    swarm.wait(lambda: any(peer["state"] == "ready" for peer in swarm.online("trainer")), 60, "the agent has the model")
    figures["agent"] = at_rest(swarm.processes["agent"].pid)
    figures["serve_with_a_run"] = at_rest(swarm.processes["site"].pid)
    figures["imports_rss"] = {name: imports_mb(statement) for name, statement in IMPORTS.items()}
    rss = figures["agent"]["rss"]
    figures["ratio_to_agent"] = {name: value / rss for name, value in figures["imports_rss"].items()}
    figures["ratio_to_torch_transformers"] = rss / figures["imports_rss"]["torch_transformers"]
    return figures


def help_s() -> float:
    began = time.perf_counter()
    subprocess.run([MANYHANDS, "--help"], check=True, capture_output=True)
    return time.perf_counter() - began


def gradients_of(swarm: Stopwatch, repeats: int) -> Figures:
    """Return the seconds from the start of an agent that is logged in to its first gradient, and those of a script."""
    person = swarm.sign_up("volunteer")
    swarm.open_endless_run(person, python_text()[:150_000])
    command = ["join", f"{swarm.url}/runs/{swarm.slug}/", "--threads", "1", "--attached"]
    home = swarm.folder / "timed"
    home.mkdir()
    ours, by_hand = [], []
    for turn in range(repeats + 1):  # the first logs in
        login = in_variable(swarm.token_of(person)) if not turn else {}
        swarm.processes.pop("timed", None)
        (swarm.folder / "timed.log").unlink(missing_ok=True)
        began = time.time()
        swarm.start("timed", [sys.executable, "-c", AGENT, *command], bare_environment(home) | login, home)
        swarm.wait(lambda: GRADIENT.search(swarm.log("timed")), 60, "the first gradient")
        ours += [_first(swarm.log("timed")) - began] if turn else []
        swarm.end("timed")
        began = time.time()
        told = subprocess.run([sys.executable, "-c", BY_HAND], check=True, capture_output=True, text=True)
        by_hand += [_first(told.stdout) - began] if turn else []
    agent, script = median(ours), median(by_hand)
    return {"agent": agent, "script": script, "ratio": agent / script, "every_agent": ours, "every_script": by_hand}


def _first(log: str) -> float:
    found = GRADIENT.search(log)
    assert found is not None
    return float(found[1])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.start", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    wanted = parser.parse_args(arguments)
    return publish("start", lambda: measure(wanted.repeats))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

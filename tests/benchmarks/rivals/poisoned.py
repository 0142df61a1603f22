"""Average with hivemind among four peers, while one of them sends false values.

Run `python -m tests.benchmarks.rivals.poisoned`. The last line is one JSON object. Described in README.md.
"""

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.benchmarks.rig.figures import Figures, publish, say
from tests.benchmarks.rivals.environment import clean_environment, interpreter
from tests.emulation.network import ROOT, end, hear, tell

PEERS, ELEMENTS = 4, 1_000_000
POISONS = ("none", "nan", "x1000")
MOST_S = 300.0  # for one round, with the start of its processes

Process = subprocess.Popen[str]


def measure() -> Figures:
    python = interpreter()
    figures = {}
    for poison in POISONS:
        with tempfile.TemporaryDirectory() as folder:
            figures[poison] = averaged(python, poison, Path(folder))
        say(f"{poison}: {figures[poison]}")
    return {"peers": PEERS, "elements": ELEMENTS, "averages": figures}


def averaged(python: Path, poison: str, folder: Path) -> Figures:
    """Let the last peer spoil its values, and describe the averages of the first one.

    `finite`: their share that is finite. `times`: their norm by that of the true mean, or None if any is not finite.
    """
    processes: list[Process] = []
    clock = threading.Timer(MOST_S, _kill, [processes])
    clock.daemon = True
    clock.start()
    try:
        processes.append(_start(python, 0, [], folder))
        addresses = json.loads(hear(processes[0]))["addresses"]
        processes += [_start(python, index, addresses, folder) for index in range(1, PEERS)]
        for process in processes[1:]:
            hear(process)
        _ask(processes, "fill 1")
        _ask(processes[-1:], f"spoil {poison}")
        groups = [said.get("group", 0) for said in _ask(processes, "average")]
        (found,) = _ask(processes[:1], "look 1")
        return {"groups": groups, **found}
    finally:
        clock.cancel()
        end(processes)


def _kill(processes: list[Process]) -> None:
    for process in processes:
        process.kill()


def _start(python: Path, index: int, initial: list[str], folder: Path) -> Process:
    asked = {
        "index": index,
        "contributors": PEERS,
        "elements": ELEMENTS,
        "codec": "fp32",
        "group": PEERS,
        "address": "127.0.0.1",
        "role": "node",
        "initial": initial,
        "best": False,
        "bandwidth": 100.0,
    }
    with (folder / f"{index}.log").open("w") as log:
        return subprocess.Popen(
            [str(python), "-m", "tests.benchmarks.rivals.hivemind_peer", json.dumps(asked)],
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def _ask(processes: list[Process], line: str) -> list[dict[str, Any]]:
    for process in processes:
        tell(process, line)
    return [json.loads(hear(process)) for process in processes]


if __name__ == "__main__":
    sys.exit(publish("poisoned", measure))

"""Run a benchmark in its own process, and stop it when its time budget is spent."""

import json
import subprocess
import sys
from collections.abc import Sequence

from tests.benchmarks.suite.sizes import Job
from tests.emulation.network import ROOT

GRACE_S = 30.0  # seconds for a benchmark to remove its namespaces and processes


def lines_of(job: Job, command: Sequence[str] = ()) -> tuple[list[str], bool]:
    """Run a benchmark. Return the JSON lines that it printed, and whether it finished. Progress goes to the
    terminal."""
    command = command or (sys.executable, "-m", f"tests.benchmarks.{job.name}", *job.arguments)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            said, _ = process.communicate(timeout=job.budget_s)
            trouble = f"ended with {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            said = ended(process)
            trouble = f"took longer than its budget of {job.budget_s} s"
        except BaseException:
            ended(process)
            raise
    lines = [line for line in said.splitlines() if is_object(line)]
    if trouble:
        lines.append(json.dumps({"benchmark": job.name, "left_out": trouble}))
    return lines, not trouble


def ended(process: "subprocess.Popen[str]") -> str:
    process.terminate()
    try:
        return process.communicate(timeout=GRACE_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False

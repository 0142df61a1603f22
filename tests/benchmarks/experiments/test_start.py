"""Tests that the experiments run by hand every few months still start."""

import subprocess
import sys
from pathlib import Path

import pytest

from demo.processes import ROOT

EXPERIMENTS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py") if not path.stem.startswith("test_"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_what_it_takes(name: str) -> None:
    command = [sys.executable, "-m", f"tests.benchmarks.experiments.{name}", "--help"]
    bare = {"PATH": "/usr/bin:/bin"}  # an environment without pytest's own settings
    done = subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert f"experiments.{name}" in done.stdout

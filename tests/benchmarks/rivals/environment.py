"""The virtual environment for hivemind, under `var/`. It is created once, and recreated when hivemind's requirements
change.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.emulation.network import ROOT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PATIENCE_S = 900.0
STAMP = "requirements.sha256"
LAST_LINES = 3


class Unavailable(RuntimeError):
    """Raised if a rival cannot run on this machine. The text gives the reason."""


def interpreter(folder: Path = ROOT / "var" / "rivals" / "hivemind", requirements: Path = REQUIREMENTS) -> Path:
    """Return the path of the Python in hivemind's virtual environment. Raise Unavailable if the environment cannot be
    created.
    """
    python, stamp = folder / "bin" / "python", folder / STAMP
    wanted = hashlib.sha256(f"{sys.version}\0{folder}\0{requirements.read_text()}".encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _done([sys.executable, "-m", "venv", str(folder)])
    _done([str(python), "-m", "pip", "install", "--no-input", "--requirement", str(requirements)])
    stamp.write_text(wanted)
    return python


def clean_environment() -> dict[str, str]:
    """Return environment variables for a rival's processes, without our paths and with one thread for arithmetic."""
    ours = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in ours} | {"OMP_NUM_THREADS": "1"}


def _done(command: Sequence[str]) -> None:
    """Run a command. If it fails, raise Unavailable with the last line of its output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env=clean_environment(), check=False
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        raise Unavailable(str(trouble)) from trouble
    if done.returncode:
        raise Unavailable(" ".join((done.stderr or done.stdout).split("\n")[-1 - LAST_LINES :]).strip())

"""This machine's hardware and free resources, and the numbered errors that report a lack of them."""

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import psutil
from msgspec import Struct

from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import in_bytes
from peer_agent.machine.limits import usual_limits
from peer_agent.protocol.credentials import CLOCK_TOLERANCE_S
from peer_agent.protocol.errors import Fault

NEEDED = ("kornia", "peft", "pyarrow", "tokenizers", "torch", "transformers")  # the package's `train` extra
PYTORCH_CPU = "https://download.pytorch.org/whl/cpu"


def of_packages() -> Fault | None:
    """Return E103 if packages needed for training are missing, otherwise None."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return Fault.of("E103", missing=", ".join(missing), line=install_line(*missing)) if missing else None


def install_line(*packages: str, again: bool = False) -> str:
    """Return the command that installs packages into this environment, with the build of torch for this machine.

    `again`: True to replace builds that are already installed.
    """
    names = " ".join(packages)
    if is_bundle():
        return _("see the site's download page")
    if importlib.util.find_spec("pip") is None:  # an environment created by uv
        return f"uv pip install --python {sys.executable} --torch-backend auto {'--reinstall ' * again}{names}"
    is_for_cpu = platform.system() == "Linux" and not gpu_name()
    index = f" --extra-index-url {PYTORCH_CPU}" if is_for_cpu else ""
    return f"{sys.executable} -m pip install {'--force-reinstall ' * again}{names}{index}"


def is_bundle() -> bool:
    """Return True if this agent is a bundle with its own Python, into which pip cannot install packages."""
    return bool(getattr(sys, "frozen", False))


def system_in_words(gpu: str = "") -> str:
    """Return a short description of this computer, for the user who approves it on the site."""
    words = " ".join(part for part in (platform.system(), platform.machine()) if part)
    return ", ".join(part for part in (words, gpu or gpu_name()) if part)[:80]


def gpu_name() -> str:
    """Return the name of the NVIDIA GPU that torch would use, or "". Runs `nvidia-smi` and does not load torch."""
    return _of_gpu("name")


def gpu_memory() -> int | None:
    """Return the free bytes on the GPU that torch would use, or None if `nvidia-smi` does not report them."""
    mebibytes = _of_gpu("memory.free")
    return int(mebibytes) << 20 if mebibytes.isascii() and mebibytes.isdigit() else None


def gpu_watts() -> float | None:
    """Return how many watts the GPU that torch would use draws, or else its power limit.

    Return None if `nvidia-smi` reports neither.
    """
    for fact in ("power.draw", "power.limit"):
        with contextlib.suppress(ValueError):  # “[N/A]”
            return float(_of_gpu(fact))
    return None


def _of_gpu(fact: str) -> str:
    tool, chosen = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES")
    index = "0" if chosen is None else chosen.split(",")[0].strip()
    if tool is None or index in {"", "-1"}:
        return ""
    found = _asked(tool, f"--id={index}", fact)
    if not found and fact == "name" and not index.isdigit():
        return _asked(tool, "--id=0", fact)  # the variable may name part of a GPU; its free memory is unknown
    return found


def _asked(tool: str, which: str, fact: str) -> str:
    command = [tool, which, f"--query-gpu={fact}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return next(iter(done.stdout.splitlines()), "").strip()


class FreeResources(Struct, frozen=True):
    """Free resources in bytes. `gpu` is None if this machine computes on the CPU."""

    memory: int
    disk: int
    gpu: int | None = None


def free_resources(folder: Path, *, is_on_gpu: bool) -> FreeResources:
    memory = int(psutil.virtual_memory().available)
    return FreeResources(memory, shutil.disk_usage(folder).free, gpu_memory() if is_on_gpu else None)


def usable_gpu() -> str:
    """Return the GPU's name if the installed torch can use it, otherwise "". Does not load torch."""
    try:
        is_for_cpu = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return "" if is_for_cpu else gpu_name()


def device_in_words(gpu: str) -> str:
    threads = usual_limits().threads
    cores = os.cpu_count() or threads
    return gpu or _("CPU, {threads} of {cores} threads").format(threads=threads, cores=cores)


LEAST_DISK, GOOD_DISK = 200 * 10**6, 2 * 10**9
LEAST_MEMORY, GOOD_MEMORY = 500 * 10**6, 2 * 10**9
CLOCK_WARN_S = 60


def of_memory(free: int) -> Fault | None:
    """Return E120 if too little memory is free, E137 if memory is low, otherwise None."""
    if free < LEAST_MEMORY:
        return Fault.of("E120", free=in_bytes(free), needed=in_bytes(LEAST_MEMORY))
    return Fault.of("E137", free=in_bytes(free)) if free < GOOD_MEMORY else None


def of_disk(free: int, folder: Path) -> Fault | None:
    """Return E121 if too little space is free on the disk of `folder`, E138 if space is low, otherwise None."""
    if free < LEAST_DISK:
        return Fault.of("E121", free=in_bytes(free), path=folder, needed=in_bytes(LEAST_DISK))
    return Fault.of("E138", free=in_bytes(free), path=folder) if free < GOOD_DISK else None


def of_clock(offset_s: float) -> Fault | None:
    """Return a fault if the clocks of this machine and the site differ by `offset_s` seconds.

    The fault is E204 if that is more than the protocol tolerates, E139 if it is less but over CLOCK_WARN_S.
    """
    apart_s = abs(offset_s)
    if apart_s > CLOCK_TOLERANCE_S:
        return Fault.of("E204", minutes=round(apart_s / 60))
    return Fault.of("E139", seconds=round(apart_s)) if apart_s > CLOCK_WARN_S else None


def of_disk_in_use(free: int, folder: Path) -> Fault | None:
    """Return E121 if the disk is almost full, otherwise None.

    The warning E138 is not repeated while the agent runs.
    """
    return of_disk(free, folder) if free < LEAST_DISK else None


def of_relays(missing: Collection[str], answering: Collection[str]) -> Fault | None:
    """Return E135 if none of a run's relays answer, E136 if only some do, otherwise None.

    Both arguments are the addresses of relays.
    """
    if not missing:
        return None
    return Fault.of("E136" if answering else "E135", relays=", ".join(sorted(missing)))


def not_reached(fault: Fault) -> Fault:
    """Return E134, the error that the site cannot be reached, with the cause from `fault`."""
    return Fault.of("E134", reason=fault.cause.rstrip("."))

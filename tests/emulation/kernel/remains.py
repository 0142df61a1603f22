"""Find and remove the namespaces of existing emulations and the processes in them."""

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.emulation.kernel.commands import run

HELD = Path("/run/netns")
NAME = re.compile(r"mh(\d+)-\d+-.+")
PATIENCE_S = 5.0


def prefix(serial: int) -> str:
    return f"mh{os.getpid()}-{serial}-"


def named(beginning: str) -> list[str]:
    return sorted(path.name for path in HELD.glob(f"{beginning}*")) if HELD.is_dir() else []


def of_ended_processes() -> list[str]:
    owners = {name: found.group(1) for name in named("mh") if (found := NAME.fullmatch(name))}
    return [name for name, owner in owners.items() if not Path("/proc", owner).exists()]


def remove(namespaces: list[str]) -> None:
    end_inside(namespaces)
    for name in namespaces:
        run(["ip", "netns", "delete", name])


def end_inside(namespaces: Iterable[str]) -> None:
    identities = {identity for name in namespaces if (identity := identity_of(HELD / name))}
    deadline = time.monotonic() + PATIENCE_S
    while found := list(inside(identities)):
        for pid in found:
            kill(pid)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {found} in namespaces of an emulation do not end")


def inside(identities: set[tuple[int, int]]) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        if identity_of(path / "ns" / "net") in identities:
            yield int(path.name)


def identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

"""Peers that can be reached and started, in namespaces of their own or on loopback."""

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.emulation.setups import Setup

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 5.0


@dataclass(frozen=True)
class Node:
    """A peer's place: its addresses among peers and toward the coordinator, and its processes."""

    name: str
    address: str
    control_address: str
    namespace: str  # empty: that of this process
    started: list["subprocess.Popen[Any]"] = field(default_factory=list, repr=False)

    @property
    def inside(self) -> list[str]:
        """The prefix that runs a command in this place; the process keeps its id."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []

    def start(self, *command: str, **settings: Any) -> "subprocess.Popen[Any]":
        """Start a command there, as `subprocess.Popen` would; it ends with the network."""
        process = subprocess.Popen([*self.inside, *command], **settings)
        self.started.append(process)
        return process

    def python(self, *arguments: str, **settings: Any) -> "subprocess.Popen[Any]":
        """Start this Python there, in the root of the checkout."""
        return self.start(sys.executable, *arguments, cwd=ROOT, **settings)

    def converse(self, module: str, *arguments: str) -> "subprocess.Popen[str]":
        """Start one of our modules there and wait until it says "ready"; lines go in and come out.

        Installed packages are disabled: with many processes, finding them would be most of the work.
        """
        pipe = subprocess.PIPE
        process = self.python("-S", "-m", module, *arguments, stdin=pipe, stdout=pipe, text=True)
        if (line := hear(process)) != "ready":
            raise RuntimeError(f"{module}: {line}")
        return process


@dataclass(frozen=True)
class Network:
    """A running set-up. The coordinator listens on `host_address`, in the namespace of this process."""

    setup: Setup
    nodes: dict[str, Node]
    host_address: str
    internet: Node | None = None  # where the links of all peers end; None: all is on loopback
    delay: "subprocess.Popen[str] | None" = None  # the program that holds packets back

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]


def hear(process: "subprocess.Popen[str]") -> str:
    """Return the next line that it prints. Raise RuntimeError if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
    return line.strip()


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def end(processes: Iterable["subprocess.Popen[Any]"]) -> None:
    """Terminate processes by their ids, then kill those that stay. Close their pipes."""
    asked = list(processes)
    for process in asked:
        process.terminate()
    deadline = time.monotonic() + PATIENCE_S
    for process in asked:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

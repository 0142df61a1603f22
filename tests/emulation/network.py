"""Peers that can be started and dialled, each in its own namespace or all on loopback."""

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
    """A peer's place in the network: its addresses for other peers and for the coordinator, and its processes."""

    name: str
    address: str
    control_address: str
    namespace: str  # empty: the namespace of this process
    started: list["subprocess.Popen[Any]"] = field(default_factory=list, repr=False)

    @property
    def inside(self) -> list[str]:
        """The command prefix that runs a command in this node's namespace without changing its process id."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []

    def start(self, *command: str, **settings: Any) -> "subprocess.Popen[Any]":
        """Start a command in this node's namespace, as `subprocess.Popen` would. It is stopped along with the
        network."""
        process = subprocess.Popen([*self.inside, *command], **settings)
        self.started.append(process)
        return process

    def python(self, *arguments: str, **settings: Any) -> "subprocess.Popen[Any]":
        """Start this Python in the node's namespace, with the checkout's root as its working directory."""
        return self.start(sys.executable, *arguments, cwd=ROOT, **settings)

    def converse(self, module: str, *arguments: str) -> "subprocess.Popen[str]":
        """Start one of our modules in the node's namespace and wait until it prints "ready". Its input and output are
        pipes.

        Installed packages are disabled, because with many processes, finding them would take most of the time.
        """
        pipe = subprocess.PIPE
        process = self.python("-S", "-m", module, *arguments, stdin=pipe, stdout=pipe, text=True)
        if (line := hear(process)) != "ready":
            raise RuntimeError(f"{module}: {line}")
        return process


@dataclass(frozen=True)
class Network:
    """A running set-up. The coordinator listens on `host_address`, in this process's namespace."""

    setup: Setup
    nodes: dict[str, Node]
    host_address: str
    internet: Node | None = None  # the node with the bridges; None on loopback
    delay: "subprocess.Popen[str] | None" = None  # the program that delays packets

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]


def hear(process: "subprocess.Popen[str]") -> str:
    """Return the next line that the process prints. Raise RuntimeError if the process has ended."""
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

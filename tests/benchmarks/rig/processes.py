"""Child processes that this process starts, measures, and ends by their ids. Each child ends with its parent, however
the parent ends."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[3]
MB = 1e6
PATIENCE_S = 5.0


class Child:
    """A child process `python ARGUMENTS`, started in the root of the checkout. Parent and child exchange lines."""

    def __init__(self, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Return the next line that the child prints. Raise RuntimeError if the child has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return line.strip()

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def running(*arguments: str) -> Iterator[Child]:
    child = Child(list(arguments))
    try:
        yield child
    finally:
        child.end()


def leave_with_parent() -> None:
    """End this child process when its standard input closes. Use this only in programs that read nothing from it."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process in user and kernel mode, to 0.01 s."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def rss_mb(pid: int) -> float:
    """Return the current resident memory of a process, including shared libraries."""
    return psutil.Process(pid).memory_info().rss / MB


def own_mb(pid: int) -> float:
    """Return the memory that would be freed if the process ended."""
    return psutil.Process(pid).memory_full_info().uss / MB


def peak_mb(pid: int) -> float:
    """Return the peak resident memory of a process. Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("VmHWM"))

"""Processes of our own: started, looked at, and ended by their ids. Each leaves with us, however we end."""

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
    """`python ARGUMENTS` from the root of the checkout; it reads lines of ours, and we read its own."""

    def __init__(self, arguments: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Write a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Its next line. Raises RuntimeError where it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return line.strip()

    def end(self) -> None:
        """Terminate it, and wait until it is gone."""
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
    """A child for as long as the block lasts."""
    child = Child(list(arguments))
    try:
        yield child
    finally:
        child.end()


def leave_with_parent() -> None:
    """In a child: end when standard input does. For programs that read nothing from it."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used, in user mode and for it in the kernel; to 0.01 s."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def rss_mb(pid: int) -> float:
    """Memory that a process has in RAM now, shared libraries too."""
    return psutil.Process(pid).memory_info().rss / MB


def own_mb(pid: int) -> float:
    """The part of it that would come free with the process."""
    return psutil.Process(pid).memory_full_info().uss / MB


def peak_mb(pid: int) -> float:
    """The most that it ever had in RAM. Linux alone tells."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MB for line in lines if line.startswith("VmHWM"))

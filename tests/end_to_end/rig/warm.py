"""Agents that start at once: a process that has loaded torch forks for each.

Loading torch and transformers takes most of a small journey. `Warm.start` gives what `subprocess.Popen` would: a real
process with its own environment, folder, pipe and log, which can be killed by its id. The agent's own modules are
loaded after the fork, since some read the environment. Journeys about installing or starting use the real program.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NoReturn

ORDER = 1 << 16  # bytes, at most


class Forked:
    """A process that the warm one has forked; the part of `subprocess.Popen` that journeys use."""

    def __init__(self, pid: int, stdin: IO[bytes], ending: Path) -> None:
        self.pid, self.stdin, self._ending = pid, stdin, ending

    def poll(self) -> int | None:
        """Return how it ended: its status, or minus the signal; None while it runs."""
        with contextlib.suppress(FileNotFoundError):
            if text := self._ending.read_text():
                return int(text)
        return None

    @property
    def returncode(self) -> int | None:
        """The same as `poll`."""
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (ended := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("agent", timeout or 0.0)
            time.sleep(0.005)
        return ended

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Warm:
    """The process that forks. It ends with the process that holds this, or by `end`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="warm"))
        self._orders, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            command = [sys.executable, "-m", "tests.end_to_end.rig.warm", str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=environment)
        self._made = 0

    def start(self, argv: list[str], environment: dict[str, str], folder: Path, log: IO[bytes]) -> Forked:
        """Fork an agent that runs `manyhands` with these arguments."""
        self._made += 1
        ending = self._folder / str(self._made)
        reads, writes = os.pipe()
        order = {"argv": argv, "environment": environment, "folder": str(folder), "ending": str(ending)}
        try:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [reads, log.fileno()])
        finally:
            os.close(reads)
        return Forked(int(self._orders.recv(64)), os.fdopen(writes, "wb"), ending)

    def end(self) -> None:
        """Close the line to it, on which it ends."""
        self._orders.close()
        self.process.wait(30)
        shutil.rmtree(self._folder)


def serve(orders: socket.socket) -> None:
    """Load what every agent loads, then fork for each order until nobody holds the other end."""
    import peft  # noqa: F401 - loaded here once
    import torch  # noqa: F401
    from transformers import AlbertForMaskedLM, GPT2LMHeadModel  # noqa: F401

    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, ORDER, 2)
        if not message:
            return
        told, tells = os.pipe()
        if os.fork() == 0:
            watch(json.loads(message), descriptors, orders, tells)
        for descriptor in (*descriptors, tells):
            os.close(descriptor)
        pid = os.read(told, 64)
        os.close(told)
        orders.send(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # watchers that have ended
                pass


def watch(order: dict[str, Any], descriptors: list[int], orders: socket.socket, tells: int) -> NoReturn:
    """Fork the agent, tell its id, wait for it, and write down how it ended."""
    orders.close()
    pid = os.fork()
    if pid == 0:
        os.close(tells)
        become(order, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    os.write(tells, str(pid).encode())
    os.close(tells)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ending = Path(order["ending"])
    ending.with_suffix(".new").write_text(str(ended))
    ending.with_suffix(".new").rename(ending)
    os._exit(0)


def become(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run the agent here, as its program does."""
    stdin, log = descriptors
    for source, target in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = ["manyhands", *order["argv"]]
    try:
        from peer_agent.cli import main

        main()  # ends the process with its status
    except BaseException:  # noqa: BLE001 - told in the log, as Python would
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        serve(orders)

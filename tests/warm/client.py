"""The client of the forking process: `Warm.start` for tests, `python -c` with `BOOTSTRAP` for the site's own code."""

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
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]


class Forked:
    """A forked process, with the parts of `subprocess.Popen` that tests use."""

    def __init__(self, connection: socket.socket, stdin: IO[bytes]) -> None:
        self.stdin, self._connection, self._lines = stdin, connection, b""
        self._status: int | None = None
        while b"\n" not in self._lines:
            self._lines += connection.recv(64)
        self.pid = int(self._lines.split(b"\n")[0])
        connection.setblocking(False)

    def poll(self) -> int | None:
        """Return the exit status, or the negated signal that ended the process, or None while it is running."""
        if self._status is None:
            with contextlib.suppress(BlockingIOError):
                self._lines += self._connection.recv(64)
            if status := self._lines.split(b"\n")[1]:
                self._status = int(status)
                self._connection.close()
        return self._status

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end and return its exit status. Raise subprocess.TimeoutExpired on a timeout."""
        until = None if timeout is None else time.monotonic() + timeout
        while (ended := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("forked", timeout or 0.0)
            time.sleep(0.005)
        return ended

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The forking process, which ends when `end` is called or when the process holding this object ends."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="warm"))
        self.socket = self._folder / "orders"
        single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **single, "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
        command = [sys.executable, "-m", "tests.warm.server", str(self.socket)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        while not self.socket.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the process that forks ended with {self._process.returncode}")
            time.sleep(0.01)

    def start(
        self, module: str, arguments: list[str], environment: dict[str, str], folder: Path, log: IO[bytes]
    ) -> Forked:
        """Fork a process that runs a module with these arguments. All its output goes to the log."""
        reads, writes = os.pipe()
        order = {"module": module, "arguments": arguments, "environment": environment, "folder": str(folder)}
        try:
            connection = asked(self.socket, [reads, log.fileno(), log.fileno()], **order, attached=False)
        finally:
            os.close(reads)
        return Forked(connection, os.fdopen(writes, "wb"))

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        shutil.rmtree(self._folder)


def asked(path: Path, descriptors: list[int], **order: Any) -> socket.socket:
    """Send an order to the forking process. Return the connection on which the answers arrive."""
    connection = socket.socket(socket.AF_UNIX)
    while connection.connect_ex(str(path)):  # the socket exists, and is about to listen
        time.sleep(0.01)
    socket.send_fds(connection, [json.dumps(order).encode()], descriptors)
    return connection


def bootstrap(path: Path | str) -> str:
    """Return code for `python -c` that replaces `runs.processes.BOOTSTRAP`: the same child process, but forked."""
    own = "from runs.parent import leave_with_parent; leave_with_parent(); from tests.warm.client import relay; "
    return own + f"relay({str(path)!r}, 'peer_agent.site_work')"


def relay(path: str, module: str) -> None:
    """Stand in for a process that is forked elsewhere: pass on arguments, environment and descriptors, and exit as it
    does.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    order = {"module": module, "arguments": sys.argv[1:], "environment": environment, "folder": str(Path.cwd())}
    connection = asked(Path(path), [0, 1, 2], **order, attached=True)
    for descriptor in (0, 1, 2):
        os.close(descriptor)  # otherwise the readers of these descriptors would wait for this process
    said = b""
    while more := connection.recv(64):
        said += more
    status = int(said.split(b"\n")[1])
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)

"""The demo's child processes. Each exits when its standard input closes, so killing the demo ends them too."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 4.0


class Children:
    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def start(self, name: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
        file = (self.logs / f"{name}.log").open("wb")
        self._files.append(file)
        self.running[name] = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT
        )

    def gone(self) -> list[str]:
        return [name for name, child in self.running.items() if child.poll() is not None]

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            if (stdin := self.running.pop(name).stdin) is not None:
                stdin.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.running.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.running.values():
            try:
                child.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdin is not None:
                child.stdin.close()
        for file in self._files:
            file.close()


def serve_command(port: int) -> list[str]:
    return [sys.executable, str(ROOT / "manage.py"), "serve", "--port", str(port), "--attached"]


def agent_command(run_url: str) -> list[str]:
    agent = str(Path(sys.executable).with_name("manyhands"))
    return [agent, "join", run_url, "--threads", "1", "--attached"]


def bare_environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "MANYHANDS_HOME": str(home / "manyhands")}

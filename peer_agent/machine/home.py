"""The agent's folder: the machine's key, the sites that have approved the machine, and cached files."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from filelock import lock_descriptor
from msgspec import Meta, Struct

from peer_agent.protocol.errors import Problem, disk_errors, disk_fault
from peer_agent.protocol.identifiers import PeerId, RunId


def try_lock(file: IO[str]) -> bool:
    """Lock a file, opened in mode `a+`, until it is closed. Return False if another process holds the lock.

    Raises OSError if the disk cannot lock files.
    """
    return lock_descriptor(file.fileno(), blocking=False)


def sign_lock(file: IO[str]) -> None:
    file.truncate(0)
    # The id follows a blank first byte: `filelock` locks that byte, and Windows lets no other process read a locked
    # byte.
    file.write(f" \n{os.getpid()}")
    file.flush()


def read_holder(file: IO[str]) -> int:
    """Return the id of the process that holds the lock, or held it last. 0 means unknown."""
    file.seek(1)
    _, _, said = file.read().partition("\n")
    return int(said) if said.isascii() and said.isdigit() else 0


LOCK_S = 0.3
CREDITED, MOST_CREDITED = "credited.json", 1000  # the latest runs in which this machine has credit


class KnownSite(Struct, frozen=True):
    """A site that has approved this machine. The first login pins its `site_key`, in hexadecimal."""

    url: str
    machine: PeerId
    person: str
    site_key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Home:
    """The agent's folder. Only one agent at a time may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with disk_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def cache(self) -> Path:
        """The folder for cached shards and snapshots. Its files may be deleted at any time."""
        return self.folder / "cache"

    def key(self) -> Ed25519PrivateKey:
        """Return this machine's private key, creating it on the first call. Only the owner of the file can read it.

        Raises Problem E113 if the file is damaged or cannot be read.
        """
        path = self.folder / "machine.key"
        if not path.exists():
            self._write_privately(path, Ed25519PrivateKey.generate().private_bytes_raw().hex().encode())
        try:
            return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip()))
        except (ValueError, OSError) as error:
            raise Problem.of("E113", where=path, reason=error) from error

    def sites(self) -> dict[str, KnownSite]:
        path = self.folder / "sites.json"
        if not path.exists():
            return {}
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, KnownSite])
        except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
            raise Problem.of("E113", where=path, reason=error) from error

    def known(self, url: str) -> KnownSite:
        """Return a site that has approved this machine. Raises Problem E118 if there is no such site."""
        site = self.sites().get(url)
        if site is None:
            raise Problem.of("E118", site=url)
        return site

    def forget(self, url: str) -> None:
        """Remove a site. If it was the last one, also remove the machine's key."""
        left = {address: site for address, site in self.sites().items() if address != url}
        self._write_privately(self.folder / "sites.json", msgspec.json.format(msgspec.json.encode(left), indent=2))
        if not left:
            (self.folder / "machine.key").unlink(missing_ok=True)

    def remember(self, site: KnownSite) -> None:
        content = msgspec.json.format(msgspec.json.encode(self.sites() | {site.url: site}), indent=2)
        self._write_privately(self.folder / "sites.json", content)

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically. Only its owner can read it. Raises Problem E106 if the disk fails."""
        self._write_privately(self.folder / name, content)

    def _write_privately(self, path: Path, content: bytes) -> None:
        draft = path.with_suffix(".new")
        with disk_errors(path):
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            draft.replace(path)

    def is_first_credit(self, run: RunId) -> bool:
        """Return True the first time that this machine is credited in a run, and remember the run."""
        known: list[str] = []
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            known = msgspec.json.decode((self.folder / CREDITED).read_bytes(), type=list[str])
        if run in known:
            return False
        with contextlib.suppress(Problem):  # other parts of the agent report a full disk
            self.write(CREDITED, msgspec.json.encode([*known, run][-MOST_CREDITED:]))
        return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this home against other agents until the block or the process ends.

        Raises Problem E102 if another agent is using this home.
        """
        with self._lock_file() as file:
            if not self._lock_patiently(file):
                raise Problem.of("E102", pid=read_holder(file) or "unknown", home=self.folder)
            sign_lock(file)
            yield

    def holder(self) -> int | None:
        """Return the id of the process using this home, 0 if its id is unknown, or None if the home is free."""
        with self._lock_file() as file:
            return None if self._try_lock(file) else read_holder(file)

    def _lock_file(self) -> IO[str]:
        path = self.folder / "agent.lock"
        with disk_errors(path):
            return path.open("a+")

    def _lock_patiently(self, file: IO[str]) -> bool:
        """Lock the home. Retry briefly, because `holder` in another process locks it for a moment.

        Return False if another agent keeps it locked.
        """
        until = time.monotonic() + LOCK_S
        while not self._try_lock(file):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _try_lock(self, file: IO[str]) -> bool:
        with disk_errors(self.folder):
            return try_lock(file)


def home_folder(environment: dict[str, str]) -> Path:
    """Return MANYHANDS_HOME, or this platform's default folder."""
    if chosen := environment.get("MANYHANDS_HOME"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(environment.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "Manyhands"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Manyhands"
    return Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "manyhands"


CACHED = ("cache",)  # files from all sites, named by their digest; the agent downloads them again when needed
LISTENING = ("log", "listener.pem")  # files of a relay or auxiliary
OWN = ("status.json", CREDITED, "leave", "agent.log", "agent.log.1", *LISTENING)


def forget_site(home: Home, url: str) -> int:
    """Remove a site's identity and the cache. If it was the last site, remove all files. Return how many bytes were
    freed. Raises Problem E118 if the site is unknown, E106 if the disk fails.
    """
    home.known(url)
    before = _size(home.folder)
    try:
        home.forget(url)
        for name in CACHED if home.sites() else (*CACHED, *OWN):
            _remove(home.folder / name)
    except OSError as error:
        raise Problem(disk_fault(error.filename or home.folder, error)) from error
    return max(before - _size(home.folder), 0)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

"""Removes what a machine keeps for a site."""

import shutil
from pathlib import Path

from peer_agent.machine.home import Home
from peer_agent.protocol.errors import Problem, disk_fault

CACHED = ("cache",)  # files of all sites lie together by digest, and are fetched again where they are wanted
LISTENING = ("log", "listener.pem")  # of a relay or an auxiliary
OWN = ("status.json", "leave", "agent.log", "agent.log.1", *LISTENING)


def forget_site(home: Home, url: str) -> int:
    """Forget a site that is known: its identity, cached files, and with the last site everything else. Bytes freed.

    Raises Problem E118 where it is not known, E106.
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

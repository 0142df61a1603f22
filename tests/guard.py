"""Run a command until the process that started this program ends, then delete the command's folder.

Usage: `python guard.py FOLDER USER COMMAND...`, with a pipe as standard input. On every system, the pipe closes when
the process at its other end dies, even from SIGKILL. A parent-death signal would work only on Linux.
"""

import pwd
import shutil
import signal
import subprocess
import sys
import threading
from typing import Any

GRACE_S = 10


def as_user(name: str) -> dict[str, Any]:
    """Return `subprocess` arguments for switching from root to a user. Return none if the name is empty."""
    if not name:
        return {}
    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}


def stop_when_input_ends(server: "subprocess.Popen[bytes]") -> None:
    sys.stdin.buffer.read()
    # PostgreSQL shuts down fast on SIGINT; on SIGTERM it would wait for its clients. Redis also obeys SIGINT.
    server.send_signal(signal.SIGINT)
    try:
        server.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()


def main(folder: str, user: str, *command: str) -> None:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=folder, **as_user(user))
    threading.Thread(target=stop_when_input_ends, args=(server,), daemon=True).start()
    server.wait()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

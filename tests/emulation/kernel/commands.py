"""Run `ip` and `tc` on many lines at a time, and find out whether this machine permits this."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable

PATIENCE_S = 30.0
PROBE = "mh{pid}-0-probe"
# Every kernel feature that a set-up needs, tried in a temporary namespace.
PROBE_LINKS = ("link add bridge type bridge", "link add one type veth peer name two")
PROBE_QUEUES = (
    "qdisc add dev lo root handle 1: htb default 1",
    "class add dev lo parent 1: classid 1:1 htb rate 1mbit quantum 1514",
    "qdisc add dev lo parent 1:1 bfifo limit 10000",
    "filter add dev lo parent 1: protocol ip u32 match ip dst 198.18.0.1/32 flowid 1:1",
)


class Unavailable(RuntimeError):
    """Raised if this machine cannot emulate a network. The text gives the reason and a remedy."""


def batch(program: str, lines: Iterable[str], namespace: str = "") -> None:
    """Run `ip` or `tc` on some lines in a namespace. Raise RuntimeError with the program's error message."""
    where = ["-n", namespace] if namespace else []
    run([program, *where, "-batch", "-"], "\n".join(lines) + "\n")


def run(command: list[str], words: str = "") -> str:
    """Return a command's output. Raise RuntimeError with its error output.

    The command runs in its own session, so that Ctrl-C does not interrupt it."""
    done = subprocess.run(
        command, input=words, capture_output=True, text=True, timeout=PATIENCE_S, start_new_session=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def absent(platform: str, user: int, find: Callable[[str], str | None] = shutil.which) -> str:
    """Return what this machine lacks and how to install it, or an empty string."""
    if platform != "linux":
        return "Network namespaces are of Linux alone: use a Linux machine or a virtual one."
    if missing := [program for program in ("ip", "tc") if find(program) is None]:
        return f"There is no {' and no '.join(missing)} here: install iproute2 (sudo apt-get install -y iproute2)."
    if user:
        return "Only root makes network namespaces: use sudo with the same command."
    return ""


def require() -> None:
    if reason := reason_against():
        raise Unavailable(reason)


@functools.cache
def reason_against() -> str:
    """Return why this machine cannot emulate a network, or an empty string. The result is cached."""
    return absent(sys.platform, os.geteuid()) or refused_by_kernel()


def refused_by_kernel() -> str:
    """Return why the kernel refuses a namespace, or an empty string. Containers often run as root but may not create
    one.
    """
    probe = PROBE.format(pid=os.getpid())
    try:
        run(["ip", "netns", "add", probe])
        try:
            batch("ip", PROBE_LINKS, probe)
            batch("tc", PROBE_QUEUES, probe)
        finally:
            run(["ip", "netns", "delete", probe])
    except RuntimeError as trouble:
        return f"No network namespaces, links and queues here ({trouble}): start the container with --privileged."
    return ""

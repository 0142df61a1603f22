"""CPU seconds per GB that a relay forwards, and its peak memory, compared with HAProxy in TCP mode. See README.md."""

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from peer_agent.network.certificate import new_pem
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rig.processes import cpu_s, peak_mb, running

ENDS, LISTENER = "tests.benchmarks.rig.forward_ends", "tests.benchmarks.rig.link_ends"
HOST = "127.0.0.1"
SIZE = 32 * 1024 + 4  # bytes: a chunk of 64 KiB in half precision
GB = 1e9
PATIENCE_S = 10.0
HOW_TO = "haproxy is not installed: apt-get install haproxy"
CONFIG = """
global
  maxconn 64
  nbthread 1
defaults
  mode tcp
  timeout connect 5s
  timeout client 600s
  timeout server 600s
listen forward
  bind {host}:{port} {tls}
  server listener {host}:{to}
"""


class Kind(Struct, frozen=True):
    """A forwarder and the way to dial it. `tls`: the forwarder terminates an outer TLS connection around the link's
    own.
    """

    name: str
    way: str
    tls: bool
    is_ours: bool


KINDS = (
    Kind("ours", "forward", tls=False, is_ours=True),
    Kind("ours_tls", "forward-tls", tls=True, is_ours=True),
    Kind("haproxy", "tcp", tls=False, is_ours=False),
    Kind("haproxy_tls", "tcp-tls", tls=True, is_ours=False),
)


@contextmanager
def forwarder(kind: Kind, port: str, fingerprint: str) -> Iterator[tuple[int, str, str]]:
    """Run a forwarder to the listener at `port`. Yield its process id, its port, and its certificate's fingerprint."""
    if kind.is_ours:
        with running("-m", ENDS, "forward", port, fingerprint, "tls" if kind.tls else "plain") as child:
            own_port, own = child.hear().split()
            yield child.pid, own_port, own
        return
    with tempfile.TemporaryDirectory() as folder:
        own_port = str(_free_port())
        process = _haproxy(Path(folder), own_port, port, tls=kind.tls)
        try:
            _wait_until_open(int(own_port))
            yield process.pid, own_port, "-"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _haproxy(folder: Path, port: str, to: str, *, tls: bool) -> "subprocess.Popen[bytes]":
    """Start HAProxy in the foreground, as one process with one thread."""
    (folder / "own.pem").write_bytes(new_pem())
    config = folder / "haproxy.cfg"
    config.write_text(CONFIG.format(host=HOST, port=port, to=to, tls=f"ssl crt {folder}/own.pem" if tls else ""))
    return subprocess.Popen(["haproxy", "-db", "-q", "-f", str(config)])


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as taken:
        return int(taken.getsockname()[1])


def _wait_until_open(port: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((HOST, port), 1.0).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def turn(kind: Kind, chunks: int) -> dict[str, Any]:
    """Fill one link in both directions. Return the resources that the forwarder's process used."""
    with running("-m", LISTENER, HOST, str(chunks), str(SIZE)) as listener:
        port, fingerprint = listener.hear().split()
        with forwarder(kind, port, fingerprint) as (pid, own_port, own):
            before = cpu_s(pid)
            places = (f"{own_port},{port}", f"{own},{fingerprint}", str(chunks), str(SIZE))
            with running("-m", ENDS, "dial", kind.way, *places) as dialler:
                seconds = float(json.loads(dialler.hear())["seconds"])
                listener.hear()  # the listener has received the last byte
            used = {"cpu_s": cpu_s(pid) - before, "peak_mb": peak_mb(pid), "seconds": seconds}
    return used


def figures_of(turns: Sequence[dict[str, Any]], chunks: int) -> Figures:
    """Return the figures. A GB is 10^9 bytes forwarded on the link, in either direction."""
    through = 2 * chunks * SIZE / GB
    return {
        "cpu_s_per_gb": median(each["cpu_s"] for each in turns) / through,
        "peak_mb": max(each["peak_mb"] for each in turns),
        "mb_per_s": median(through * 1000 / each["seconds"] for each in turns),
    }


def measure(megabytes: float, repeats: int) -> Figures:
    chunks = max(1, int(megabytes * 1e6 / SIZE))
    has_haproxy = shutil.which("haproxy") is not None
    kinds = [kind for kind in KINDS if kind.is_ours or has_haproxy]
    turns: dict[str, list[dict[str, Any]]] = {kind.name: [] for kind in kinds}
    for _ in range(repeats):
        for kind in kinds:
            turns[kind.name].append(turn(kind, chunks))
    found: Figures = {name: figures_of(of_kind, chunks) for name, of_kind in turns.items()}
    for name, figures in found.items():
        say(f"{name}: {figures['cpu_s_per_gb']:.2f} s/GB, {figures['peak_mb']:.0f} MB")
    about: Figures = {"chunk_bytes": SIZE, "megabytes_each_way": megabytes, "forwarders": found}
    if not has_haproxy:
        return about | {"left_out": {"haproxy": HOW_TO}}
    return about | {"ratio_to_haproxy": found["ours"]["cpu_s_per_gb"] / found["haproxy"]["cpu_s_per_gb"]}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sockets.forwarding", description=__doc__)
    parser.add_argument("--megabytes", type=float, default=100, help="each way")
    parser.add_argument("--repeats", type=int, default=3)
    wanted = parser.parse_args(arguments)
    return publish("forwarding", lambda: measure(wanted.megabytes, wanted.repeats))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

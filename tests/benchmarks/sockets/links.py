"""CPU seconds per GB on a data link over TLS, in both directions at once, compared with plain sockets. See
README.md."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.emulation.kernel.commands import reason_against
from tests.emulation.namespaces import emulated, on_loopback
from tests.emulation.network import Network, Node, hear
from tests.emulation.setups import Peer, Setup

PROGRAM = "tests.benchmarks.rig.link_ends"
SIZE = 32 * 1024 + 4  # bytes: a chunk of 64 KiB in half precision
UNLIMITED = 0.0  # Mb/s; stands for loopback
GB = 1e9


def ends_of(mbit: float) -> Setup:
    rate = mbit or 1000.0
    peers = (Peer("listener", "relay", 10 * rate, 10 * rate), Peer("dialler", "trainer", rate, rate, reachable=False))
    return Setup("links", peers, elements=1, keeper="listener", default_scale=1.0)


@contextmanager
def linked(mbit: float) -> Iterator[Network]:
    """Yield a network of namespaces if the rate is limited, otherwise loopback."""
    with on_loopback(ends_of(mbit)) if mbit == UNLIMITED else emulated(ends_of(mbit)) as network:
        yield network


def transfer(network: Network, kind: str, chunks: int) -> dict[str, Any]:
    """Run both ends once. `kind` is "" for the shipped code and "plain-" for plain sockets."""
    listener, dialler = network["listener"], network["dialler"]
    serving = _program(listener, f"{kind}listen", listener.address, str(chunks), str(SIZE))
    port, fingerprint = hear(serving).split()
    sending = _program(dialler, f"{kind}dial", listener.address, str(chunks), str(SIZE), port, fingerprint)
    sent, received = json.loads(hear(sending)), json.loads(hear(serving))
    for process in (sending, serving):
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
    return {"dialler": sent, "listener": received}


def _program(node: Node, *arguments: str) -> "subprocess.Popen[str]":
    return node.python("-m", PROGRAM, *arguments, stdout=subprocess.PIPE, text=True)


def figures_of(turns: list[dict[str, Any]]) -> Figures:
    """Return the figures. A GB is 10^9 bytes that one end sent and the other end received."""
    sent = turns[0]["dialler"]["moved"] / GB
    per_gb = {end: median(turn[end]["cpu_s"] for turn in turns) / sent for end in ("dialler", "listener")}
    waits = {f"{end}_waits_per_mb": median(turn[end]["waits"] for turn in turns) / (sent * 1000) for end in per_gb}
    both = median(turn["dialler"]["cpu_s"] + turn["listener"]["cpu_s"] for turn in turns) / sent
    seconds = median(turn["dialler"]["seconds"] for turn in turns)
    return (
        {f"{end}_cpu_s_per_gb": used for end, used in per_gb.items()}
        | {"cpu_s_per_gb": both}
        | waits
        | {"seconds": seconds}
    )


def measure(rates: Sequence[float], megabytes: float, repeats: int) -> Figures:
    found: Figures = {}
    for mbit in rates:
        if mbit and (reason := reason_against()):
            found[f"{mbit:g}"] = {"left_out": reason}
            continue
        chunks = max(1, int(megabytes * 1e6 / SIZE))
        with linked(mbit) as network:
            turns = [(transfer(network, "", chunks), transfer(network, "plain-", chunks)) for _ in range(repeats)]
        ours, plain = (figures_of([turn[which] for turn in turns]) for which in (0, 1))
        found[f"{mbit:g}"] = {"ours": ours, "plain": plain, "ratio": ours["cpu_s_per_gb"] / plain["cpu_s_per_gb"]}
        say(f"{mbit:g} Mb/s: {ours['cpu_s_per_gb']:.1f} s/GB, plain {plain['cpu_s_per_gb']:.1f}")
    return {"chunk_bytes": SIZE, "megabytes_each_way": megabytes, "mbit": found}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sockets.links", description=__doc__)
    parser.add_argument("--mbit", type=float, nargs="+", default=[20, 100, 300, UNLIMITED], help="0: loopback")
    parser.add_argument("--megabytes", type=float, default=30, help="each way")
    parser.add_argument("--repeats", type=int, default=3)
    wanted = parser.parse_args(arguments)
    return publish("links", lambda: measure(wanted.mbit, wanted.megabytes, wanted.repeats))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

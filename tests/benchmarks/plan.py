"""CPU time to compute a plan by each method, for anything from a few peers to a thousand. Described in README.md."""

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import NO_LIMITS, Candidate, Limits, Party, choose, solve
from tests.benchmarks.measures.published import published_bound
from tests.benchmarks.rig.figures import Figures, median, publish, say

RELAYS = 4
VECTOR = 4e8  # bytes of a vector
CODECS = (1.0, 0.5, 0.25)


def swarm(count: int, seed: int) -> list[Party]:
    """Return four relays, and trainers with links of various speeds. About four in five trainers may reduce."""
    chance = random.Random(seed)
    return [_party(chance, number, is_relay=number < RELAYS) for number in range(count)]


def _party(chance: random.Random, number: int, *, is_relay: bool) -> Party:
    upload = 10 ** (chance.uniform(7, 8) if is_relay else chance.uniform(5.5, 7.5))
    return Party(
        peer=PeerId(f"{number:032x}"),
        up_bytes=0.0 if is_relay else VECTOR,
        receives=not is_relay,
        may_reduce=is_relay or chance.random() < 0.8,
        is_volunteer=not is_relay,
        upload_bps=upload,
        download_bps=upload if is_relay else upload * chance.uniform(1, 10),
    )


def all_pairs(parties: Sequence[Party], seed: int) -> Limits:
    """Return a rate limit for every pair of peers. Some limits are far below the rates of both peers."""
    chance = random.Random(seed)
    pairs = [(a, b) for a in parties for b in parties if a is not b]
    return Limits(
        pairs={(a.peer, b.peer): min(a.upload_bps, b.download_bps) * 10 ** chance.uniform(-2, 0) for a, b in pairs}
    )


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(1 + repeats):
        began = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - began))
    return median(times[1:])


def measure(own: Sequence[int], coupled: Sequence[int], chosen: Sequence[int], repeats: int) -> Figures:
    """Measure each method at each number of peers. The HiGHS solver is loaded first, since a process loads it only
    once.
    """
    began = time.process_time()
    for part in ("sparse", "optimize"):
        import_module(f"scipy.{part}")
    figures: Figures = {"repeats": repeats, "load_highs_ms": 1e3 * (time.process_time() - began)}
    ways: dict[str, tuple[Sequence[int], Callable[[Sequence[Party]], Callable[[], object]]]] = {
        "closed_form_ms": (own, _solving),
        "all_pairs_ms": (coupled, lambda parties: _solving(parties, all_pairs(parties, 1))),
        "published_ms": (coupled[:1], _bounding),
        "choose_ms": (chosen, _choosing),
    }
    for name, (sizes, way) in ways.items():
        figures[name] = {str(count): milliseconds(way(swarm(count, 1)), repeats) for count in sizes}
        say(f"{name}: {figures[name]}")
    return figures


def _solving(parties: Sequence[Party], limits: Limits = NO_LIMITS) -> Callable[[], object]:
    return lambda: solve(parties, VECTOR, limits)


def _bounding(parties: Sequence[Party]) -> Callable[[], object]:
    return lambda: published_bound(parties, VECTOR, all_pairs(parties, 1))


def _choosing(parties: Sequence[Party]) -> Callable[[], object]:
    chance = random.Random(1)
    candidates = [
        Candidate(party, 10 ** chance.uniform(0, 2), tuple(VECTOR * part for part in CODECS))
        for party in parties
        if party.is_volunteer
    ]
    relays = [party for party in parties if not party.is_volunteer]
    return lambda: choose(candidates, relays, VECTOR, batch=100 * len(parties), staleness=0)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.plan", description=__doc__)
    parser.add_argument("--own", type=int, nargs="+", default=[16, 64, 256, 1000])
    parser.add_argument("--coupled", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--chosen", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--repeats", type=int, default=9)
    wanted = parser.parse_args(arguments)
    return publish("plan", lambda: measure(wanted.own, wanted.coupled, wanted.chosen, wanted.repeats))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

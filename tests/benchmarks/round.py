"""A round that averages a vector through real relay processes, compared with the same bytes over plain TCP. Described
in README.md.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import get_args

from msgspec import Struct

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.recipe import Codec
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rig.processes import MB, Child, cpu_s, peak_mb, rss_mb, running
from tests.benchmarks.rig.site import PATIENCE_S, Site, Times
from tests.protocol.identities import RUN

CODECS: tuple[Codec, ...] = get_args(Codec)
RIG = "tests.benchmarks.rig"
EXCHANGES = 5  # exchanges over plain TCP in each turn


class Sample(Struct, frozen=True):
    """One exchange: its seconds, and the CPU seconds of the relays (or the sink) and of the senders."""

    seconds: float
    middle_cpu_s: float
    ends_cpu_s: float
    times: Times | None = None


class Measured:
    """The processes of one exchange method, and the CPU time and memory that they have used."""

    def __init__(self, middle: Sequence[Child], ends: Sequence[Child]) -> None:
        self.middle, self.ends = middle, ends
        self.samples: dict[Codec, list[Sample]] = {codec: [] for codec in CODECS}
        self.rest_mb = self._memory(rss_mb)

    def used(self) -> tuple[float, float]:
        return sum(cpu_s(child.pid) for child in self.middle), sum(cpu_s(child.pid) for child in self.ends)

    def _memory(self, measure: Callable[[int], float]) -> tuple[float, float]:
        return max(measure(child.pid) for child in self.middle), max(measure(child.pid) for child in self.ends)

    def memory(self) -> Figures:
        """Return the memory in MB of the largest process of each kind: before the first round, and at its peak."""
        peaks = self._memory(peak_mb)
        return {
            "relay": {"rest": self.rest_mb[0], "peak": peaks[0]},
            "contributor": {"rest": self.rest_mb[1], "peak": peaks[1]},
        }


class Swarm(Measured):
    def __init__(self, site: Site, relays: Sequence[Child], contributors: Sequence[Child], folders: Sequence[Path]):
        super().__init__(relays, contributors)
        self.site, self._folders = site, folders
        self.copy_s: list[float] = []

    async def round(self, codec: Codec) -> None:
        """Run one round, then wait until every relay has stored every span, so that nothing disturbs the next round."""
        before = self.used()
        times = await self.site.round(codec)
        after = self.used()
        self.samples[codec].append(Sample(times.held_s, after[0] - before[0], after[1] - before[1], times))
        began = time.perf_counter()
        async with asyncio.timeout(PATIENCE_S):
            while not self._is_copied():  # noqa: ASYNC110 (a folder cannot be awaited)
                await asyncio.sleep(0.02)
        self.copy_s.append(time.perf_counter() - began)

    def _is_copied(self) -> bool:
        pattern = f"{self.site.index:08d}-*.span"
        return all(len(list(folder.glob(pattern))) == self.site.spans for folder in self._folders)


class Plain(Measured):
    def exchange(self, codec: Codec, size: int) -> None:
        """Exchange `size` bytes up and down with all senders at once. Each exchange is short, so record the median of
        several.
        """
        before = self.used()
        seconds = median(self._once(f"{size} {size}") for _ in range(EXCHANGES))
        after = self.used()
        middle_cpu_s, ends_cpu_s = ((b - a) / EXCHANGES for a, b in zip(before, after, strict=True))
        self.samples[codec].append(Sample(seconds, middle_cpu_s, ends_cpu_s))

    def _once(self, sizes: str) -> float:
        began = time.perf_counter()
        for sender in self.ends:
            sender.tell(sizes)
        for sender in self.ends:
            sender.hear()
        return time.perf_counter() - began


@asynccontextmanager
async def swarm(
    folder: Path, grid: Grid, relays: int, contributors: int, *, one_port: bool = False
) -> AsyncIterator[Swarm]:
    """Yield a swarm. `one_port`: the relay gets its connections from a site's HTTP server, whose port it shares."""
    site = Site(grid)
    control = await site.listen()
    with contextlib.ExitStack() as stack:

        def start(role: str, number: int, *more: str) -> Child:
            home = str(folder / f"{role}{number}")
            peer = f"{number + (1 << 64 if role == 'relay' else 1):032x}"
            return stack.enter_context(running("-m", f"{RIG}.{role}", home, peer, control, *more))

        middle = []
        if one_port:
            (folder / "relay0").mkdir(parents=True)
            middle.append(stack.enter_context(running("-m", f"{RIG}.front", str(folder / "relay0"))))
        shared = ("127.0.0.1", "relay", middle[0].hear()) if one_port else ()
        middle += [start("relay", number, *shared) for number in range(relays)]
        addresses = await site.relay_addresses(relays)
        ends = [start("contributor", number, str(grid.elements)) for number in range(contributors)]
        await site.bring_together(addresses, contributors)
        folders = [folder / f"relay{number}" / "log" / RUN / "spans" for number in range(relays)]
        yield Swarm(site, middle, ends, folders)
    await site.close()


@contextmanager
def plain(most: int, senders: int) -> Iterator[Plain]:
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(running("-m", f"{RIG}.plain_tcp", "sink", "0", str(most)))
        port = sink.hear()
        ends = [stack.enter_context(running("-m", f"{RIG}.plain_tcp", "send", port, str(most))) for _ in range(senders)]
        for sender in ends:
            sender.hear()
        yield Plain([sink], ends)


async def measure(elements: int, contributors: int, repeats: int) -> Figures:
    """Measure all codecs over one relay, two relays, one on the site's port, and plain TCP in turn.

    The first turn is not counted.
    """
    grid = grid_of(elements)
    sizes = {codec: sum(encoded_size(codec, grid.length(chunk)) for chunk in grid) for codec in CODECS}
    with tempfile.TemporaryDirectory() as folder, plain(4 * elements, contributors) as tcp:
        async with (
            swarm(Path(folder, "one"), grid, 1, contributors) as one,
            swarm(Path(folder, "two"), grid, 2, contributors) as two,
            swarm(Path(folder, "one-port"), grid, 1, contributors, one_port=True) as one_port,
        ):
            for turn in range(1 + repeats):
                for codec in CODECS:
                    tcp.exchange(codec, sizes[codec])
                    await one.round(codec)
                    await two.round(codec)
                    await one_port.round(codec)
                say(f"turn {turn} of {repeats}")
            moved = {codec: 2 * contributors * size / MB for codec, size in sizes.items()}
            return {
                "elements": elements,
                "chunks": grid.chunks,
                "contributors": contributors,
                "repeats": repeats,
                "codecs": {
                    codec: _compared(codec, moved[codec], tcp, {"1": one, "2": two, "1_one_port": one_port})
                    for codec in CODECS
                },
                "memory_mb": {"1": one.memory(), "2": two.memory()},
                "copy_to_other_relay_s": median(two.copy_s[len(CODECS) :]),
            }


def _compared(codec: Codec, moved_mb: float, tcp: Plain, swarms: dict[str, Swarm]) -> Figures:
    """Return one codec's medians. Each ratio compares a round with the plain exchange measured next to it."""
    plain_s = [sample.seconds for sample in tcp.samples[codec][1:]]
    figures: Figures = {"moved_mb": moved_mb, "tcp": _speeds(tcp.samples[codec][1:], moved_mb)}
    for relays, swarm_ in swarms.items():
        samples = swarm_.samples[codec][1:]
        ratios = [sample.seconds / seconds for sample, seconds in zip(samples, plain_s, strict=True)]
        times = [sample.times for sample in samples if sample.times is not None]
        figures[f"relays_{relays}"] = _speeds(samples, moved_mb) | {
            "ratio_to_tcp": median(ratios),
            "cpu_ratio_to_tcp": _cpu_s(samples) / _cpu_s(tcp.samples[codec][1:]),
            "cut_to_offers_s": median(part.offered_s for part in times),
            "plan_to_spans_s": median(part.reduced_s - part.offered_s for part in times),
            "commit_to_held_s": median(part.held_s - part.reduced_s for part in times),
            "transfer_ratio_to_tcp": median(
                (part.held_s - part.offered_s) / seconds for part, seconds in zip(times, plain_s, strict=True)
            ),
        }
    return figures


def _cpu_s(samples: Sequence[Sample]) -> float:
    return sum(sample.middle_cpu_s + sample.ends_cpu_s for sample in samples)


def _speeds(samples: Sequence[Sample], moved_mb: float) -> Figures:
    seconds = [sample.seconds for sample in samples]
    total_gb = len(samples) * moved_mb / 1000
    return {
        "seconds": median(seconds),
        "fastest_s": min(seconds),
        "mb_per_s": moved_mb / median(seconds),
        "middle_cpu_s_per_gb": sum(sample.middle_cpu_s for sample in samples) / total_gb,
        "ends_cpu_s_per_gb": sum(sample.ends_cpu_s for sample in samples) / total_gb,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.round", description=__doc__)
    parser.add_argument("--elements", type=int, default=2_500_000, help="float32 values in the vector")
    parser.add_argument("--contributors", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=7)
    wanted = parser.parse_args(arguments)
    return publish("round", lambda: asyncio.run(measure(wanted.elements, wanted.contributors, wanted.repeats)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

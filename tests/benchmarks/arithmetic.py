"""CPU seconds per GB of encoded values, step by step, with and without torch. Described in README.md."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.contributor import Accumulator, Sending
from peer_agent.averaging.reducer import ClosedSpan, Reduction
from peer_agent.averaging.update_log import UpdateLog
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.messages import Plan, Weight
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.relay.opened import OpenPlan
from peer_agent.protocol.wire import Frame, Kind
from tests.averaging.rounds import RELAY, RUN, gradient, plan_of, record_of
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rig.processes import ROOT, peak_mb
from tests.protocol.identities import SITE_PUBLIC

CODECS: tuple[Codec, ...] = get_args(Codec)
TOKENS = 1000
BYTES_PER_GB = 1e9
OPEN = 8  # chunks that a reducer has open at a time, because contributors are not in step
Work = Callable[[], object]


class Meter:
    """The CPU seconds that each step takes, or the peak memory that Python and numpy request during it."""

    def __init__(self) -> None:
        self.turns: list[defaultdict[str, float]] = []
        self.peaks: defaultdict[str, float] = defaultdict(float)

    def did(self, step: str, work: Work) -> None:
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            work()
            self.peaks[step] = max(self.peaks[step], tracemalloc.get_traced_memory()[1] - before)
        else:
            began = time.process_time()
            work()
            self.turns[-1][step] += time.process_time() - began

    def medians(self) -> dict[str, float]:
        """Return the median seconds of each step, leaving out the first turn, which is a warm-up."""
        return {step: median(turn[step] for turn in self.turns[1:]) for step in self.turns[0]}


class Turn:
    """The arithmetic of a one-vector round for a contributor, a reducer with a log, and a receiver, without links."""

    def __init__(self, meter: Meter, grid: Grid, codec: Codec, log: UpdateLog) -> None:
        self.meter, self.grid, self.codec, self.log = meter, grid, codec, log
        self.accumulator = Accumulator(grid)
        for seed in (1, 2):
            self.accumulator.add(gradient(seed, grid, scale=TOKENS))

    def run(self) -> int:
        weights = [Weight(0, self.grid.chunks, TOKENS)]
        self.meter.did("offer", lambda: self.accumulator.offer(self.codec, weights))
        sending = self.accumulator.sending
        assert sending is not None
        plan = plan_of(
            [sending, sending], grid=self.grid, codec_down=self.codec, cuts=(0, self.grid.chunks), reducers=(RELAY,)
        )
        payloads = self._reduce(plan, sending)
        self._floor(sending)
        self._receive(plan, payloads)
        return sum(len(payload) for payload in sending.payloads)

    def _reduce(self, plan: Plan, sending: Sending) -> Sequence[memoryview]:
        reduction = Reduction(OpenPlan(plan, plan.slots))
        for slot in (0, 1):
            assert reduction.leaves(slot, pack_leaves(sending.leaves)) is None
        for first in range(0, self.grid.chunks, OPEN):
            chunks = range(first, min(first + OPEN, self.grid.chunks))
            for slot, step in ((0, "add_first"), (1, "add")):
                self.meter.did(step, partial(self._add, reduction, slot, sending, chunks))
            self.meter.did("close", lambda: [reduction.close(chunk, 2 * TOKENS) for chunk in chunks])  # noqa: B023
        self.closed = reduction.take_span(plan.spans[0], ())
        self.meter.did("hold", partial(self._hold, plan, self.closed))
        return self.closed.payloads

    def _add(self, reduction: Reduction, slot: int, sending: Sending, chunks: Sequence[int]) -> None:
        for chunk in chunks:
            assert reduction.add(slot, chunk, memoryview(sending.payloads[chunk])) is None

    def _hold(self, plan: Plan, closed: ClosedSpan) -> None:
        self.log.hold(RUN, plan.step, plan.fence, plan.attempt, closed)

    def _receive(self, plan: Plan, payloads: Sequence[memoryview]) -> None:
        assembly = Assembly(self.grid, self.codec)
        assembly.follow(plan)
        place = (plan.run, plan.step, plan.fence, plan.attempt, 0)
        frames = [Frame(Kind.AVERAGE, *place, chunk, 0, memoryview(data)) for chunk, data in enumerate(payloads)]
        record = record_of(plan, [self.closed])
        self.meter.did("keep", lambda: [assembly.keep_chunk(frame) for frame in frames])
        self.meter.did("check", lambda: assembly.gradient(record))
        assert isinstance(assembly.gradient(record), np.ndarray)
        self.meter.did("subtract", lambda: self.accumulator.remove_averaged([(0, self.grid.chunks)]))

    def _floor(self, sending: Sending) -> None:
        """Measure the least possible work: hashing and copying the encoded bytes."""
        room = bytearray(len(sending.payloads[0]))
        self.meter.did("sha256", lambda: [hashlib.sha256(payload).digest() for payload in sending.payloads])
        self.meter.did("memcpy", lambda: _copy_all(room, sending.payloads))


def _copy_all(room: bytearray, payloads: Sequence[bytes | memoryview]) -> None:
    with memoryview(room) as view:
        for payload in payloads:
            view[: len(payload)] = payload


def inside(elements: int, repeats: int) -> Figures:
    """Measure in this process. Each codec's last turn measures memory."""
    grid, figures = grid_of(elements), {}
    with tempfile.TemporaryDirectory() as folder:
        log = UpdateLog(Path(folder), SITE_PUBLIC)
        for codec in CODECS:
            meter = Meter()
            for _ in range(1 + repeats):
                meter.turns.append(defaultdict(float))
                size = Turn(meter, grid, codec, log).run()
            figures[codec] = {"s_per_gb": {k: v * BYTES_PER_GB / size for k, v in meter.medians().items()}}
            tracemalloc.start()
            Turn(meter, grid, codec, log).run()
            tracemalloc.stop()
            figures[codec]["peak_vectors"] = {k: v / (4 * elements) for k, v in meter.peaks.items()}
            say(f"{codec} is done")
    return {"codecs": figures, "peak_mb": peak_mb(os.getpid())}


def measure(elements: int, repeats: int) -> Figures:
    """Measure in two fresh processes with one thread each: one without torch, one with it."""
    figures: Figures = {"elements": elements, "chunk_elements": grid_of(elements).chunk_elements, "repeats": repeats}
    for mode in ("plain", "torch"):
        arguments = [sys.executable, "-m", "tests.benchmarks.arithmetic", "--inside", mode]
        sizes = ["--elements", str(elements), "--repeats", str(repeats)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(arguments + sizes, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
        figures[mode] = json.loads(done.stdout)
    return figures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.arithmetic", description=__doc__)
    parser.add_argument("--elements", type=int, default=5_000_000, help="float32 values in the vector")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inside", choices=("plain", "torch"), help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.inside is None:
        return publish("arithmetic", lambda: measure(wanted.elements, wanted.repeats))
    if wanted.inside == "torch":
        import torch

        torch.set_num_threads(1)
    print(json.dumps(inside(wanted.elements, wanted.repeats)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

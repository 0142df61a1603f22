"""Audits between honest machines of different kinds: none may be judged false. Other gradients may not pass.

Each kind of machine computes the same contributions in a process of its own: instruction sets, numbers of threads, and
bf16. Every kind then audits every other, as the agent and the coordinator do. Run
`python -m tests.benchmarks.training.verdicts [--quick]`. The last line is one JSON object.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from peer_agent.averaging.contributor import Accumulator
from peer_agent.averaging.sketches import sketch_again, sketch_of
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Verdict
from peer_agent.protocol.coordinator.round.audits import verdict_of
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.log.records import ChunkRange, Unit
from peer_agent.protocol.recipe import Codec, Optimizer
from peer_agent.protocol.schedule import scalars_of
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.training.loop import Trainer
from peer_agent.training.optimizers import Moving, update
from peer_agent.training.precision import widen_attention
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed, Taken
from tests.averaging.rounds import RUN
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.protocol.coordinator.stage import audit_of
from tests.publishing.texts import docstrings

CODECS: tuple[Codec, ...] = ("fp32", "fp16", "int8", "int4")
STEPS = (0, 20, 100)  # whose parameters are used
UNITS = (1, 2, 5)  # units of a contribution
MICRO_BATCH = 4
SEED = 77  # of the sketches


class Kind(NamedTuple):
    """A kind of machine. `isa`: the instruction set that torch may use."""

    isa: str
    threads: int
    half: bool = False

    def __str__(self) -> str:
        return f"{self.isa}, {self.threads} threads{', bf16' if self.half else ''}"


def kinds() -> list[Kind]:
    """Return the kinds that this processor can play."""
    found = [Kind("default", 1), Kind("default", 2), Kind("avx2", 1), Kind("avx2", 2)]
    found += [Kind("avx512", 1), Kind("avx512", 2)] if torch.cpu._is_avx512_supported() else []
    return [*found, Kind("avx2", 2, half=True)]


def learner(kind: Kind) -> tuple[Trainer, CausalLM]:
    recipe = CausalLM(
        model=Model(layers=2, width=64, heads=4, context=64),
        optimizer=Optimizer(learning_rate=0.01, warmup_steps=10),
        vocab=257,
        micro_batch=MICRO_BATCH,
        target_steps=200,
    )
    tokens = np.frombuffer(docstrings().encode(), np.uint8).astype(np.uint16)
    trainer = Trainer(Replica(recipe), RUN, [tokens], threads=kind.threads)
    if kind.half:
        trainer.half = torch.bfloat16
        widen_attention(trainer.replica.model)
    return trainer, recipe


def computed(trainer: Trainer, units: Sequence[Unit]) -> Taken:
    for unit in units:
        done = trainer.compute(unit)
        assert isinstance(done, Computed)
        trainer.keep(done)
    return trainer.take_sum()


def units_of(step: int, number: int) -> list[Unit]:
    first = 500 * STEPS.index(step) + 7 * number
    return [Unit(0, 0, MICRO_BATCH * n, MICRO_BATCH * (n + 1)) for n in range(first, first + UNITS[number % 3])]


# --- a machine of one kind, in a process of its own


def be(kind: Kind, folder: Path, contributions: int) -> None:
    """Compute all contributions with the stored parameters, and store their gradients and losses."""
    trainer, _ = learner(kind)
    gradients, facts = [], []
    for step, number in product(STEPS, range(contributions)):
        trainer.replica.parameters.copy_(torch.from_numpy(np.load(folder / f"{step}.npy")))
        taken = computed(trainer, units_of(step, number))
        gradients.append(taken.gradient_sum)
        facts.append((taken.loss_sum, taken.loss_tokens))
    np.savez(folder / f"{kind}.npz", gradients=gradients, facts=facts)


def make_parameters(folder: Path) -> None:
    """Train one machine, and store its parameters at each of `STEPS`."""
    trainer, recipe = learner(Kind("default", 1))
    replica = trainer.replica
    state = Moving(replica.parameters, replica.moment1, replica.moment2)
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            np.save(folder / f"{step}.npy", replica.parameters.numpy())
        taken = computed(trainer, [Unit(0, 0, 16 * step + MICRO_BATCH * n, 16 * step + 4 * (n + 1)) for n in range(4)])
        mean = taken.gradient_sum / np.float32(taken.loss_tokens)
        scalars = scalars_of(recipe, step=step + 1, sum_squares=float(np.square(mean).sum()), tokens=1)
        update(recipe.optimizer, scalars, replica.layout, state, torch.from_numpy(mean))


# --- verdicts


def measure(contributions: int) -> Figures:
    with tempfile.TemporaryDirectory() as name:
        folder, all_kinds = Path(name), kinds()
        make_parameters(folder)
        for kind in all_kinds:
            command = [
                sys.executable,
                "-m",
                "tests.benchmarks.training.verdicts",
                "--contributions",
                str(contributions),
            ]
            be_one = [*command, "--be", kind.isa, str(kind.threads), str(int(kind.half)), str(folder)]
            subprocess.run(be_one, check=True, env={**os.environ, "ATEN_CPU_CAPABILITY": kind.isa})
        found = {kind: list(_takens(folder / f"{kind}.npz")) for kind in all_kinds}
    grid = grid_of(found[all_kinds[0]][0].gradient_sum.size)
    return {
        "kinds": [str(kind) for kind in all_kinds],
        "honest": {codec: _honest(found, grid, codec) for codec in CODECS},
        "other_units": _other_units(found[all_kinds[0]], grid),
        "flipped_bits": _flipped_bits(found[all_kinds[0]], grid),
    }


def _takens(path: Path) -> Iterator[Taken]:
    with np.load(path) as stored:
        for gradient, (loss_sum, tokens) in zip(stored["gradients"], stored["facts"], strict=True):
            yield Taken(gradient, int(tokens), float(loss_sum), ())


def _honest(found: dict[Kind, list[Taken]], grid: Grid, codec: Codec) -> Figures:
    verdicts, cosines = Counter[str](), list[float]()
    sent = {kind: _sent(takens, grid, codec) for kind, takens in found.items()}
    again = {kind: [_sketch(taken, grid, codec) for taken in takens] for kind, takens in found.items()}
    for one, other in permutations(found, 2):
        for number, (theirs, ours) in enumerate(zip(found[one], found[other], strict=True)):
            pair = sent[one][number], again[other][number]
            verdicts[_verdict(theirs, ours, *pair, codec)] += 1
            cosines.append(_cosine(*pair))
    say(f"{codec}: {dict(verdicts)}, least cosine {min(cosines):.5f}")
    return {"audits": verdicts.total(), **verdicts, "least_cosine": min(cosines)}


def _other_units(takens: Sequence[Taken], grid: Grid) -> Figures:
    """Judge contributions that consist of other samples of the same step."""
    each = len(takens) // len(STEPS)
    sketches = [_sketch(taken, grid, "fp16") for taken in takens]
    verdicts = Counter[str]()
    for start in range(0, len(takens), each):
        for one, other in permutations(range(start, start + each), 2):
            verdicts[_verdict(takens[one], takens[other], sketches[one], sketches[other])] += 1
    return {"audits": verdicts.total(), **verdicts}


def _flipped_bits(takens: Sequence[Taken], grid: Grid) -> Figures:
    """Judge contributions in whose gradient one random bit was flipped, by how far that moved the gradient."""
    random, verdicts = np.random.default_rng(1), Counter[str]()
    for taken in takens:
        for _ in range(10):
            gradient = taken.gradient_sum.copy()
            bits = gradient.view(np.uint32)
            bits[random.integers(bits.size)] ^= np.uint32(1) << np.uint32(random.integers(32))
            if not np.isfinite(gradient).all() or np.abs(gradient).max() > np.finfo(np.float16).max:
                verdicts["not sent"] += 1  # the agent notices by itself
                continue
            broken = Taken(gradient, taken.loss_tokens, taken.loss_sum, ())
            verdict = _verdict(broken, taken, _sketch(broken, grid, "fp32"), _sketch(taken, grid, "fp32"))
            moved = float(np.linalg.norm(gradient - taken.gradient_sum) / np.linalg.norm(taken.gradient_sum))
            verdicts[f"{verdict}, moved by {'under' if moved < 0.3 else 'over'} 30%"] += 1
    return dict(verdicts)


def _sketch(taken: Taken, grid: Grid, codec: Codec) -> bytes:
    parts = (ChunkRange(0, grid.chunks),)
    return sketch_again(taken.gradient_sum, taken.loss_tokens, codec=codec, grid=grid, parts=parts, seed=SEED)


def _sent(takens: Sequence[Taken], grid: Grid, codec: Codec) -> list[bytes]:
    """Return the sketches that reducers make. Each gradient contains the encoding errors of the one before (rule 9)."""
    sketches, each = list[bytes](), len(takens) // len(STEPS)
    for number, taken in enumerate(takens):
        if number % each == 0:
            accumulator = Accumulator(grid)
        accumulator.add(taken.gradient_sum)
        sending = accumulator.offer(codec, [m.Weight(0, grid.chunks, taken.loss_tokens)])
        sketches.append(sketch_of(sending, grid, (ChunkRange(0, grid.chunks),), SEED))
        accumulator.remove_averaged([(0, grid.chunks)])
    return sketches


def _verdict(theirs: Taken, ours: Taken, sketch: bytes, answer: bytes, codec: Codec = "fp16") -> Verdict:
    said = m.Audited(run=RUN, number=1, sketch=answer, loss_sum=ours.loss_sum, loss_tokens=ours.loss_tokens)
    return verdict_of(audit_of(sketch, said, loss_sum=theirs.loss_sum, loss_tokens=theirs.loss_tokens, codec=codec))


def _cosine(one: bytes, other: bytes) -> float:
    first, second = (np.frombuffer(each, "<f4").astype(np.float64) for each in (one, other))
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.training.verdicts", description=__doc__)
    parser.add_argument("--contributions", type=int, default=30, help="for each of three steps' parameters")
    parser.add_argument("--quick", action="store_true", help="three contributions")
    parser.add_argument("--be", nargs=4, help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.be:
        isa, threads, half, folder = wanted.be
        be(Kind(isa, int(threads), half=half == "1"), Path(folder), wanted.contributions)
        return 0
    return publish("verdicts", lambda: measure(3 if wanted.quick else wanted.contributions))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

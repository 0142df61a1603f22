"""The resources that presets state, compared with what they really use. Described in README.md.

Each preset runs in its own process. The process holds a replica, its trainer, a unit, an offer, a copy of the state as
made for an upload, and an update. There are no links, because the estimate covers them in its fixed part.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from peer_agent.averaging.contributor import Accumulator
from peer_agent.machine.preflight import needs_of
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.log.records import Unit, digest_of, seal
from peer_agent.protocol.messages import Weight
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes import KINDS
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.images.pixels import Images
from peer_agent.recipes.text.tokens import Sentences
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.training.commits import RUN, SITE_KEY, record_after

GPT2_SMALL = CausalLM(model=Model(layers=12, width=768, heads=12, context=512), vocab=32_000, micro_batch=4)
PATIENCE_S = 600


def presets() -> dict[str, Recipe]:
    named = {name: recipe for kind in KINDS.values() for name, recipe in kind.presets.items()}
    return {**named, "GPT-2, small": GPT2_SMALL}


def shard_of(recipe: Recipe) -> Any:
    chance, units = np.random.default_rng(1), recipe.micro_batch
    if recipe.material.unit == "images":
        side = recipe.side  # type: ignore[attr-defined]
        return Images(
            chance.integers(0, 255, (units, side, side, 3), dtype=np.uint8), (np.arange(units) % 2).astype(np.uint16)
        )
    tokens = chance.integers(5, recipe.vocab, (units + 1) * recipe.least_size()).astype(np.uint16)  # type: ignore[attr-defined]
    if recipe.objective == "masked_lm":
        return Sentences(tokens, np.arange(0, len(tokens), 20, dtype=np.uint32))
    return tokens


def peak_of(recipe: Recipe) -> tuple[int, int]:
    """Run one step in this process. Return the parameter count and the peak resident memory in bytes."""
    torch.set_num_threads(1)
    if recipe.objective == "image_classification":
        recipe = replace(recipe, classes=("a", "b"))
    replica = Replica(recipe)
    trainer = Trainer(replica, RUN, [shard_of(recipe)])
    unit = Unit(0, 0, 0, recipe.micro_batch)
    done = trainer.compute(unit)
    assert isinstance(done, Computed)
    trainer.keep(done)
    taken = trainer.take_sum()
    grid = grid_of(replica.layout.elements)
    accumulator = Accumulator(grid)
    accumulator.add(taken.gradient_sum)
    state = replica.copy_state()
    sending = accumulator.offer(recipe.codec_up, (Weight(0, grid.chunks, taken.loss_tokens),))
    average = taken.gradient_sum / np.float32(taken.loss_tokens)
    record = record_after(replica, average, [taken])
    replica.apply(record, digest_of(seal(SITE_KEY, record)), average)
    assert isinstance(trainer.compute(unit), Computed)  # compute the next unit while all of the above is still held
    assert state.step < replica.step
    assert sending.payloads
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return replica.layout.elements, 1024 * int(found[1])


def measured(name: str) -> Figures:
    say(name)
    command = [sys.executable, "-m", "tests.benchmarks.experiments.presets", "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    parameters, peak = json.loads(done.stdout.splitlines()[-1])
    recipe = presets()[name]
    told = needs_of(recipe, recipe.parameters(), at_once=recipe.micro_batch, on_gpu=False).memory
    return {
        "preset": name,
        "parameters": parameters,
        "parameters_told_ratio": recipe.parameters() / parameters,
        "memory_mb": peak / 1e6,
        "memory_told_mb": told / 1e6,
        "memory_told_ratio": told / peak,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experiments.presets", description=__doc__)
    parser.add_argument("--only", default="", help="one preset, in this process: its parameters and its peak")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(peak_of(presets()[given.only])))
        return 0
    return publish("presets", lambda: [measured(name) for name in presets()])


if __name__ == "__main__":
    sys.exit(main())

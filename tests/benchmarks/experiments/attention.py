"""Samples per second of masked models in mixed precision, for each precision of attention. Described in README.md."""

import argparse
import sys

import numpy as np
import torch
from msgspec.structs import replace

from peer_agent.protocol.log.records import Unit
from peer_agent.recipes.masked_lm import SMALL, MaskedLM, Model
from peer_agent.recipes.text.tokens import Sentences
from peer_agent.training import precision
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.training.inner_loop import seconds_of
from tests.training.commits import RUN

CPU = torch.device("cpu")
TOKENS = 2048  # tokens in a unit
SHAPES = {
    "two layers of width 128, 64 tokens": Model(layers=2, width=128, heads=4, context=64, embedding=128),
    "sahajBERT, small, 128 tokens": SMALL.model,
    "BERT of width 512, 128 tokens": Model(family="bert", layers=6, width=512, heads=8, context=128, embedding=512),
    "sahajBERT, small, 256 tokens": replace(SMALL.model, context=256),
}
NEVER, ALWAYS = 0, 1 << 20  # values of `precision.LONG`: attention in float32 never, and always


def trainer_of(recipe: MaskedLM) -> Trainer:
    words = np.random.default_rng(0).integers(5, recipe.vocab, 200_000).astype(np.uint16)
    return Trainer(Replica(recipe), RUN, [Sentences(words, np.arange(0, len(words), 12, dtype=np.uint32))])


def measure(name: str, model: Model, repeats: int) -> Figures:
    recipe = replace(SMALL, model=model, micro_batch=TOKENS // model.context)
    mixed, whole = trainer_of(replace(recipe, precision="mixed")), trainer_of(recipe)
    ways = {"fp32": (whole, NEVER), "bf16": (mixed, NEVER), "wide": (mixed, ALWAYS)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    usual = precision.LONG
    for turn in range(repeats + 1):
        for way, (trainer, longest) in ways.items():
            precision.LONG = longest

            def work(number: int, trainer: Trainer = trainer) -> None:
                first = number * recipe.micro_batch
                assert isinstance(trainer.compute(Unit(0, 0, first, first + recipe.micro_batch)), Computed)

            spent = seconds_of(work, [turn], CPU)
            seconds[way] += [spent] if turn else []  # the first turn only warms up
    precision.LONG = usual
    say(name)
    pairs = zip(*seconds.values(), strict=True)
    ratios = [(fp32 / wide, bf16 / wide) for fp32, bf16, wide in pairs]
    return {
        "model": name,
        "threads": torch.get_num_threads(),
        "computes_in": str(ways["bf16"][0].half),
        **{f"{way}_samples_per_s": recipe.micro_batch / median(spent) for way, spent in seconds.items()},
        "beside_fp32": median(of_fp32 for of_fp32, _ in ratios),
        "beside_bf16": median(of_bf16 for _, of_bf16 in ratios),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experiments.attention", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(1)
    return publish("attention", lambda: [measure(name, model, given.repeats) for name, model in SHAPES.items()])


if __name__ == "__main__":
    sys.exit(main())

"""Samples per second of a trainer's inner loop, compared with the same loop in plain PyTorch. Described in
README.md."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from msgspec.structs import replace
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from peer_agent.protocol.log.records import Unit
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.text.tokens import Tokens
from peer_agent.training.loop import Trainer, pick_device
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.training.commits import RUN, some_shards

# 20.7 million parameters
RECIPE = CausalLM(model=Model(layers=7, width=448, heads=7, context=256), vocab=8192, micro_batch=8)
UNITS = 2048  # samples in a shard
Work = Callable[[int], object]


def seconds_of(work: Work, numbers: Sequence[int], device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    for number in numbers:
        work(number)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def ours(recipe: CausalLM, device: torch.device, tokens: Tokens, *, compiles: bool = False) -> Work:
    trainer = Trainer(Replica(recipe, device), RUN, [tokens], compiles=compiles)

    def work(number: int) -> None:
        done = trainer.compute(Unit(0, 0, number * recipe.micro_batch, (number + 1) * recipe.micro_batch))
        assert isinstance(done, Computed)
        trainer.keep(done)

    return work


def plain(recipe: CausalLM, device: torch.device, tokens: Tokens) -> Work:
    """Return a tutorial's training loop: rows of tokens, summed loss, accumulated gradients, and the loss as a Python
    number."""
    shape, half = recipe.model, {"fp32": None, "mixed": torch.bfloat16}[recipe.precision]
    config = GPT2Config(
        vocab_size=recipe.vocab,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model: torch.nn.Module = GPT2LMHeadModel(config)
    model.to(device)
    rows = torch.from_numpy(tokens[: len(tokens) // shape.context * shape.context].astype(np.int64))
    rows = rows.view(-1, shape.context)

    def work(number: int) -> float:
        ids = rows[number * recipe.micro_batch : (number + 1) * recipe.micro_batch].to(device)
        with torch.autocast(device.type, dtype=half, enabled=half is not None and device.type == "cuda"):
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss)

    return work


def measure(recipe: CausalLM, repeats: int, units: int, *, compiles: bool) -> Figures:
    device = pick_device()
    tokens = (np.concatenate(some_shards([UNITS * recipe.model.context])).astype(np.int64) % recipe.vocab).astype("u2")
    works = {"ours": ours(recipe, device, tokens), "plain": plain(recipe, device, tokens)}
    if compiles:
        works["compiled"] = ours(recipe, device, tokens, compiles=True)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    first: dict[str, float] = {}
    for turn in range(repeats + 1):
        for name, work in works.items():
            spent = seconds_of(work, range(turn * units, (turn + 1) * units), device)
            if turn:
                seconds[name].append(spent)
            else:  # the first turn warms up, and compiles
                first[name] = spent
        say(f"turn {turn} of {repeats}")
    samples = units * recipe.micro_batch
    speeds = {name: median(samples / spent for spent in found) for name, found in seconds.items()}
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "threads": torch.get_num_threads(),
        "precision": recipe.precision,
        "parameters": recipe.parameters(),
        "ours_samples_per_s": speeds["ours"],
        "plain_samples_per_s": speeds["plain"],
        "ratio": median(b / a for a, b in zip(seconds["ours"], seconds["plain"], strict=True)),
    } | (_of_compiling(seconds, first) if compiles else {})


def _of_compiling(seconds: dict[str, list[float]], first: dict[str, float]) -> Figures:
    """Return the speed-up from compiling (median, minimum, maximum) and the extra time of the first turn."""
    ratios = [a / b for a, b in zip(seconds["ours"], seconds["compiled"], strict=True)]
    return {
        "compiled_ratio": median(ratios),
        "compiled_ratio_least": min(ratios),
        "compiled_ratio_most": max(ratios),
        "compiling_s": first["compiled"] - first["ours"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--units", type=int, default=1, help="of a turn")
    parser.add_argument("--compile", action="store_true", help="and the same with compiled layers")
    given = parser.parse_args()
    recipes = [RECIPE, replace(RECIPE, precision="mixed")] if torch.cuda.is_available() else [RECIPE]
    return publish(
        "inner_loop", lambda: [measure(each, given.repeats, given.units, compiles=given.compile) for each in recipes]
    )


if __name__ == "__main__":
    sys.exit(main())

"""The cost of fewer bits: held-out loss after 200 steps on real text, with gradients and averages in each codec.

Two trainers and a reducer work as shipped, including carried work, sums and residuals, but without sockets. Run
`python -m tests.benchmarks.training.codecs`. The last line is one JSON object.
"""

import argparse
import json
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from msgspec.structs import replace

from peer_agent.averaging.codecs import Floats, decode
from peer_agent.averaging.reducer import Reduction, Residuals
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import Codec, Optimizer
from peer_agent.protocol.relay.opened import OpenPlan
from peer_agent.protocol.schedule import scalars_of
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.text.recipe import samples_in
from peer_agent.recipes.text.tokens import Tokens
from peer_agent.training.loop import Trainer, mean_loss
from peer_agent.training.optimizers import Moving, update
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed
from tests.averaging.rounds import RUN, Holder, plan_of
from tests.publishing.texts import docstrings

SEEDS, STEPS = (1, 2, 3), 200
HELD_OUT = 20_000  # tokens at the end of the text that are not trained on
CODECS: tuple[Codec, ...] = ("fp16", "int8", "int4")
UNEVEN = (3, 5)  # units of each trainer in a step


def recipe_of(seed: int, steps: int) -> CausalLM:
    return CausalLM(
        model=Model(layers=2, width=64, heads=4, context=64),
        optimizer=Optimizer(learning_rate=0.01, warmup_steps=10),
        vocab=257,
        micro_batch=2,
        target_steps=steps,
        seed=seed,
    )


def heldout_loss(codec: Codec, seed: int, steps: int = STEPS, *, feedback: bool = True) -> float:
    """Return held-out nats per token after this many steps. Without `feedback`, rounding errors in the averages are
    not carried over.
    """
    recipe, text = recipe_of(seed, steps), np.frombuffer(docstrings().encode(), np.uint8).astype(np.uint16)
    replica, tokens = Replica(recipe), text[:-HELD_OUT]
    trainer, grid = Trainer(replica, RUN, [tokens], threads=1), grid_of(replica.layout.elements)
    holders, residuals, units = [Holder(grid) for _ in UNEVEN], Residuals(), _units(tokens, recipe)
    state = Moving(replica.parameters, replica.moment1, replica.moment2)
    for step in range(steps):
        for holder, count in zip(holders, UNEVEN, strict=True):
            _accumulate(trainer, holder, [next(units) for _ in range(count)])
        averaged = _averaged(holders, grid, codec, residuals if feedback else Residuals(), step)
        scalars = scalars_of(
            recipe, step=step + 1, sum_squares=float(np.square(averaged, dtype=np.float64).sum()), tokens=1
        )
        update(recipe.optimizer, scalars, replica.layout, state, torch.from_numpy(averaged))
    return mean_loss(replica.model, recipe, text[-HELD_OUT:], torch.device("cpu")).loss


def _units(tokens: Tokens, recipe: CausalLM) -> Iterator[Unit]:
    epoch, size = 0, samples_in(len(tokens), recipe.model.context)
    while True:
        for start in range(0, size - recipe.micro_batch, recipe.micro_batch):
            yield Unit(epoch, 0, start, start + recipe.micro_batch)
        epoch += 1


def _accumulate(trainer: Trainer, holder: Holder, units: Sequence[Unit]) -> None:
    for unit in units:
        done = trainer.compute(unit)
        assert isinstance(done, Computed)
        trainer.keep(done)
    taken = trainer.take_sum()
    holder.add(taken.gradient_sum, taken.loss_tokens)


def _averaged(holders: Sequence[Holder], grid: Grid, codec: Codec, residuals: Residuals, step: int) -> Floats:
    """Return the averaged gradient as every replica decodes it, of shape [P]."""
    sendings = [holder.offer(codec) for holder in holders]
    plan = replace(plan_of(sendings, grid=grid, codec_down=codec, cuts=(0, grid.chunks)), step=step)
    reduction = Reduction(OpenPlan(plan, plan.slots), residuals)
    for slot, sending in enumerate(sendings):
        assert reduction.leaves(slot, pack_leaves(sending.leaves)) is None
        for chunk in grid:
            assert reduction.add(slot, chunk, sending.payloads[chunk]) is None
    tokens = sum(sending.weights[0].tokens for sending in sendings)
    parts = [decode(codec, reduction.close(chunk, tokens), grid.length(chunk)) for chunk in grid]
    residuals.commit(step + 1, plan.fence, step + 1, [(plan.attempt, 0, grid.chunks)])
    for holder in holders:
        holder.remove_averaged([(0, grid.chunks)])
    return np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args().steps
    losses = {codec: [heldout_loss(codec, seed, steps) for seed in SEEDS] for codec in CODECS}
    losses["int4 without feedback"] = [heldout_loss("int4", seed, steps, feedback=False) for seed in SEEDS]  # type: ignore[index]
    exact = np.array(losses["fp16"])
    ratios = {name: [round(float(r), 5) for r in np.array(found) / exact] for name, found in losses.items()}
    for name, found in losses.items():
        print(f"{name:22} {' '.join(f'{loss:.4f}' for loss in found)}  worst {max(ratios[name]):.4f} of fp16")
    print(json.dumps({"steps": steps, "seeds": SEEDS, "heldout_loss": losses, "of_fp16": ratios}))


if __name__ == "__main__":
    main()

"""Update a fixed vector five times, and print the digest of the state under each optimizer.

test_optimizers runs this module as a program, because torch chooses its vector unit and threads once per process. No
size is a power of two, and the largest tensor is large enough for torch to divide it among threads.
"""

import json
from typing import get_args

import numpy as np
import torch

from peer_agent.protocol.recipe import Optimizer, OptimizerName
from peer_agent.protocol.schedule import scalars_of
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.training.model import Layout, Piece
from peer_agent.training.optimizers import Moving, update
from peer_agent.training.replica import state_digest

LAYOUT = Layout((Piece("matrix", (301, 257), 0), Piece("bias", (1023,), 77357), Piece("zero", (5, 3), 78380)), 78395)
SPREADS = (1.0, 1e-3, 1e-6)  # the small values are near and below epsilon


def fixed_vector(number: int) -> torch.Tensor:
    """Return values made from Philox's raw stream using exact operations only. The third tensor is all zeros."""
    raw = np.random.Philox(key=number).random_raw(LAYOUT.elements) >> np.uint64(40)
    values = (raw.astype(np.float64) / 2**23 - 1.0).astype(np.float32)
    values *= np.float32(SPREADS[number % 3])
    values[LAYOUT.pieces[2].start :] = 0
    return torch.from_numpy(values)


def digest_after_updates(optimizer: Optimizer, device: str = "cpu") -> str:
    recipe = CausalLM(optimizer=optimizer, target_steps=100)
    weights = fixed_vector(0).to(device)
    state = Moving(weights, torch.zeros_like(weights), torch.zeros_like(weights))
    for step in range(1, 6):
        scalars = scalars_of(recipe, step=step, sum_squares=0.5 + step, tokens=1)
        update(optimizer, scalars, LAYOUT, state, fixed_vector(step).to(device))
    return state_digest(*state)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digests = {name: digest_after_updates(Optimizer(name=name), device) for name in get_args(OptimizerName)}
    facts = {
        "device": device,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(digests | facts))


if __name__ == "__main__":
    main()

"""An update's scalars, such as its learning rate. The coordinator records them as exact float32 values (rule 13).

Only the coordinator computes them, once for each update.
"""

import math

import numpy as np

from peer_agent.protocol.log.records import Scalars
from peer_agent.protocol.recipe import Optimizer, Recipe


def float32(value: float) -> float:
    return float(np.float32(value))


def learning_rate(optimizer: Optimizer, step: int, target_steps: int) -> float:
    """Return the learning rate of update `step` (from 1): linear warm-up, then decay to `final_ratio` of the peak."""
    if step <= optimizer.warmup_steps:
        return optimizer.learning_rate * step / optimizer.warmup_steps
    length = max(target_steps - optimizer.warmup_steps, 1)
    done = min((step - optimizer.warmup_steps) / length, 1.0)
    remaining = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    floor = 1.0 if optimizer.decay == "constant" else optimizer.final_ratio
    return optimizer.learning_rate * (floor + (1.0 - floor) * remaining[optimizer.decay])


def clip_factor(clip_norm: float, sum_squares: float) -> float:
    """Return the factor that limits the averaged gradient's norm to `clip_norm`, where 0 means never to clip."""
    norm = math.sqrt(sum_squares)
    return clip_norm / norm if 0 < clip_norm < norm else 1.0


def scalars_of(recipe: Recipe, *, step: int, sum_squares: float, tokens: int) -> Scalars:
    """Return the scalars of update `step`.

    `sum_squares`: of the averaged gradient over all spans, in float64. `tokens`: the update's number of loss tokens.
    """
    optimizer = recipe.optimizer
    return Scalars(
        learning_rate=float32(learning_rate(optimizer, step, recipe.target_steps)),
        clip=float32(clip_factor(optimizer.clip_norm, sum_squares)),
        inverse_bias_1=float32(1.0 / (1.0 - optimizer.beta1**step)),
        inverse_bias_2=float32(1.0 / (1.0 - optimizer.beta2**step)),
        inverse_tokens=float32(1.0 / tokens),
    )

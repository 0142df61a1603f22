"""Initial values of parameters, which are the same on every machine."""

import hashlib

import numpy as np
import torch


def draw_normal(parameter: torch.Tensor, *, seed: int, name: str, spread: float) -> None:
    """Fill a parameter with normal values of mean 0 and standard deviation `spread`.

    They come from a generator keyed by seed and name. torch's own generator would give different values on different
    processors.
    """
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8")))
    with torch.no_grad():
        # Values are drawn in float64. Rounding to float32 then hides differences between maths libraries.
        values = generator.standard_normal(tuple(parameter.shape)).astype(np.float32)
        parameter.copy_(torch.from_numpy(values * np.float32(spread)))


def draw_directions(matrix: torch.Tensor, *, seed: int, name: str) -> None:
    """Fill each row of a matrix with a vector of length 1 in a uniformly random direction."""
    draw_normal(matrix, seed=seed, name=name, spread=1.0)
    with torch.no_grad():
        rows = matrix.numpy().astype(np.float64)
        lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        matrix.copy_(torch.from_numpy((rows / lengths).astype(np.float32)))

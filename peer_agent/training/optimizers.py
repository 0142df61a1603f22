"""LAMB, AdamW, SGD and LARC in single IEEE operations, so that every CPU and GPU gets the same bits (rule 13).

Allowed: mul, add, sub, div of two tensors, `square_root`. Not allowed: `alpha=`, addcmul, lerp, foreach, fused, compile
(each may round once where another machine rounds twice), `sum` and `norm` (their order depends on threads and vector
width), division by a Python number (CUDA multiplies with a rounded reciprocal), torch's own sqrt on a CPU. Every scalar
is an exact float32.

One update of one tensor w with averaged gradient a, each operation rounded to float32, in this order:

    g = a * clip
    m = (m * b1) + (g * c1)                          c1 = float32(1 - beta1)
    v = (v * b2) + ((g * g) * c2)                    c2 = float32(1 - beta2)
    u = (m * ib1) / (sqrt(v * ib2) + eps)
    u = u + (w * wd)                                 if w has two dimensions or more
    AdamW: w = w - (u * lr)
    LAMB:  w = w - (u * ((|w| / |u|) * lr))          the ratio is 1 if |w| or |u| is 0

SGD and LARC with momentum b1; v stays 0:

    g = g + (w * wd)                                 if w has two dimensions or more
    LARC: g = g * ((|w| * trust) / ((|g0| + (|w| * wd)) + eps))       g0: g before decay; g = g0 if |w| or |g0| is 0
    m = (m * b1) + g
    w = w - (m * lr)

Then, for each row r of a matrix whose rows have length 1:

    r = r / |r|

As usual, weight decay skips biases and the gains of norms. LAMB's ratio is computed for every tensor (arXiv 1904.00962,
algorithm 2). This also limits the movement of tensors whose true gradient is 0, such as the bias of attention keys.
Otherwise rounding noise would move them.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, assert_never

import numpy as np
import torch

from peer_agent.protocol.log.records import Scalars
from peer_agent.protocol.recipe import Optimizer
from peer_agent.protocol.schedule import float32
from peer_agent.training.model import Layout

TRUST = 0.001  # LARC's trust coefficient, as in arXiv 2006.09882


class Moving(NamedTuple):
    """One tensor's views of the three state vectors."""

    weight: torch.Tensor
    moment1: torch.Tensor
    moment2: torch.Tensor


Move = Callable[[Optimizer, Scalars, Moving, torch.Tensor], None]  # the last argument is the clipped gradient


def update(
    optimizer: Optimizer,
    scalars: Scalars,
    layout: Layout,
    state: Moving,
    averaged: torch.Tensor,
    *,
    frozen: Collection[str] = (),
    unit_rows: Collection[str] = (),
) -> None:
    """Update the flat state vectors in place, except parameters named in `frozen`. Scale the rows of parameters named
    in `unit_rows` to length 1.
    """
    move = _move_of(optimizer)
    with torch.no_grad():
        for piece in layout.pieces:
            if piece.name in frozen:
                continue
            views = Moving(*(piece.of(vector) for vector in state))
            move(optimizer, scalars, views, piece.of(averaged).mul(scalars.clip))
            if piece.name in unit_rows:
                _normalize_rows(views.weight)


def _move_of(optimizer: Optimizer) -> Move:
    match optimizer.name:
        case "lamb":
            return _lamb
        case "adamw":
            return _adamw
        case "sgd":
            return _sgd
        case "larc":
            return _larc
    assert_never(optimizer.name)


def square_root(values: torch.Tensor) -> torch.Tensor:
    """Take correctly rounded square roots in place. On CPUs, a fifth of torch's own results are wrong in the last
    bit.
    """
    if values.device.type == "cpu":
        np.sqrt(values.numpy(), out=values.numpy())
        return values
    return values.sqrt_()


def halving_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum values in a fixed order: pad with zeros to a power of two, then add halves until one value is left."""
    return _sums_of_rows(values.reshape(1, -1))[0]


def _sums_of_rows(values: torch.Tensor) -> torch.Tensor:
    rows, columns = values.shape
    size = 1 << max(columns - 1, 0).bit_length()
    level = torch.zeros(rows, size, dtype=torch.float32, device=values.device)
    level[:, :columns] = values
    while size > 1:
        size //= 2
        level = level[:, :size] + level[:, size:]
    return level[:, 0]


def _normalize_rows(matrix: torch.Tensor) -> None:
    """Scale each row to length 1, in place. A row of zeros stays zero."""
    lengths = square_root(_sums_of_rows(matrix.mul(matrix)))
    matrix.div_(torch.where(lengths > 0, lengths, torch.ones_like(lengths)).unsqueeze(1))


def _direction(optimizer: Optimizer, scalars: Scalars, views: Moving, gradient: torch.Tensor) -> torch.Tensor:
    _decay_towards(views.moment1, gradient, optimizer.beta1)
    _decay_towards(views.moment2, gradient.mul(gradient), optimizer.beta2)
    denominator = square_root(views.moment2.mul(scalars.inverse_bias_2)).add_(float32(optimizer.epsilon))
    direction = views.moment1.mul(scalars.inverse_bias_1).div_(denominator)
    return _decayed(optimizer, views.weight, direction)


def _decay_towards(moment: torch.Tensor, value: torch.Tensor, beta: float) -> None:
    moment.mul_(float32(beta)).add_(value.mul(float32(1.0 - beta)))


def _adamw(optimizer: Optimizer, scalars: Scalars, views: Moving, gradient: torch.Tensor) -> None:
    direction = _direction(optimizer, scalars, views, gradient)
    views.weight.sub_(direction.mul_(scalars.learning_rate))


def _lamb(optimizer: Optimizer, scalars: Scalars, views: Moving, gradient: torch.Tensor) -> None:
    direction = _direction(optimizer, scalars, views, gradient)
    norms = _norm(views.weight), _norm(direction)
    ratio = torch.where(_are_both(norms), norms[0].div(norms[1]), torch.ones_like(norms[0]))
    views.weight.sub_(direction.mul_(ratio.mul(scalars.learning_rate)))


def _sgd(optimizer: Optimizer, scalars: Scalars, views: Moving, gradient: torch.Tensor) -> None:
    _moved_by(optimizer, scalars, views, _decayed(optimizer, views.weight, gradient))


def _larc(optimizer: Optimizer, scalars: Scalars, views: Moving, gradient: torch.Tensor) -> None:
    norms = _norm(views.weight), _norm(gradient)
    length = norms[1].add(norms[0].mul(_decay_of(optimizer, views.weight))).add(float32(optimizer.epsilon))
    rate = norms[0].mul(float32(TRUST)).div(length)
    scaled = _decayed(optimizer, views.weight, gradient.clone()).mul_(rate)
    _moved_by(optimizer, scalars, views, torch.where(_are_both(norms), scaled, gradient))


def _moved_by(optimizer: Optimizer, scalars: Scalars, views: Moving, gradient: torch.Tensor) -> None:
    views.moment1.mul_(float32(optimizer.beta1)).add_(gradient)
    views.weight.sub_(views.moment1.mul(scalars.learning_rate))


def _decay_of(optimizer: Optimizer, weight: torch.Tensor) -> float:
    return float32(optimizer.weight_decay) if weight.ndim >= 2 else 0.0


def _decayed(optimizer: Optimizer, weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return gradient.add_(weight.mul(_decay_of(optimizer, weight))) if weight.ndim >= 2 else gradient


def _norm(values: torch.Tensor) -> torch.Tensor:
    return square_root(halving_sum(values.mul(values)))


def _are_both(norms: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (norms[0] > 0) & (norms[1] > 0)

"""The optimizers compared with plain float64 versions, with torch's own, and across vector units."""

import json
import math
import os
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from peer_agent.protocol.recipe import Optimizer, OptimizerName, Recipe
from peer_agent.protocol.schedule import scalars_of
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.training.model import Layout, Piece
from peer_agent.training.optimizers import Moving, halving_sum, update
from tests.training import golden_update

LAYOUT = Layout((Piece("matrix", (20, 11), 0), Piece("bias", (13,), 220), Piece("zero", (4, 4), 233)), 249)
STEPS = 30
GOLDEN = {
    "lamb": "da44c8917d351d82",
    "adamw": "ef94655e34bbd399",
    "sgd": "b3aa94d9b75c1849",
    "larc": "a1a185158c5683e7",
}


def recipe_of(name: OptimizerName) -> Recipe:
    return CausalLM(
        optimizer=Optimizer(name=name, learning_rate=0.003, warmup_steps=3, clip_norm=1.0), target_steps=STEPS
    )


def gradients() -> list[NDArray[np.float32]]:
    random = np.random.Generator(np.random.Philox(3))
    return [random.standard_normal(LAYOUT.elements, dtype=np.float32) * np.float32(0.02 * n) for n in range(STEPS)]


def first_weights() -> NDArray[np.float32]:
    weights = np.random.Generator(np.random.Philox(4)).standard_normal(LAYOUT.elements, dtype=np.float32)
    weights[LAYOUT.pieces[2].start :] = 0
    return weights


def ours(recipe: Recipe) -> NDArray[np.float32]:
    weights = torch.from_numpy(first_weights())
    state = Moving(weights, torch.zeros_like(weights), torch.zeros_like(weights))
    for step, gradient in enumerate(gradients(), start=1):
        sum_squares = float(np.sum(gradient.astype(np.float64) ** 2))
        scalars = scalars_of(recipe, step=step, sum_squares=sum_squares, tokens=1)
        update(recipe.optimizer, scalars, LAYOUT, state, torch.from_numpy(gradient))
    return weights.numpy()


def clipped(gradient: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = gradient.astype(np.float64)
    return wide / max(1.0, float(np.linalg.norm(wide)))


def rate(step: int) -> float:
    """Return a learning rate: linear warm-up over three steps, then a cosine to a tenth of the peak."""
    if step <= 3:
        return 0.003 * step / 3
    return 0.003 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 3) / (STEPS - 3))))


def plain(recipe: Recipe) -> NDArray[np.float64]:
    o = recipe.optimizer
    return plain_momentum(recipe) if o.name in ("sgd", "larc") else plain_adam(recipe)


def plain_momentum(recipe: Recipe) -> NDArray[np.float64]:
    """Apply SGD with momentum, or LARC as used by SwAV's authors: apex's version without clipping."""
    o = recipe.optimizer
    w = first_weights().astype(np.float64)
    m = np.zeros_like(w)
    for t, gradient in enumerate(gradients(), start=1):
        whole = clipped(gradient)
        for piece in LAYOUT.pieces:
            at = slice(piece.start, piece.stop)
            g, decay = whole[at], o.weight_decay if len(piece.shape) > 1 else 0
            norms = np.linalg.norm(w[at]), np.linalg.norm(g)
            if o.name == "sgd" or all(norms):
                trust = 0.001 * norms[0] / (norms[1] + norms[0] * decay + o.epsilon) if o.name == "larc" else 1.0
                g = (g + decay * w[at]) * trust
            m[at] = o.beta1 * m[at] + g
            w[at] -= rate(t) * m[at]
    return w


def plain_adam(recipe: Recipe) -> NDArray[np.float64]:
    o = recipe.optimizer
    w = first_weights().astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, gradient in enumerate(gradients(), start=1):
        g = clipped(gradient)
        m = o.beta1 * m + (1 - o.beta1) * g
        v = o.beta2 * v + (1 - o.beta2) * g**2
        u = m / (1 - o.beta1**t) / (np.sqrt(v / (1 - o.beta2**t)) + o.epsilon)
        for piece in LAYOUT.pieces:
            at = slice(piece.start, piece.stop)
            move = u[at] + (o.weight_decay * w[at] if len(piece.shape) > 1 else 0)
            norms = np.linalg.norm(w[at]), np.linalg.norm(move)
            trust = norms[0] / norms[1] if o.name == "lamb" and all(norms) else 1.0
            w[at] -= rate(t) * trust * move
    return w


def rounded_each_time(recipe: Recipe) -> NDArray[np.float32]:
    """Apply the optimizers' formulas in NumPy's float32, in which every operation follows IEEE, without a vector
    library.
    """
    return momentum_rounded(recipe) if recipe.optimizer.name in ("sgd", "larc") else adam_rounded(recipe)


def momentum_rounded(recipe: Recipe) -> NDArray[np.float32]:
    o, one = recipe.optimizer, np.float32
    w = first_weights()
    m = np.zeros_like(w)
    for t, gradient in enumerate(gradients(), start=1):
        s = scalars_of(recipe, step=t, sum_squares=float(np.sum(gradient.astype(np.float64) ** 2)), tokens=1)
        for piece in LAYOUT.pieces:
            at = slice(piece.start, piece.stop)
            g, decay = gradient[at] * one(s.clip), one(o.weight_decay if len(piece.shape) > 1 else 0)
            norms = [np.sqrt(tree_sum(values * values)) for values in (w[at], g)]
            decayed = g + (w[at] * decay) if decay else g
            if o.name == "sgd":
                g = decayed
            elif all(norms):
                g = decayed * ((norms[0] * one(0.001)) / ((norms[1] + (norms[0] * decay)) + one(o.epsilon)))
            m[at] = (m[at] * one(o.beta1)) + g
            w[at] = w[at] - (m[at] * one(s.learning_rate))
    return w


def adam_rounded(recipe: Recipe) -> NDArray[np.float32]:
    o, one = recipe.optimizer, np.float32
    w = first_weights()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, gradient in enumerate(gradients(), start=1):
        sum_squares = float(np.sum(gradient.astype(np.float64) ** 2))
        s = scalars_of(recipe, step=t, sum_squares=sum_squares, tokens=1)
        g: NDArray[np.float32] = gradient * one(s.clip)
        m = (m * one(o.beta1)) + (g * one(1 - o.beta1))
        v = (v * one(o.beta2)) + ((g * g) * one(1 - o.beta2))
        u = (m * one(s.inverse_bias_1)) / (np.sqrt(v * one(s.inverse_bias_2)) + one(o.epsilon))
        for piece in LAYOUT.pieces:
            at = slice(piece.start, piece.stop)
            move = u[at] + w[at] * one(o.weight_decay) if len(piece.shape) > 1 else u[at]
            norms = [np.sqrt(tree_sum(values * values)) for values in (w[at], move)]
            trust = norms[0] / norms[1] if o.name == "lamb" and all(norms) else one(1)
            w[at] -= move * (trust * one(s.learning_rate))
    return w


def tree_sum(values: NDArray[np.float32]) -> np.float32:
    level = np.zeros(1 << max(len(values) - 1, 0).bit_length(), np.float32)
    level[: len(values)] = values
    while len(level) > 1:
        level = level[: len(level) // 2] + level[len(level) // 2 :]
    return np.float32(level[0])


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_every_operation_is_rounded_as_ieee_says(name: OptimizerName) -> None:
    """The results must be equal on every maker's CPUs. Those of torch's own sqrt differed between makers."""
    recipe = recipe_of(name)
    np.testing.assert_array_equal(ours(recipe).view(np.int32), rounded_each_time(recipe).view(np.int32))


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_follows_the_papers(name: OptimizerName) -> None:
    recipe = recipe_of(name)
    np.testing.assert_allclose(ours(recipe), plain(recipe), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_it_is_torchs(name: OptimizerName) -> None:
    recipe = recipe_of(name)
    tensors = [
        torch.from_numpy(first_weights()[p.start : p.stop]).view(p.shape).requires_grad_() for p in LAYOUT.pieces
    ]
    decayed, free = [t for t in tensors if t.ndim > 1], [t for t in tensors if t.ndim < 2]
    o = recipe.optimizer
    groups = [{"params": decayed, "weight_decay": o.weight_decay}, {"params": free, "weight_decay": 0.0}]
    theirs: torch.optim.Optimizer
    if name == "adamw":
        theirs = torch.optim.AdamW(groups, betas=(o.beta1, o.beta2), eps=o.epsilon)
    else:
        theirs = torch.optim.SGD(groups, lr=1.0, momentum=o.beta1)
    for step, gradient in enumerate(gradients(), start=1):
        flat = torch.from_numpy(clipped(gradient).astype(np.float32))
        for piece, tensor in zip(LAYOUT.pieces, tensors, strict=True):
            tensor.grad = piece.of(flat)
        for group in theirs.param_groups:
            group["lr"] = rate(step)
        theirs.step()
    expected = torch.cat([tensor.detach().flatten() for tensor in tensors]).numpy()
    np.testing.assert_allclose(ours(recipe), expected, rtol=0, atol=2e-6)


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=1, max_size=70))
def test_the_tree_sums_everything(values: list[float]) -> None:
    exact = float(np.sum(np.array(values, dtype=np.float64)))
    bound = 1e-6 * sum(map(abs, values)) + 1e-30
    assert float(halving_sum(torch.tensor(values, dtype=torch.float32))) == pytest.approx(exact, abs=bound)


def test_the_tree_adds_half_onto_half() -> None:
    """2^24 + 1 is not a float32 number, so the ones survive only if they are added to each other first."""
    values = torch.tensor([2.0**24, 0.0, 1.0, 1.0, 0.0])
    assert float(halving_sum(values)) == 2.0**24
    assert float(halving_sum(torch.tensor([2.0**24, 1.0, 0.0, 1.0]))) == 2.0**24 + 2


def test_nothing_moves_without_gradient_weight_or_decay() -> None:
    for name in get_args(OptimizerName):
        weights = torch.zeros(LAYOUT.elements)
        state = Moving(weights, torch.zeros_like(weights), torch.zeros_like(weights))
        recipe = CausalLM(optimizer=Optimizer(name=name))
        update(
            recipe.optimizer,
            scalars_of(recipe, step=1, sum_squares=0.0, tokens=1),
            LAYOUT,
            state,
            torch.zeros_like(weights),
        )
        assert not weights.any()


def digests_under(capability: str, threads: int) -> dict[str, object]:
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", golden_update.__name__]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    facts: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert facts["threads"] == threads
    return facts


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_all_vector_units_and_threads_agree(capability: str, threads: int) -> None:
    """If this CPU lacks a capability, torch uses the best one available, so the test holds on every machine."""
    facts = digests_under(capability, threads)
    assert {name: facts[name] for name in get_args(OptimizerName)} == GOLDEN


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_rows_get_length_one_and_what_is_frozen_stays(name: OptimizerName) -> None:
    recipe, gradient = recipe_of(name), torch.from_numpy(gradients()[1])
    plain, rows = (torch.from_numpy(first_weights()) for _ in range(2))
    scalars = scalars_of(recipe, step=1, sum_squares=1.0, tokens=1)
    update(recipe.optimizer, scalars, LAYOUT, Moving(plain, *torch.zeros(2, LAYOUT.elements)), gradient)
    state = Moving(rows, *torch.zeros(2, LAYOUT.elements))
    unit_rows = ("matrix", "zero")
    update(recipe.optimizer, scalars, LAYOUT, state, gradient, frozen=("bias",), unit_rows=unit_rows)
    matrix, bias, zero = LAYOUT.pieces
    wide = matrix.of(plain).double()
    torch.testing.assert_close(matrix.of(rows), (wide / wide.norm(dim=1, keepdim=True)).float(), atol=2e-7, rtol=0)
    assert torch.equal(bias.of(rows), bias.of(torch.from_numpy(first_weights())))
    assert not bias.of(state.moment1).any()
    assert torch.isfinite(zero.of(rows)).all()


def test_a_row_of_zeros_stays_one() -> None:
    recipe = recipe_of("sgd")
    scalars = scalars_of(recipe, step=1, sum_squares=1.0, tokens=1)
    state = Moving(*torch.zeros(3, LAYOUT.elements))
    update(recipe.optimizer, scalars, LAYOUT, state, torch.zeros(LAYOUT.elements), unit_rows=("matrix",))
    assert not state.weight.any()

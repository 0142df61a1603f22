"""Compiled layers give the same gradients, a failing compiler is tried once, and updates are never compiled."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend

from peer_agent.protocol.log.records import Unit
from peer_agent.training import loop
from peer_agent.training.layers import CompiledLayers
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from tests.training.commits import RUN, commit, small_recipe, some_shards, take_units, weighted_mean
from tests.training.test_short_memory import CASES, on

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # compiled code causes this warning

UNITS = (Unit(0, 0, 0, 4), Unit(0, 1, 120, 126))
Backend = Callable[..., Any]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of graphs compiled by a backend that needs no compiler."""
    seen: list[Any] = []
    plain = lookup_backend("aot_eager")

    def noting(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return plain(graph, inputs)

    use(monkeypatch, noting)
    return seen


def use(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(loop, "CompiledLayers", partial(CompiledLayers, backend=backend))


def trainer_that(**how: bool) -> Trainer:
    return Trainer(Replica(small_recipe()), RUN, some_shards(), **how)


@pytest.mark.parametrize("name", ["gpt2", "llama", "albert"])
def test_gradients_are_the_same(name: str, graphs: list[Any]) -> None:
    recipe, shard = CASES[name]
    plain, compiled = (Trainer(Replica(recipe), RUN, [shard], compiles=compiles) for compiles in (False, True))
    units = (Unit(0, 0, 0, 4), Unit(0, 0, 4, 9))
    expected, found = take_units(plain, units), take_units(compiled, units)
    assert graphs
    assert compiled.compiled is not None
    assert not compiled.compiled.error
    np.testing.assert_allclose(found.gradient_sum, expected.gradient_sum, rtol=1e-4, atol=1e-5)
    assert found.loss_sum == pytest.approx(expected.loss_sum, rel=1e-6)


def test_layers_that_are_compiled_can_be_computed_again(graphs: list[Any]) -> None:
    expected = take_units(trainer_that(), UNITS)
    found = take_units(trainer_that(compiles=True, recomputes=True), UNITS)
    assert graphs
    np.testing.assert_allclose(found.gradient_sum, expected.gradient_sum, rtol=1e-4, atol=1e-5)


def fails_forward(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("No working C++ compiler found\nin a long list")


def fails_backward(graph: Any, inputs: Any) -> Any:
    def nothing(module: Any, _: Any) -> Any:
        return module.forward

    backend: Any = aot_autograd(fw_compiler=nothing, bw_compiler=fails_forward)
    return backend(graph, inputs)


@pytest.mark.parametrize("backend", [fails_forward, fails_backward])
def test_failed_compiler_is_tried_once_and_layers_run_plain(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(graph: Any, inputs: Any) -> Any:
        asked.append(1)
        return backend(graph, inputs)

    use(monkeypatch, counted)
    trainer = trainer_that(compiles=True)
    found, expected = take_units(trainer, UNITS), take_units(trainer_that(), UNITS)
    assert trainer.compiled is not None
    assert trainer.compiled.error == "No working C++ compiler found"
    np.testing.assert_array_equal(found.gradient_sum, expected.gradient_sum)
    assert len(asked) == 1


def test_what_goes_wrong_for_another_reason_is_told(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, asked = trainer_that(compiles=True), []

    def broken(*_: Any) -> torch.Tensor:
        asked.append(1)
        raise IndexError("a token that the model does not know")

    monkeypatch.setattr(trainer, "loss", broken)
    with pytest.raises(IndexError, match="a token"):
        trainer.compute(UNITS[0])
    assert len(asked) == 2, "without compiling, too"
    assert not graphs


def test_short_memory_is_not_the_compilers_fault(graphs: list[Any]) -> None:
    expected, trainer = take_units(trainer_that(), UNITS), trainer_that(compiles=True)
    on(trainer, 2)
    found = take_units(trainer, UNITS)
    assert graphs
    assert trainer.compiled is not None
    assert not trainer.compiled.error
    assert trainer.at_once == 2
    np.testing.assert_allclose(found.gradient_sum, expected.gradient_sum, rtol=1e-4, atol=1e-4)


def test_an_update_is_never_compiled(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 13: the same averages give the same bits, with or without compiled layers."""
    compiled, plain = trainer_that(compiles=True), trainer_that()
    takings = [take_units(compiled, UNITS)]
    before, under = len(graphs), []
    whole = torch.Tensor.add_

    def watched(*given: Any, **named: Any) -> Any:
        under.append(torch.compiler.is_compiling())
        return whole(*given, **named)

    for trainer in (compiled, plain):
        monkeypatch.setattr(torch.Tensor, "add_", watched)
        commit(trainer.replica, weighted_mean(takings), takings)
        monkeypatch.setattr(torch.Tensor, "add_", whole)
    assert len(graphs) == before
    assert True not in under
    assert compiled.replica.digest() == plain.replica.digest()

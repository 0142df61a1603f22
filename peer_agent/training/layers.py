"""Other ways to compute a model's layers: again in backward, for less memory (arXiv 1604.06174), or compiled."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_layers(model: nn.Module) -> bool:
    """Have each layer of a model keep its input alone, from now on. False where it has none. Results stay the same."""
    layers = list(layers_of(model))
    for layer in layers:
        again = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        layer.forward = again
    return bool(layers)


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """What stands in a model's outermost lists."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else layers_of(child)


class CompiledLayers:
    """Layers that are compiled when they are first computed, and again for another number of samples.

    The same gradients but for rounding. Updates are never compiled: replicas would not agree bit by bit any more
    (rule 13).

    `error`: why they are computed as they were without, once that could not be done; empty until then.
    """

    def __init__(self, model: torch.nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
        """`backend`: of torch.compile."""
        self.error = ""
        self._backend = backend
        for layer in layers_of(model):
            layer.forward = self._either(layer.forward)

    def give_up(self, error: Exception) -> bool:
        """Compute layers as they were, from now on. False where they are already: something else went wrong."""
        if self.error:
            return False
        cause = getattr(error, "inner_exception", error)  # of what torch wraps
        lines = str(cause).strip().splitlines()
        self.error = lines[0] if lines else type(cause).__name__
        return True

    def _either(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] | None = None

        def forward(*given: Any, **named: Any) -> Any:
            nonlocal compiled
            if self.error:
                return plain(*given, **named)
            if compiled is None:
                compiled = torch.compile(plain, backend=self._backend)
            return compiled(*given, **named)

        return forward

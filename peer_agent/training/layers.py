"""Two changes to a model's layers. Recomputation in the backward pass saves memory (arXiv 1604.06174), and compilation
saves time.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_layers(model: nn.Module) -> bool:
    """Make each layer store only its input, and recompute the rest in the backward pass. Return False if the model has
    no layers.
    """
    layers = list(layers_of(model))
    for layer in layers:
        again = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        layer.forward = again
    return bool(layers)


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a model's layers: the members of its outermost ModuleLists."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else layers_of(child)


class CompiledLayers:
    """A model's layers, compiled on first use, and again for each new number of samples. Compiled gradients differ only
    by rounding. Updates are never compiled, because replicas must have equal bits (rule 13). `error`: why compilation
    failed, or "".
    """

    def __init__(self, model: torch.nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
        """Replace a model's layers with compiled ones. `backend`: the backend of torch.compile."""
        self.error = ""
        self._backend = backend
        for layer in layers_of(model):
            layer.forward = self._either(layer.forward)

    def give_up(self, error: Exception) -> bool:
        """Stop compiling after an error. Return False if compilation had already stopped, because the error then has
        another cause.
        """
        if self.error:
            return False
        cause = getattr(error, "inner_exception", error)  # torch wraps the compiler's error
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

"""Layers that torch compiles, where this machine's owner asks for it: the same gradients but for rounding.

Updates are never compiled: replicas would not agree bit by bit any more (rule 13).
"""

from collections.abc import Callable
from typing import Any

import torch

from peer_agent.training.recompute import layers_of


class CompiledLayers:
    """Layers of a model that are compiled when they are first computed, and again for another number of samples.

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

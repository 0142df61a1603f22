"""Mixed precision on devices that are faster with it: gradients are computed in bf16, or in fp16 with loss scaling.
Parameters, gradients and their sums stay float32 (arXiv 1710.03740).
"""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch

from peer_agent.protocol.recipe import Recipe

FIRST, LEAST, MOST = 2.0**16, 1.0, 2.0**24
GROWS_AFTER = 1000  # the loss scale grows after this many finite gradients in a row
SIDE, TRIES = 512, 5  # side of the matrices in the speed trial, and number of repetitions
WIDE = "sdpa_float32"  # the name by which transformers knows this attention
LONG = 256  # for samples of at least this many tokens, bf16 attention is no slower on a CPU
PAYS = 1.5  # least speed-up for which bf16 is used, because float32 parts and casts reduce the gain


def half_of(recipe: Recipe, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit type in which a device computes this recipe, or None if it computes in float32."""
    if recipe.precision != "mixed":
        return None
    if device.type != "cuda":
        return torch.bfloat16 if is_faster_in_bf16() else None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def kept_in(recipe: Recipe, device: torch.device) -> torch.dtype | None:
    """Return the 16-bit type in which a device stores matrices that are not trained, or None for float32. Only GPUs
    store them in 16 bits.
    """
    return half_of(recipe, device) if device.type == "cuda" else None


@cache
def is_faster_in_bf16() -> bool:
    """Return True if this CPU multiplies matrices at least `PAYS` times as fast in bf16, according to a trial. Some
    CPUs are three times as fast, while others are slower.
    """
    whole = min(_product_s(torch.float32) for _ in range(TRIES))
    return any(_product_s(torch.bfloat16) * PAYS < whole for _ in range(TRIES))


def _product_s(dtype: torch.dtype) -> float:
    matrix = torch.ones(SIDE, SIDE, dtype=dtype)
    began = time.perf_counter()
    torch.mm(matrix, matrix)
    return time.perf_counter() - began


def narrow_fixed(model: torch.nn.Module, half: torch.dtype) -> None:
    """Store the matrices of a model that are not trained in 16 bits, in place. Autocast would convert them anyway.
    Vectors stay in float32. Embeddings' outputs are converted to float32, so that residual sums keep their precision.
    """
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if not parameter.requires_grad and parameter.dim() > 1:
                parameter.data = parameter.data.to(half)
        if isinstance(module, torch.nn.Embedding) and module.weight.dtype is half:
            module.register_forward_hook(_widened)


def _widened(module: torch.nn.Module, given: Sequence[Any], found: torch.Tensor) -> torch.Tensor:
    del module, given
    return found.float()


def widen_attention(model: torch.nn.Module) -> None:
    """Make a model compute attention for short samples in float32, even under autocast. On CPUs, torch's bf16 attention
    takes up to five times as long as float32, mostly in the backward pass.
    """
    for module in model.modules():
        if getattr(getattr(module, "config", None), "_attn_implementation", "") == "sdpa":
            from transformers import AttentionInterface, AttentionMaskInterface  # image models do not need these
            from transformers.masking_utils import sdpa_mask

            AttentionInterface.register(WIDE, _attention)
            AttentionMaskInterface.register(WIDE, sdpa_mask)
            cast("Any", module).set_attn_implementation(WIDE)


def _attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *given: Any, **named: Any
) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if key.shape[2] >= LONG:
        return sdpa_attention_forward(module, query, key, value, *given, **named)
    with torch.autocast(query.device.type, enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), *given, **named)


class LossScale:
    """A power of two that scales losses, so that small gradients do not become zero in fp16. It is 1 for other
    types.
    """

    def __init__(self, half: torch.dtype | None) -> None:
        self.value = FIRST if half is torch.float16 else LEAST
        self._most = MOST if half is torch.float16 else LEAST
        self._finite = 0

    def accept(self) -> None:
        self._finite += 1
        if self._finite == GROWS_AFTER:
            self._finite, self.value = 0, min(2 * self.value, self._most)

    def halve(self) -> bool:
        """Halve the scale after a non-finite gradient. Return False if the scale cannot be the cause."""
        self._finite = 0
        if self.value <= LEAST:
            return False
        self.value /= 2
        return True

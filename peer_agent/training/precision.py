"""Fewer bits where a device is faster with them: forward and backward in bf16, or in fp16 with losses that are scaled.

Parameters, gradients and their sums stay float32 (arXiv 1710.03740).
"""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch

from peer_agent.protocol.recipe import Recipe

FIRST, LEAST, MOST = 2.0**16, 1.0, 2.0**24
GROWS_AFTER = 1000  # finite gradients in a row
SIDE, TRIES = 512, 5  # of square matrices that a processor multiplies on trial, and how often
WIDE = "sdpa_float32"  # as transformers is to know it
LONG = 256  # tokens of a sample, from which on attention in bf16 takes a processor no longer
PAYS = 1.5  # how many times as fast that has to be: what stays float32 takes as long as before, and casts come on top


def half_of(recipe: Recipe, device: torch.device) -> torch.dtype | None:
    """What a device computes this recipe in, where that is not float32."""
    if recipe.precision != "mixed":
        return None
    if device.type != "cuda":
        return torch.bfloat16 if is_faster_in_bf16() else None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def kept_in(recipe: Recipe, device: torch.device) -> torch.dtype | None:
    """What a device keeps matrices in that the run does not change, where it is a GPU that computes with 16 bits."""
    return half_of(recipe, device) if device.type == "cuda" else None


@cache
def is_faster_in_bf16() -> bool:
    """Whether this processor is, found by trial: some multiply so three times as fast, others more slowly."""
    whole = min(_product_s(torch.float32) for _ in range(TRIES))
    return any(_product_s(torch.bfloat16) * PAYS < whole for _ in range(TRIES))


def _product_s(dtype: torch.dtype) -> float:
    matrix = torch.ones(SIDE, SIDE, dtype=dtype)
    began = time.perf_counter()
    torch.mm(matrix, matrix)
    return time.perf_counter() - began


def narrow_fixed(model: torch.nn.Module, half: torch.dtype) -> None:
    """Keep matrices that a run does not change in 16 bits, in place: autocast multiplies by such copies anyway.

    Vectors, of norms and biases, are small and stay. What embeddings give is widened, so that what layers add to is
    as many bits wide as before.
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
    """Have transformers under this model compute attention of short samples in float32, where all else is in 16 bits.

    On processors torch's takes in bf16 up to five times as long, nearly all of it backwards.
    """
    for module in model.modules():
        if getattr(getattr(module, "config", None), "_attn_implementation", "") == "sdpa":
            from transformers import AttentionInterface, AttentionMaskInterface  # images do without them
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
    """A power of two by which losses are multiplied, so that fp16 keeps small gradients; 1 where it is not needed."""

    def __init__(self, half: torch.dtype | None) -> None:
        self.value = FIRST if half is torch.float16 else LEAST
        self._most = MOST if half is torch.float16 else LEAST
        self._finite = 0

    def accept(self) -> None:
        self._finite += 1
        if self._finite == GROWS_AFTER:
            self._finite, self.value = 0, min(2 * self.value, self._most)

    def halve(self) -> bool:
        """They were not. False where that is not because of the scale."""
        self._finite = 0
        if self.value <= LEAST:
            return False
        self.value /= 2
        return True

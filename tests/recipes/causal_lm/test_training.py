"""The causal language model: its initial values, its loss, its release."""

from typing import Any

import gguf
import numpy as np
import pytest
import torch

from peer_agent.protocol.recipe import checked
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.causal_lm.training import build_model, loss_units_in
from peer_agent.recipes.text.tokens import rows_of
from peer_agent.training.model import layout_of
from tests.training.commits import small_recipe

TOKENS = np.arange(1, 36, dtype=np.uint16)  # three samples of ten tokens, and five tokens left over


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_the_seed_alone_decides_the_first_values(family: str) -> None:
    recipe = small_recipe(family)
    torch.manual_seed(1)
    one = build_model(recipe).state_dict()
    torch.manual_seed(2)
    other = build_model(recipe).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(tensor.dtype == torch.float32 for tensor in one.values())


def test_first_values_are_the_fields_standard() -> None:
    weights = build_model(small_recipe("gpt2")).state_dict()
    assert 0.019 < float(weights["transformer.wte.weight"].std()) < 0.021
    assert 0.009 < float(weights["transformer.h.0.mlp.c_proj.weight"].std()) < 0.011
    assert torch.equal(weights["transformer.ln_f.weight"], torch.ones(32))
    assert not weights["transformer.h.0.attn.c_attn.bias"].any()


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_nothing_is_dropped_out(family: str) -> None:
    model = build_model(small_recipe(family)).train()
    ids = torch.arange(24)[None]
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    assert all(module.p == 0 for module in model.modules() if isinstance(module, torch.nn.Dropout))


def test_the_first_token_learns_too() -> None:
    """If id 0 were a padding token, its embedding would never be learned. In these texts it marks the end of a text."""
    model = build_model(small_recipe("llama"))
    assert model.get_input_embeddings().padding_idx is None


def test_padding_and_first_tokens_have_no_loss() -> None:
    assert loss_units_in(rows_of(np.array([3]), tokens=TOKENS, context=10)) == 4
    assert loss_units_in(rows_of(np.array([0, 2]), tokens=TOKENS, context=10)) == 18


SHAPES = [
    Model(family="gpt2", layers=3, width=48, heads=4, context=40),
    Model(family="llama", layers=3, width=48, heads=4, context=40),
    Model(family="llama", layers=2, width=50, heads=5, context=24),
    Model(family="llama", layers=3, width=48, heads=6, kv_heads=2, context=40),
    Model(family="qwen3", layers=3, width=48, heads=4, context=40),
    Model(family="qwen3", layers=2, width=64, heads=4, kv_heads=1, context=40),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vocab", [300, 5000])
def test_parameters_are_counted_exactly(shape: Model, vocab: int) -> None:
    recipe = checked(CausalLM(model=shape, vocab=vocab))
    assert recipe.parameters() == layout_of(build_model(recipe)).elements


def test_fewer_key_heads_are_asked_for() -> None:
    model: Any = build_model(CausalLM(model=SHAPES[3], vocab=300))
    assert model.config.num_key_value_heads == 2
    assert model.model.layers[0].self_attn.k_proj.weight.shape == (16, 48)


@pytest.mark.parametrize(
    ("family", "architecture"), [("llama", gguf.MODEL_ARCH.LLAMA), ("qwen3", gguf.MODEL_ARCH.QWEN3)]
)
def test_each_tensor_of_a_release_has_one_name_in_gguf(family: str, architecture: gguf.MODEL_ARCH) -> None:
    recipe = small_recipe(family)
    names = [name for name, _ in build_model(recipe).named_parameters()]
    known = gguf.get_tensor_name_map(architecture, recipe.model.layers)
    mapped = [known.get_name(name, try_suffixes=(".weight", ".bias")) for name in names]
    assert None not in mapped
    assert len(set(mapped)) == len(names)

"""The model of a recipe, its flat order, and its first values."""

import pytest
import torch

from peer_agent.training.model import build_model, layout_of, parameters_of
from tests.training.commits import small_recipe


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_layout_tiles_the_vector(family: str) -> None:
    model = build_model(small_recipe(family))
    layout = layout_of(model)
    position = 0
    for piece, parameter in parameters_of(model, layout):
        assert (piece.start, piece.shape) == (position, tuple(parameter.shape))
        position = piece.stop
    assert position == layout.elements == sum(p.numel() for p in model.parameters())


def test_tied_embeddings_are_there_once() -> None:
    names = [piece.name for piece in layout_of(build_model(small_recipe("gpt2"))).pieces]
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names


@pytest.mark.parametrize("family", ["gpt2", "llama"])
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


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_nothing_is_dropped_out(family: str) -> None:
    model = build_model(small_recipe(family)).train()
    ids = torch.arange(24)[None]
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    assert all(module.p == 0 for module in model.modules() if isinstance(module, torch.nn.Dropout))


def test_the_first_token_learns_too() -> None:
    """A padding token would keep its embedding from learning; id 0 is the end of a text here."""
    model = build_model(small_recipe("llama"))
    assert model.get_input_embeddings().padding_idx is None

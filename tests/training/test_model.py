"""The flat order of a model's parameters."""

import pytest

from peer_agent.recipes.causal_lm.training import build_model
from peer_agent.training.model import layout_of, parameters_of
from tests.training.commits import small_recipe


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
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

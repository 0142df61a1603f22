"""The computed shape of a trunk matches the model that transformers builds."""

from typing import get_args

import pytest
import torch
from transformers import ResNetModel

from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.recipes.images.resnet import config_of
from peer_agent.recipes.images.trunk import Family, Trunk, convolutions_of


@pytest.mark.parametrize("side", [8, 33])
@pytest.mark.parametrize("family", get_args(Family))
def test_convolutions_are_those_of_the_model(family: Family, side: int) -> None:
    recipe = ImageClassification(trunk=Trunk(family=family, width=8), side=side)
    model = ResNetModel(config_of(recipe))
    seen: list[tuple[int, int, int, int]] = []

    def note(module: torch.nn.Module, _: object, out: torch.Tensor) -> None:
        assert isinstance(module, torch.nn.Conv2d)
        seen.append((module.kernel_size[0], module.in_channels, module.out_channels, out.shape[-1]))

    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(note)
    made = model(pixel_values=torch.zeros(2, 3, side, side)).pooler_output
    layers = [*convolutions_of(recipe.trunk, side)]
    assert sorted(seen) == sorted(tuple(layer) for layer in layers)
    assert sum(layer.parameters for layer in layers) == sum(p.numel() for p in model.parameters())
    assert made.shape == (2, recipe.trunk.features, 1, 1)


def test_resnet_50_has_the_parameters_of_the_paper() -> None:
    recipe = ImageClassification(
        trunk=Trunk(family="resnet50", width=64), classes=tuple(f"class {n}" for n in range(1000))
    )
    assert recipe.parameters() == 25_557_032

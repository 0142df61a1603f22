"""If memory is short, a trainer computes in smaller parts, and the result stays the same."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.recipes.images.pixels import Images
from peer_agent.recipes.images.trunk import Trunk
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.recipes.masked_lm import Model as Masked
from peer_agent.recipes.text.tokens import Sentences
from peer_agent.recipes.training import training_of
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from tests.training.commits import RUN, small_recipe, some_shards, take_units

UNITS = (Unit(0, 0, 0, 6), Unit(0, 1, 120, 126))


class Small:
    """A stand-in for a recipe's training functions on a device with room for `most` samples, or for more if layers are
    recomputed."""

    def __init__(self, kind: Any, most: int, *, if_recomputed: bool = False) -> None:
        self.kind, self.most, self.if_recomputed = kind, most, if_recomputed
        self.trainer: Trainer | None = None
        self.asked: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kind, name)

    def summed_loss(self, recipe: Recipe, model: Any, batch: Any, device: torch.device) -> torch.Tensor:
        self.asked.append(len(batch[0]))
        assert self.trainer is not None
        if len(batch[0]) > self.most and not (self.if_recomputed and self.trainer.recomputes):
            raise torch.OutOfMemoryError("CUDA out of memory")
        loss: torch.Tensor = self.kind.summed_loss(recipe, model, batch, device)
        return loss


def on(trainer: Trainer, most: int, **more: bool) -> Small:
    small = Small(trainer._kind, most, **more)
    trainer._kind, small.trainer = small, trainer
    return small


def trainer_of() -> Trainer:
    return Trainer(Replica(small_recipe()), RUN, some_shards())


def test_half_as_many_samples_at_a_time_until_they_fit() -> None:
    whole, trainer = take_units(trainer_of(), UNITS), trainer_of()
    small = on(trainer, 2)
    taken = take_units(trainer, UNITS)
    assert trainer.at_once == 1, "3 of 6 are too many, and half of 3 are 1"
    assert small.asked[:3] == [6, 3, 1]
    assert not trainer.recomputes
    assert taken.units == whole.units
    np.testing.assert_allclose(taken.gradient_sum, whole.gradient_sum, rtol=1e-4, atol=1e-4)


def test_then_layers_are_computed_again() -> None:
    whole, trainer = take_units(trainer_of(), UNITS), trainer_of()
    on(trainer, 0, if_recomputed=True)
    taken = take_units(trainer, UNITS)
    assert trainer.recomputes
    np.testing.assert_allclose(taken.gradient_sum, whole.gradient_sum, rtol=1e-4, atol=1e-4)


def test_where_neither_helps_it_has_a_number() -> None:
    trainer = trainer_of()
    small = on(trainer, 0)
    with pytest.raises(Problem, match="E107"):
        trainer.compute(UNITS[0])
    assert len(small.asked) == 4, "6, 3, 1 samples, and 1 with layers computed again"


def test_another_problem_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, asked = trainer_of(), []

    def lost(*_: Any) -> float:
        asked.append(1)
        raise Problem.of("E312", reason="a shard is broken")

    monkeypatch.setattr(trainer, "_filled", lost)
    with pytest.raises(Problem, match="E312"):
        trainer.compute(UNITS[0])
    assert asked == [1]


def images() -> Images:
    chance = np.random.default_rng(1)
    return Images(chance.integers(0, 255, (8, 16, 16, 3), dtype=np.uint8), np.arange(8, dtype=np.uint16) % 2)


def sentences() -> Sentences:
    tokens = np.random.default_rng(1).integers(5, 300, 4000).astype(np.uint16)
    return Sentences(tokens, np.arange(0, 4000, 11, dtype=np.uint32))


def pictures() -> ImageClassification:
    return ImageClassification(trunk=Trunk(family="resnet10", width=8), side=16, micro_batch=4, classes=("a", "b"))


def masked() -> MaskedLM:
    return MaskedLM(model=Masked(family="albert", layers=3, width=32, heads=4, context=24), vocab=300)


CASES = {
    "gpt2": (small_recipe(), some_shards()[0]),
    "llama": (small_recipe("llama"), some_shards()[0]),
    "albert": (
        MaskedLM(model=Masked(family="albert", layers=3, width=32, heads=4, context=24), vocab=300),
        sentences(),
    ),
    "resnet": (pictures(), images()),
}


def test_a_unit_that_is_whole_is_not_cut() -> None:
    recipe, shard = CASES["resnet"]
    trainer = Trainer(Replica(recipe), RUN, [shard])
    small = on(trainer, 0)
    with pytest.raises(Problem, match="E107"):
        trainer.compute(Unit(0, 0, 0, 4))
    assert small.asked == [4, 4]


@pytest.mark.parametrize("name", CASES)
def test_layers_computed_again_are_the_same_and_keep_less(name: str) -> None:
    recipe, shard = CASES[name]
    kept: dict[bool, int] = {}
    gradients = {}
    for recomputes in (False, True):
        trainer = Trainer(Replica(recipe), RUN, [shard], recomputes=recomputes)
        assert trainer.recomputes == recomputes
        held: set[int] = set()
        sizes: list[int] = []

        def keep(tensor: torch.Tensor, held: set[int] = held, sizes: list[int] = sizes) -> torch.Tensor:
            if tensor.data_ptr() not in held and not isinstance(tensor, torch.nn.Parameter):
                held.add(tensor.data_ptr())
                sizes.append(tensor.numel())
            return tensor

        batch = training_of(recipe).batch_of(recipe, shard, np.arange(4), _place())
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = trainer._kind.summed_loss(recipe, trainer.replica.model, batch, trainer.replica.device)
        kept[recomputes] = sum(sizes)
        del loss
        gradients[recomputes] = take_units(trainer, [Unit(0, 0, 0, 4)]).gradient_sum
    np.testing.assert_array_equal(gradients[True], gradients[False])
    assert kept[True] < kept[False]


def _place() -> Any:
    from peer_agent.recipes.training import Place

    return Place(RunId("ab" * 16), 0, 0)

"""Reduced precision: gradients stay nearly the same, and nothing else loses bits."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from peer_agent.protocol.log.records import Unit
from peer_agent.recipes import masked_lm
from peer_agent.recipes.image_ssl import ImageSSL, training
from peer_agent.recipes.image_ssl.training import cut
from peer_agent.recipes.images.pixels import Images
from peer_agent.recipes.images.trunk import Trunk
from peer_agent.recipes.masked_lm.training import build_model as build_masked
from peer_agent.recipes.training import Place
from peer_agent.training import precision
from peer_agent.training.loop import Trainer
from peer_agent.training.precision import FIRST, GROWS_AFTER, MOST, TRIES, LossScale, half_of, is_faster_in_bf16
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed, NonFinite
from tests.training.commits import RUN, small_recipe, some_shards, take_units

UNITS = (Unit(0, 0, 0, 4), Unit(0, 1, 120, 126))
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def trainer_with(half: torch.dtype | None) -> Trainer:
    """Return a trainer set up as if its device were faster in `half`."""
    trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
    trainer.half, trainer._scale = half, LossScale(half)
    return trainer


class TestWhereIsItUsed:
    def test_only_where_the_recipe_says_so_and_on_gpus_always(self, monkeypatch: pytest.MonkeyPatch) -> None:
        recipe = small_recipe()
        mixed = replace(recipe, precision="mixed")
        for is_new, half in ((True, torch.bfloat16), (False, torch.float16)):
            monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *, including_emulation, new=is_new: new)
            assert half_of(mixed, CUDA) is half
            assert half_of(recipe, CUDA) is None

    @pytest.mark.parametrize(
        ("seconds", "half"), [(1.0, torch.bfloat16), (1.8, torch.bfloat16), (2.2, None), (30.0, None)]
    )
    def test_a_processor_is_tried_once(
        self, seconds: float, half: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fastest try counts: the first one takes longer, and other programs may use the CPU."""
        asked: list[torch.dtype] = []

        def product_s(dtype: torch.dtype) -> float:
            asked.append(dtype)
            slow = 50.0 if asked.count(dtype) < TRIES else 1.0
            return slow * (3.0 if dtype is torch.float32 else seconds)

        monkeypatch.setattr(precision, "_product_s", product_s)
        is_faster_in_bf16.cache_clear()
        for _ in range(2):
            assert half_of(replace(small_recipe(), precision="mixed"), CPU) is half
            assert half_of(small_recipe(), CPU) is None
        assert len(asked) == 2 * TRIES
        is_faster_in_bf16.cache_clear()

    def test_a_product_is_one_of_that_kind(self) -> None:
        assert precision._product_s(torch.bfloat16) > 0

    @pytest.mark.parametrize("is_faster", [True, False])
    def test_a_replica_of_such_a_recipe_is_float32(self, is_faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(precision, "is_faster_in_bf16", lambda: is_faster)
        trainer = Trainer(Replica(replace(small_recipe(), precision="mixed")), RUN, some_shards())
        assert trainer.half is (torch.bfloat16 if is_faster else None)
        assert trainer.replica.parameters.dtype == torch.float32


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_gradients_are_about_the_same_and_float32(half: torch.dtype) -> None:
    whole, trainer = take_units(trainer_with(None), UNITS), trainer_with(half)
    before = trainer.replica.digest()
    less = take_units(trainer, UNITS)
    assert less.gradient_sum.dtype == np.float32
    apart = np.linalg.norm(less.gradient_sum - whole.gradient_sum) / np.linalg.norm(whole.gradient_sum)
    assert 1e-5 < apart < 0.02, "in fewer bits, and right"
    assert less.loss_sum == pytest.approx(whole.loss_sum, rel=0.01)
    assert trainer.replica.digest() == before


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize(("is_faster", "is_long"), [(False, False), (True, False), (True, True)])
def test_a_processor_attends_to_short_samples_in_float32(
    is_faster: bool, is_long: bool, recomputes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, attention in bf16 takes several times as long. The rule also covers layers recomputed in the backward
    pass.
    """
    monkeypatch.setattr(precision, "is_faster_in_bf16", lambda: is_faster)
    context = small_recipe().model.context
    monkeypatch.setattr(precision, "LONG", context if is_long else context + 1)
    attend, attended, multiplied = torch.nn.functional.scaled_dot_product_attention, [], []

    def noted(query: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        attended.append(torch.is_autocast_enabled("cpu") or query.dtype)
        return attend(query, *given, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    trainer = Trainer(Replica(replace(small_recipe(), precision="mixed")), RUN, some_shards(), recomputes=recomputes)
    for layer in trainer.replica.model.modules():
        layer.register_forward_hook(lambda _, given, found: multiplied.append(getattr(found, "dtype", None)))
    less = take_units(trainer, UNITS)
    assert set(attended) == {True if is_long else torch.float32}
    assert (torch.bfloat16 in multiplied) == is_faster
    whole = take_units(trainer_with(None), UNITS)
    apart = np.linalg.norm(less.gradient_sum - whole.gradient_sum) / np.linalg.norm(whole.gradient_sum)
    assert apart < 0.02


def test_padding_is_not_attended_to_either_way() -> None:
    shape = masked_lm.Model(layers=1, width=32, heads=4, context=35, embedding=16)
    model: Any = build_masked(masked_lm.MaskedLM(model=shape, vocab=300))
    ids, mask = torch.arange(5, 25).view(2, 10), torch.ones(2, 10, dtype=torch.int64)
    unpadded = model.albert(ids[:, :6]).last_hidden_state
    mask[:, 6:] = 0
    precision.widen_attention(model)
    assert model.config._attn_implementation == precision.WIDE
    assert torch.allclose(model.albert(ids, attention_mask=mask).last_hidden_state[:, :6], unpadded, atol=1e-5)
    assert not torch.allclose(model.albert(ids).last_hidden_state[:, :6], unpadded, atol=1e-5)


def test_swav_cuts_its_crops_and_assigns_them_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision, a machine's crops and assignments would depend on its device."""
    chance = torch.Generator().manual_seed(1)
    images = torch.rand(2, 3, 16, 16, generator=chance)
    crops = torch.tensor([[0.1, 0.2, 0.5, 0.6, 1, 1.2, 0.9, 1.1, 0.05, 0, 0.004]] * 2)
    alone = cut(images, crops, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(cut(images, crops, 8), alone)
    recipe = ImageSSL(trunk=Trunk(family="resnet10", width=8), side=32, micro_batch=2, queue=1)
    shard, seen = Images(np.full((2, 32, 32, 3), 99, np.uint8), np.zeros(2, np.uint16)), []
    model, whole = training.build_model(recipe), training.assignments

    def assignments(of: ImageSSL, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores.dtype)
        return whole(of, scores)

    def log_softmax(scores: torch.Tensor, dim: int) -> torch.Tensor:
        seen.append(scores.dtype)
        return scores.log_softmax(dim)

    monkeypatch.setattr(training, "assignments", assignments)
    monkeypatch.setattr(torch.nn.functional, "log_softmax", log_softmax)
    batch = training.batch_of(recipe, shard, np.arange(2), Place(RUN, 0, 0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        training.summed_loss(recipe, model, batch, torch.device("cpu"))
    assert set(seen) == {torch.float32}


class TestScale:
    def test_what_overflows_is_computed_with_a_smaller_one(self) -> None:
        trainer = trainer_with(torch.float16)
        trainer._scale.value = 2.0**40  # the gradients of a loss with this scale are too large for fp16
        done = trainer.compute(UNITS[0])
        assert isinstance(done, Computed)
        assert 1 < trainer._scale.value < 2.0**40
        whole = trainer_with(None)
        assert isinstance(whole.compute(UNITS[0]), Computed)
        apart = float((trainer._fresh - whole._fresh).norm() / whole._fresh.norm())
        assert apart < 0.02

    def test_a_loss_that_is_no_number_does_not_cost_it(self) -> None:
        trainer = trainer_with(torch.float16)
        trainer.replica.parameters.fill_(math.nan)
        assert isinstance(trainer.compute(UNITS[0]), NonFinite)
        assert trainer._scale.value == FIRST

    def test_it_grows_while_all_is_well_and_has_bounds(self) -> None:
        scale = LossScale(torch.float16)
        for _ in range(GROWS_AFTER - 1):
            scale.accept()
        assert scale.halve()
        for _ in range(GROWS_AFTER - 1):
            scale.accept()
        assert scale.value == FIRST / 2, "so many in a row are needed"
        scale.accept()
        assert scale.value == FIRST
        for _ in range(GROWS_AFTER * 20):
            scale.accept()
        assert scale.value == MOST
        while scale.halve():
            pass
        assert scale.value == 1

    @pytest.mark.parametrize("half", [None, torch.bfloat16])
    def test_where_it_is_not_needed_it_stays_one(self, half: torch.dtype | None) -> None:
        scale = LossScale(half)
        for _ in range(GROWS_AFTER):
            scale.accept()
        assert not scale.halve()
        assert scale.value == 1

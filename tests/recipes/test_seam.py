"""Requirements on every recipe, including one in a test file (`docs/adding-a-recipe.md`)."""

import importlib
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from demo.recipes import digits_tar
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.card import CardFacts
from peer_agent.publishing.release import MODEL_FILES, make_release
from peer_agent.recipes import KINDS
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.causal_lm import Model as CausalModel
from peer_agent.recipes.finetune_lora import FinetuneLoRA
from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.recipes.image_ssl import ImageSSL
from peer_agent.recipes.images.trunk import Trunk
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.recipes.masked_lm import Model as MaskedModel
from peer_agent.recipes.preparation import parse_preparation
from peer_agent.recipes.training import Place, model_of, training_of
from peer_agent.site_work.evaluate import evaluate
from peer_agent.training.model import layout_of
from peer_agent.training.replica import Replica
from runs.datasets.services import preparation_of
from tests.publishing.texts import docstrings
from tests.recipes.bigram import Bigram
from tests.recipes.finetune_lora.small_base import model_folder, zipped

HERE = Place(RunId("ab" * 16), 1, 0)
CPU = torch.device("cpu")
SMALL: list[Recipe] = [
    CausalLM(model=CausalModel(layers=1, width=32, heads=2, context=32), vocab=400),
    MaskedLM(model=MaskedModel(layers=2, width=32, heads=2, context=32, embedding=16), vocab=400),
    ImageClassification(trunk=Trunk(family="resnet10", width=8), micro_batch=5),
    ImageSSL(trunk=Trunk(family="resnet10", width=8), micro_batch=5, queue=2),
    FinetuneLoRA(rank=2, context=32),
    Bigram(context=32, vocab=400),
]
NAMES = [recipe.objective for recipe in SMALL]


def test_every_kind_is_tried_here() -> None:
    assert set(NAMES) == KINDS.keys()


@pytest.fixture(scope="module", params=SMALL, ids=NAMES)
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """Return a recipe, and a folder with text or images prepared for it."""
    recipe: Recipe = request.param
    folder = tmp_path_factory.mktemp(recipe.objective)
    content = {"text": docstrings()[:60_000].encode(), "images": digits_tar()}[recipe.material.name]
    (folder / "file").write_bytes(content)
    preparation = parse_preparation(preparation_of(recipe))
    assert preparation == recipe.preparation()
    base = {"base": zipped(model_folder(folder / "brought"))} if preparation.material.adapts else {}
    made = importlib.import_module(preparation.module).prepare(folder / "file", folder, preparation, **base)
    fitted = recipe.fitted(msgspec.to_builtins(made))
    assert fitted.preparation() == preparation, "what was found is no reason to prepare anew"
    assert not any(getattr(fitted, name) in (None, ()) for name in recipe.from_data)
    return fitted, folder


def test_a_batch_is_its_rows(prepared: tuple[Recipe, Path]) -> None:
    recipe, folder = prepared
    kind = training_of(recipe)
    shard = kind.load_shard(next((folder / "shards").iterdir()))
    samples = np.arange(recipe.samples_in(kind.size_of(shard)))[-5:]
    batch, model = kind.batch_of(recipe, shard, samples, HERE), model_of(recipe, folder / MODEL_FILES)
    rows = [kind.batch_of(recipe, shard, samples[at : at + 1], HERE) for at in range(5)]
    for at, row in enumerate(rows):
        assert all(np.array_equal(part[at : at + 1], alone) for part, alone in zip(batch, row, strict=True))
    units = kind.loss_units_in(batch)
    assert units == sum(map(kind.loss_units_in, rows))
    fewest, most = recipe.loss_units_in(5)
    assert 0 < fewest <= units <= most
    if recipe.unit_is_whole:
        return
    whole, *losses = (float(kind.summed_loss(recipe, model, part, CPU).detach()) for part in (batch, *rows))
    assert whole == pytest.approx(sum(losses), rel=1e-4)


def test_a_shard_is_as_large_as_is_said(prepared: tuple[Recipe, Path]) -> None:
    recipe, folder = prepared
    kind = training_of(recipe)
    for path in (folder / "shards").iterdir():
        assert path.stat().st_size <= recipe.shard_bytes(kind.size_of(kind.load_shard(path)))


def test_fresh_model_is_reproducible_and_as_large_as_stated(prepared: tuple[Recipe, Path]) -> None:
    recipe, folder = prepared
    first = Replica(recipe, files=folder / MODEL_FILES)
    torch.manual_seed(1)
    assert Replica(recipe, files=folder / MODEL_FILES).digest() == first.digest()
    assert recipe.parameters() == pytest.approx(layout_of(first.model).elements, rel=0.1)


def test_release_describes_itself_and_held_out_data_are_measured(prepared: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, folder = prepared
    files, heldout = folder / MODEL_FILES, folder / "heldout.safetensors"
    Replica(recipe, files=files).save(tmp_path / "state.safetensors")
    measured = evaluate(recipe=recipe, snapshot=tmp_path / "state.safetensors", heldout=heldout, files=files)
    assert measured.units > 100
    facts = CardFacts(slug="a-run", title="A run", steps=1, loss=5.5, heldout_loss=measured.loss)
    snapshot, out = tmp_path / "state.safetensors", tmp_path / "out"
    released = make_release(recipe=recipe, snapshot=snapshot, data=folder, out=out, facts=facts)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert recipe.summary()[1:] in card
    assert recipe.usage('"a-run"') in card
    assert f"{measured.loss:.3f} nats per {recipe.loss_unit[0]}" in card
    assert {file.name for file in released.files} == {path.name for path in out.iterdir()}


def test_whoever_reads_recipes_loads_no_torch() -> None:
    """The site reads a recipe on every page, and must not load torch to do so."""
    code = "import sys, peer_agent.recipes; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_own_recipe_is_known_to_every_process_told_of_it() -> None:
    code = 'from peer_agent.recipes import parse_recipe as p; print(p(\'{"objective": "bigram"}\').summary())'
    environment = {"MANYHANDS_RECIPES": "tests.recipes.bigram", "PATH": ""}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == replace(Bigram()).summary() + "\n"

"""A release loads with its library's own classes, offline, and names its origin."""

import hashlib
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.card import CardFacts
from peer_agent.publishing.release import FRAME, Released, loss_curve, make_release
from peer_agent.publishing.tokenizer import save_tokenizer, train_tokenizer
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.training.replica import Replica
from tests.publishing.texts import docstrings
from tests.training.commits import small_recipe

FACTS = CardFacts(slug="small-run", title="A small run", steps=1, loss=5.5)


def release_of(recipe: CausalLM, folder: Path) -> Released:
    save_tokenizer(train_tokenizer([docstrings()[:20_000]], TextPreparation(recipe.vocab)), folder / "tokenizer")
    Replica(recipe).save(folder / "snapshot.safetensors")
    return make_release(
        recipe=recipe,
        snapshot=folder / "snapshot.safetensors",
        data=folder,
        out=folder / "release",
        facts=FACTS,
    )


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_loads_and_writes_as_trained(family: str, tmp_path: Path) -> None:
    recipe = small_recipe(family)
    released = release_of(recipe, tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "release", local_files_only=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "release", local_files_only=True)
    ids = tokenizer("Many hands", return_tensors="pt")
    assert torch.equal(model(**ids).logits, Replica(recipe).model(**ids).logits)
    assert model.generate(**ids, max_length=24).shape[1] <= 24
    assert released.sample


def test_every_file_is_listed_with_its_digest(tmp_path: Path) -> None:
    released = release_of(small_recipe(), tmp_path)
    out = tmp_path / "release"
    assert {file.name for file in released.files} == {path.name for path in out.iterdir()}
    for file in released.files:
        content = (out / file.name).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    lines = (out / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    listed = {file.name: file.sha256 for file in released.files if file.name not in {"SHA256SUMS", released.archive}}
    assert sums == listed


def test_the_archive_is_the_folder(tmp_path: Path) -> None:
    released = release_of(small_recipe(), tmp_path)
    assert released.archive == "small-run.zip"
    with zipfile.ZipFile(tmp_path / "release" / released.archive) as archive:
        names = {f"small-run/{file.name}" for file in released.files if file.name != released.archive}
        assert set(archive.namelist()) == names
        for name in names:
            assert archive.read(name) == (tmp_path / "release" / name.partition("/")[2]).read_bytes()


def test_the_same_run_gives_the_same_release(tmp_path: Path) -> None:
    one, other = (release_of(small_recipe(), tmp_path / name) for name in ("one", "other"))
    assert one == other


def test_only_the_small_files_hold_code_for_people(tmp_path: Path) -> None:
    """A release contains safetensors only: no remote code and no pickle."""
    released = release_of(small_recipe(), tmp_path)
    suffixes = {Path(file.name).suffix for file in released.files}
    assert suffixes == {".md", ".json", ".safetensors", ".zip", ""}
    assert "auto_map" not in (tmp_path / "release" / "config.json").read_text()


def test_a_snapshot_of_another_model_has_a_number(tmp_path: Path) -> None:
    release_of(small_recipe("llama"), tmp_path)
    with pytest.raises(Problem, match="E310"):
        make_release(
            recipe=small_recipe("gpt2"),
            snapshot=tmp_path / "snapshot.safetensors",
            data=tmp_path,
            out=tmp_path / "release",
            facts=FACTS,
        )


LOSSES = st.lists(st.floats(1e-3, 20), min_size=2, max_size=60)


@given(LOSSES, st.none() | st.floats(1e-3, 20))
def test_everything_is_within_the_frame(losses: list[float], unigram: float | None) -> None:
    picture = ET.fromstring(loss_curve(list(enumerate(losses, 1)), unigram))
    line = next(part for part in picture.iter() if part.tag.endswith("polyline")).attrib["points"]
    points = [tuple(map(float, pair.split(","))) for pair in line.split()]
    assert len(points) == len(losses)
    assert all(0 <= x <= FRAME.width and 0 <= y <= FRAME.height for x, y in points)
    assert f"to {losses[-1]:.2f} at step {len(losses)}" in picture.attrib["aria-label"]
    assert ("token frequencies alone" in "".join(picture.itertext())) == (unigram is not None)


def test_what_is_not_a_number_is_left_out() -> None:
    picture = loss_curve([(1, float("nan")), (2, 5.0), (3, 4.0), (4, float("nan"))], None)
    assert "nan" not in picture
    assert "Loss from 5.00 at step 2 to 4.00 at step 3." in picture

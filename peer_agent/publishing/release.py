"""A release: everything people need to use and to check a model, as a folder and as one archive of it."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.errors.disk import disk_errors
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.card import CURVE, CardFacts, write_card
from peer_agent.publishing.curve import loss_curve
from peer_agent.publishing.text.tokenizer import END_OF_TEXT, copy_tokenizer
from peer_agent.training.model import build_model, layout_of, parameters_of
from peer_agent.training.snapshots import read_state

NAMES = (
    "README.md",
    "config.json",
    "generation_config.json",
    CURVE,
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
SAMPLE_TOKENS = 120
SAMPLE_SEED = 0
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date an archive knows, so that its bytes depend on its files alone


class ReleasedFile(Struct, frozen=True):
    """A file of a release: bytes, and sha256 in hexadecimal."""

    name: str
    size: int
    sha256: str


class Released(Struct, frozen=True, kw_only=True):
    """`files` lie in the release's folder; `archive`, one of them, holds the others; `sample` is its writing."""

    files: list[ReleasedFile]
    archive: str
    sample: str


def make_release(*, recipe: Recipe, snapshot: Path, tokenizer: Path, out: Path, facts: CardFacts) -> Released:
    """Write a release into the folder `out`. Raises Problem E106, E310 for a snapshot of another model."""
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        model = model_from(recipe, snapshot)
        _write_files(model, recipe, tokenizer, out, facts)
        sample = write_sample(out)
        files = _with_sums(out)
        archive = _archive([out / file.name for file in files], out / f"{facts.slug}.zip")
    return Released(files=[*files, _described(archive)], archive=archive.name, sample=sample)


def model_from(recipe: Recipe, snapshot: Path) -> PreTrainedModel:
    """The model of a recipe with a snapshot's parameters. Raises Problem E310 for a snapshot of another model."""
    model, state = build_model(recipe), read_state(snapshot)
    layout = layout_of(model)
    if state.layout != layout:
        raise Problem.of("E310", step=state.step)
    flat = torch.from_numpy(state.parameters)
    with torch.no_grad():
        for piece, parameter in parameters_of(model, layout):
            parameter.copy_(piece.of(flat))
    return model


def _write_files(model: PreTrainedModel, recipe: Recipe, tokenizer: Path, out: Path, facts: CardFacts) -> None:
    settings: Any = model.generation_config
    settings.update(do_sample=True, temperature=0.8, top_k=50, pad_token_id=0, max_length=recipe.model.context)
    model.save_pretrained(out)
    copy_tokenizer(tokenizer, out, context=recipe.model.context)
    if facts.has_curve:
        (out / CURVE).write_text(loss_curve(facts.points, facts.unigram_entropy), encoding="utf-8")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    (out / "README.md").write_text(write_card(recipe, facts, parameters=parameters), encoding="utf-8")


def write_sample(folder: Path) -> str:
    """A short text by the released model, loaded as anyone would load it; begins from nothing, the same each time."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    start = tokenizer(END_OF_TEXT, return_tensors="pt")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SAMPLE_SEED)
        length = min(SAMPLE_TOKENS, model.config.max_position_embeddings)
        tokens = model.generate(**start, max_length=length)
    text: str = tokenizer.decode(tokens[0], skip_special_tokens=True)
    return text.strip()


def _with_sums(out: Path) -> list[ReleasedFile]:
    files = [_described(out / name) for name in NAMES if name != CURVE or (out / name).exists()]
    (out / "SHA256SUMS").write_text("".join(f"{file.sha256}  {file.name}\n" for file in files))
    return [*files, _described(out / "SHA256SUMS")]


def _described(path: Path) -> ReleasedFile:
    with path.open("rb") as file:
        return ReleasedFile(path.name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _archive(files: list[Path], archive: Path) -> Path:
    """A zip of the files in a folder of its name. Stored, since weights do not shrink and compressors differ."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as zipped:
        for path in files:
            entry = zipfile.ZipInfo(f"{archive.stem}/{path.name}", EPOCH)
            entry.external_attr = 0o644 << 16
            entry.file_size = path.stat().st_size
            with path.open("rb") as source, zipped.open(entry, "w") as target:
                while block := source.read(1 << 20):
                    target.write(block)
    return archive

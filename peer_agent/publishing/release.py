"""Releases: everything that people need to use and verify a model, as a folder and as an archive."""

import hashlib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from msgspec import Struct

from peer_agent.plot import Frame, Loss, lay_out, standing_svg
from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.card import CURVE, CardFacts, write_card
from peer_agent.recipes.training import NO_FILES, model_of, training_of
from peer_agent.training.model import layout_of, parameters_of
from peer_agent.training.snapshots import read_state

FRAME = Frame(720, 300, left=44, right=16, top=28, bottom=32)


def loss_curve(points: Sequence[Loss], unigram: float | None, *, unit: str = "token") -> str:
    """Return an SVG of the loss curve. `points` are in step order, and at least one is finite. `unigram`: a loss to
    draw as a dotted line. `unit`: the unit in "nats per unit", such as "token".
    """
    layout = lay_out(points, unigram, FRAME, note="token frequencies alone:")
    assert layout is not None, "a curve has a loss that is a number"
    (first, begin), (last, end) = layout.points[0], layout.points[-1]
    summary = f"Loss from {begin:.2f} at step {first} to {end:.2f} at step {last}."
    return standing_svg(layout, summary, f"Loss in nats per {unit}, by step")


MODEL_FILES = "model"  # folder in the prepared data with the files that a model is built from
EPOCH = (1980, 1, 1, 0, 0, 0)  # a zip's earliest date, so that the archive's bytes depend only on its files


class ReleasedFile(Struct, frozen=True):
    """A file in a release. `size` is in bytes, `sha256` in hexadecimal."""

    name: str
    size: int
    sha256: str


class Released(Struct, frozen=True, kw_only=True):
    """A finished release. `files` includes the `archive`, which contains the other files."""

    files: list[ReleasedFile]
    archive: str
    sample: str


def make_release(*, recipe: Recipe, snapshot: Path, data: Path, out: Path, facts: CardFacts) -> Released:
    """Write a release to the folder `out`. `data`: the run's prepared data. Raises Problem E106 if the disk fails, or
    E310 if the snapshot belongs to another model.
    """
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        model = model_from(recipe, snapshot, data / MODEL_FILES)
        names = _write_files(model, recipe, data, out, facts)
        sample = training_of(recipe).sample_of(out)
        files = _with_sums(out, names)
        archive = _archive([out / file.name for file in files], out / f"{facts.slug}.zip")
    return Released(files=[*files, _described(archive)], archive=archive.name, sample=sample)


def model_from(recipe: Recipe, snapshot: Path, files: Path = NO_FILES) -> torch.nn.Module:
    """Return a recipe's model with a snapshot's parameters. Raises Problem E310 if they belong to another model."""
    model, state = model_of(recipe, files), read_state(snapshot)
    layout = layout_of(model)
    if state.layout != layout:
        raise Problem.of("E310", step=state.step)
    flat = torch.from_numpy(state.parameters)
    with torch.no_grad():
        for piece, parameter in parameters_of(model, layout):
            parameter.copy_(piece.of(flat))
    return model


def _write_files(model: torch.nn.Module, recipe: Recipe, data: Path, out: Path, facts: CardFacts) -> list[str]:
    names = ["README.md", *training_of(recipe).save_model(recipe, model, data, out)]
    if facts.has_curve:
        names.append(CURVE)
        (out / CURVE).write_text(
            loss_curve(facts.points, facts.unigram_entropy, unit=recipe.loss_unit[0]), encoding="utf-8"
        )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    (out / "README.md").write_text(write_card(recipe, facts, parameters=parameters), encoding="utf-8")
    return sorted(names)


def _with_sums(out: Path, names: Iterable[str]) -> list[ReleasedFile]:
    files = [_described(out / name) for name in names]
    (out / "SHA256SUMS").write_text("".join(f"{file.sha256}  {file.name}\n" for file in files))
    return [*files, _described(out / "SHA256SUMS")]


def _described(path: Path) -> ReleasedFile:
    with path.open("rb") as file:
        return ReleasedFile(path.name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _archive(files: list[Path], archive: Path) -> Path:
    """Zip the files without compression. Weights barely shrink, and different compressors give different bytes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as zipped:
        for path in files:
            entry = zipfile.ZipInfo(f"{archive.stem}/{path.name}", EPOCH)
            entry.external_attr = 0o644 << 16
            entry.file_size = path.stat().st_size
            with path.open("rb") as source, zipped.open(entry, "w") as target:
                while block := source.read(1 << 20):
                    target.write(block)
    return archive

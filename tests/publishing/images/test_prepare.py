"""Preparing images: from an archive to shards, whatever order it was packed in."""

from pathlib import Path

import numpy as np
import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.images import prepare as preparing
from peer_agent.publishing.images.prepare import PreparedImages, prepare
from peer_agent.recipes.images.pixels import load_shard, shards_of
from peer_agent.recipes.images.preparation import ImagePreparation
from tests.publishing.images.tars import Colour, png, tar

COLOURS: dict[str, Colour] = {"red": (250, 0, 0), "green": (0, 250, 0), "blue": (0, 0, 250)}
IMAGES = {
    f"set/{name}/{n}.png": png((r - 5 * n if r else 0, g - 5 * n if g else 0, b - 5 * n if b else 0))
    for n in range(20)
    for name, (r, g, b) in COLOURS.items()
}


def prepared(folder: Path, files: dict[str, bytes] = IMAGES, side: int = 8) -> PreparedImages:
    folder.mkdir(exist_ok=True)
    return prepare(tar(folder / "set.tar", files), folder / "out", ImagePreparation(side))


def test_every_image_is_there_once_with_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "SHARD_IMAGES", 25)
    made = prepared(tmp_path)
    assert made.classes == ["blue", "green", "red"]
    assert [shard.size for shard in made.shards] == [25, 25, 4]
    assert (made.size, made.heldout.size if made.heldout else None) == (54, 6)
    held = load_shard(tmp_path / "out" / "heldout.safetensors")
    parts = [*shards_of(tmp_path / "out" / "shards"), held]
    pixels, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    brightest = pixels[:, 4, 4].argmax(axis=1)
    assert [("red", "green", "blue")[at] for at in brightest] == [made.classes[label] for label in labels]
    assert len(np.unique(pixels.reshape(60, -1), axis=0)) == 60
    assert len({*labels[:20]}) == 3, "classes are mixed"
    names = {path.stem for path in (tmp_path / "out" / "shards").iterdir()}
    assert names == {shard.digest for shard in made.shards}
    assert made.pieces == ["blue: 20", "green: 20", "red: 20"]
    assert made.ready == "The images are ready: 54 of 3 classes."
    assert not (tmp_path / "out" / "pixels").exists()


def test_the_same_archive_gives_the_same_shards(tmp_path: Path) -> None:
    assert prepared(tmp_path / "a") == prepared(tmp_path / "b")


def test_further_archives_are_sources_of_their_own(tmp_path: Path) -> None:
    """Each has its shards and its held-out part; folders of one name are one class."""
    warm = {name: content for name, content in IMAGES.items() if "/green/" not in name}
    cold = {name: content for name, content in IMAGES.items() if "/red/" not in name}
    archives = [tar(tmp_path / f"{number}.tar", files) for number, files in enumerate((warm, cold))]
    made = prepare(archives[0], tmp_path / "both", ImagePreparation(8), archives[1:])
    assert made.classes == ["blue", "green", "red"]
    assert [(shard.size, shard.source) for shard in made.shards] == [(36, 0), (36, 1)]
    assert made.heldout is not None
    assert made.heldout.size == 8
    for shard, names in zip(made.shards, ({"blue", "red"}, {"blue", "green"}), strict=True):
        _, labels = load_shard(tmp_path / "both" / "shards" / f"{shard.digest}.safetensors")
        assert {made.classes[label] for label in labels} == names
    _, held = load_shard(tmp_path / "both" / "heldout.safetensors")
    assert {made.classes[label] for label in held[:4]} <= {"blue", "red"}
    assert {made.classes[label] for label in held[4:]} <= {"blue", "green"}


def test_files_that_are_no_images_are_counted(tmp_path: Path) -> None:
    made = prepared(tmp_path, {**IMAGES, "set/red/broken.png": b"x", "set/red/notes.txt": b"hello"})
    assert (made.skipped, made.size) == (2, 54)
    assert made.ready.endswith("2 files were no images and are left out.")
    assert made.shards == prepared(tmp_path / "without").shards


def test_few_images_are_not_held_out(tmp_path: Path) -> None:
    few = dict([*IMAGES.items()][:6])
    made = prepared(tmp_path, few)
    assert (made.size, made.heldout) == (6, None)
    assert not (tmp_path / "out" / "heldout.safetensors").exists()


def test_one_folder_is_enough_where_no_classes_are_learned(tmp_path: Path) -> None:
    red = {name: content for name, content in IMAGES.items() if "/red/" in name}
    archive = tar(tmp_path / "set.tar", red)
    made = prepare(archive, tmp_path / "out", ImagePreparation(8, fewest_classes=1))
    assert (made.size, made.classes) == (18, ["red"])
    with pytest.raises(Problem, match="E380"):
        prepare(archive, tmp_path / "other", ImagePreparation(8))


@pytest.mark.parametrize("files", [{}, {"a/1.png": b"x", "b/1.png": b"y"}, {"a/1.png": png(), "a/2.png": png()}])
def test_without_images_or_classes_nothing_is_learned(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(Problem, match="E380"):
        prepared(tmp_path, files)


def test_an_empty_file_and_too_many_pixels_or_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(Problem, match="E303"):
        prepare(tmp_path / "empty", tmp_path / "out", ImagePreparation(8))
    monkeypatch.setattr(preparing, "MOST_BYTES", 60 * 8 * 8 * 3)
    assert prepared(tmp_path / "just").size == 54
    monkeypatch.setattr(preparing, "MOST_BYTES", 59 * 8 * 8 * 3)
    with pytest.raises(Problem, match=r"E301.*side 8"):
        prepared(tmp_path / "more")
    monkeypatch.setattr(preparing, "CLASSES", 2)
    with pytest.raises(Problem, match=r"E301.*more than 2 folders"):
        prepared(tmp_path / "classes")

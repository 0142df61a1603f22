"""Preparing images: from an archive to shards that do not depend on the order of the archive's files."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from peer_agent.protocol.errors import Problem
from peer_agent.recipes.images.pixels import load_shard, shards_of
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.site_work import prepare_images
from peer_agent.site_work import prepare_images as preparing
from peer_agent.site_work.prepare_images import PreparedImages, members_of, pixels_of, prepare
from tests.site_work.tars import Colour, entry_of, png, tar


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_usual_kinds_are_read(kind: str) -> None:
    pixels = pixels_of(png((200, 30, 30), kind=kind), 4)
    assert pixels is not None
    assert pixels.shape == (4, 4, 3)
    assert np.abs(pixels.astype(int) - (200, 30, 30)).max() < 10


def test_the_middle_of_the_longer_side_is_taken() -> None:
    image = Image.new("RGB", (30, 10), "black")
    image.paste("white", (10, 0, 20, 10))
    pixels = pixels_of(encoded(image), 10)
    assert pixels is not None
    assert pixels.min() == 255


def test_what_shines_through_is_white_and_grey_has_three_colours() -> None:
    clear = pixels_of(encoded(Image.new("RGBA", (5, 5), (10, 20, 30, 0))), 5)
    grey = pixels_of(encoded(Image.new("L", (5, 5), 77)), 5)
    assert clear is not None
    assert clear.min() == 255
    assert grey is not None
    assert set(grey.flat) == {77}


def test_a_photograph_stands_upright() -> None:
    image, exif = Image.new("RGB", (4, 4), "black"), Image.Exif()
    image.paste("white", (0, 0, 4, 2))  # the upper half
    exif[0x0112] = 3  # EXIF orientation: rotated by 180 degrees
    content = io.BytesIO()
    image.save(content, "PNG", exif=exif)
    pixels = pixels_of(content.getvalue(), 4)
    assert pixels is not None
    assert pixels[0].max() == 0
    assert pixels[3].min() == 255


@pytest.mark.parametrize("content", [b"", b"no image", png()[:50], b"%!PS-Adobe-3.0 EPSF-3.0"], ids=str)
def test_what_is_no_image_is_nothing(content: bytes) -> None:
    assert pixels_of(content, 8) is None


def test_a_huge_image_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_images, "MOST_PIXELS", 99)
    assert pixels_of(png(size=(10, 10)), 8) is None
    monkeypatch.setattr(prepare_images, "MOST_PIXELS", 100)
    assert pixels_of(png(size=(10, 10)), 8) is not None


def encoded(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_files_in_folders_are_read_in_their_order(tmp_path: Path, mode: str) -> None:
    files = {"set/cat/1.png": b"one", "set/dog/2.png": b"two", "./bird/3.png": b"three", "alone.png": b"none"}
    folder = entry_of("set/empty", tarfile.DIRTYPE)
    members = [*members_of(tar(tmp_path / "a.tar", files, [folder], mode))]
    found = [(member.folder, member.name, member.content) for member in members]
    assert found == [("cat", "1.png", b"one"), ("dog", "2.png", b"two"), ("bird", "3.png", b"three")]


def test_what_a_file_system_adds_is_left_out(tmp_path: Path) -> None:
    files = {"cat/._1.png": b"fork", "__MACOSX/1.png": b"fork", ".git/x": b"x", "cat/1.png": b"one"}
    assert [member.name for member in members_of(tar(tmp_path / "a.tar", files))] == ["1.png"]


@pytest.mark.parametrize(
    "entry",
    [
        entry_of("cat/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry_of("cat/hard", tarfile.LNKTYPE, "../../x"),
        entry_of("cat/device", tarfile.CHRTYPE),
        entry_of("cat/pipe", tarfile.FIFOTYPE),
        entry_of("../cat/out.png", tarfile.REGTYPE),
        entry_of("/cat/root.png", tarfile.REGTYPE),
    ],
    ids=lambda entry: entry.name,
)
def test_what_leads_out_is_refused_by_name(tmp_path: Path, entry: tarfile.TarInfo) -> None:
    with pytest.raises(Problem, match=f"E379.*{entry.name}"):
        [*members_of(tar(tmp_path / "a.tar", {"cat/1.png": b"one"}, [entry]))]


def test_what_is_no_archive_or_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"a text, and no archive" * 100)
    with pytest.raises(Problem, match="E378"):
        [*members_of(path)]
    tar(path, {"cat/1.png": b"x" * 5000, "cat/2.png": b"y" * 5000}, mode="w:gz")
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(Problem, match="E378"):
        [*members_of(path)]


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "a.tar", {"cat/1.png": b"one", "cat/2.png": b"two!", "cat/3.png": b"six"})
    monkeypatch.setattr(prepare_images, "FILE_BYTES", 3)
    assert [member.content for member in members_of(path)] == [b"one", b"", b"six"]
    monkeypatch.setattr(prepare_images, "FILES", 2)
    with pytest.raises(Problem, match=r"E378.*more than 2 files"):
        [*members_of(path)]


def test_a_name_of_a_gigabyte_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar(tmp_path / "a.tar", {f"cat/{'x' * 3000}.png": b"one"})
    assert [len(member.name) for member in members_of(path)] == [3004]
    monkeypatch.setattr(prepare_images, "LONGEST_NAME", 2000)
    with pytest.raises(Problem, match=r"E378.*too long"):
        [*members_of(path)]


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
    """Each archive has its own shards and held-out part. Folders of the same name form one class."""
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


def test_empty_file_and_excess_pixels_or_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

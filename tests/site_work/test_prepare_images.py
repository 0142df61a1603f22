"""Preparing images: from an archive to shards that do not depend on the order of the archive's files."""

import io
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from peer_agent.protocol.errors import Problem
from peer_agent.recipes.images.pixels import Pixels, load_shard, shards_of
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.site_work import prepare_images as preparing
from peer_agent.site_work.prepare_images import PreparedImages, decoded, prepare
from tests.site_work.intake.made import codes_of
from tests.site_work.tars import Colour, png, tar


def pixels_of(content: bytes, side: int) -> Pixels | None:
    found = decoded(content, side)
    return None if found is None else found.pixels


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
    monkeypatch.setattr(preparing, "MOST_PIXELS", 99)
    assert pixels_of(png(size=(10, 10)), 8) is None
    monkeypatch.setattr(preparing, "MOST_PIXELS", 100)
    assert pixels_of(png(size=(10, 10)), 8) is not None


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", "uint16"), ("TIFF", "uint16"), ("TIFF", "int32"), ("TIFF", "f4")])
@pytest.mark.parametrize("most", [900, 30_000])
def test_more_than_8_bits_are_scaled_by_their_own_range(kind: str, dtype: str, most: int) -> None:
    values = np.linspace(100, most, 64).reshape(8, 8)
    found = decoded(encoded(Image.fromarray(values.astype(dtype)), kind), 8)
    assert found is not None
    assert found.was_scaled
    grey = (values - 100) * 255 / (most - 100)
    assert np.abs(found.pixels[:, :, 0] - grey).max() < 2
    plain = decoded(encoded(Image.fromarray(np.full((8, 8), 500, dtype)), kind), 8)
    assert plain is not None, "an image of a single colour has no range"
    assert plain.pixels.max() == 0


def png16(values: NDArray[np.uint16]) -> bytes:
    """Return a PNG of 16-bit values [height, width, channels], which Pillow cannot write."""
    height, width, channels = values.shape
    about = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = ((b"IHDR", about), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    framed = (struct.pack(">I", len(d)) + name + d + struct.pack(">I", zlib.crc32(name + d)) for name, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def tiff16(values: NDArray[np.uint16], compression: str) -> bytes:
    """Return a TIFF of 16-bit colours: one of twice as many 8-bit colours, with other numbers in its tags."""
    width = values.shape[1]
    content = encoded(Image.fromarray(values.view(np.uint8).reshape(-1, 2 * width, 3)), "TIFF", compression=compression)
    found = re.search(rb"\x00\x01[\x03\x04]\x00\x01\x00\x00\x00" + struct.pack("<I", 2 * width), content)
    assert found is not None
    patched = content[: found.end() - 4] + struct.pack("<I", width) + content[found.end() :]
    assert patched.count(struct.pack("<HHH", 8, 8, 8)) == 1
    return patched.replace(struct.pack("<HHH", 8, 8, 8), struct.pack("<HHH", 16, 16, 16))


@pytest.mark.parametrize("kind", ["RGB", "RGBA", "LA", "raw", "tiff_adobe_deflate"])
@pytest.mark.parametrize("most", [900, 60_000])
def test_colours_of_16_bits_are_scaled_by_their_own_range(kind: str, most: int) -> None:
    values = np.linspace(100, most, 12 * 12 * 3).reshape(12, 12, 3)
    if kind == "LA":
        values = values[:, :, :1]
    pixels = values.astype("<u2")
    if "A" in kind:
        pixels = np.dstack([pixels, np.full((12, 12), 65535, "<u2")])
    found = decoded(tiff16(pixels, kind) if kind.islower() else png16(pixels), 12)
    assert found is not None
    assert found.was_scaled
    assert np.abs(found.pixels - (values - values.min()) * 255 / np.ptp(values)).max() < 2


def test_large_or_clear_colours_of_16_bits_are_read_too() -> None:
    pixels = np.zeros((40, 40, 4), "<u2")
    pixels[:, :20, :3] = 3000
    pixels[20:, :, 3] = 65535
    found = decoded(png16(pixels), 8)
    assert found is not None
    assert found.pixels[[0, 0, 7, 7], [0, 7, 0, 7], 0].tolist() == [255, 255, 255, 0]


def test_floats_that_are_no_numbers_are_dark() -> None:
    values = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    values[0, 1], values[0, 2], values[0, 3] = np.nan, np.inf, -np.inf
    pixels = pixels_of(encoded(Image.fromarray(values), "TIFF"), 8)
    assert pixels is not None
    assert pixels[0, 1:4, 0].tolist() == [0, 255, 0]
    assert abs(int(pixels[4, 4, 0]) - 255 * 36 / 63) < 2


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
    assert made.ready.endswith("2 files are left out.")
    assert made.verdict.left_out == {"damaged or huge images": 1, "TXT files": 1}
    assert "E444" in codes_of(made.verdict)
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
    monkeypatch.setattr(preparing, "MOST_BYTES", 1 << 30)
    monkeypatch.setattr(preparing, "CLASSES", 2)
    with pytest.raises(Problem, match=r"E301.*more than 2 folders"):
        prepared(tmp_path / "classes")


PLAIN = {"a": (250, 0, 0), "b": (0, 250, 0)}


def squares(name: str, count: int, begin: int = 0) -> dict[str, bytes]:
    """Return different images of a class."""
    red, green, blue = COLOURS[name]
    return {
        f"{name}/{n}.png": png((red * (9 * n + 5) // 450, green * (9 * n + 5) // 450, blue * (9 * n + 5) // 450))
        for n in range(begin, begin + count)
    }


def pixels_in(path: Path) -> set[bytes]:
    pixels, _ = load_shard(path)
    return {image.tobytes() for image in pixels}


def test_copies_of_an_image_go_to_one_part(tmp_path: Path) -> None:
    once = {**squares("red", 30), **squares("blue", 25)}
    files = {name.replace(".png", f"-{copy}.png"): content for name, content in once.items() for copy in range(4)}
    made = prepared(tmp_path, files)
    assert (made.verdict.rows, made.verdict.repeats, made.verdict.heldout_overlap) == (220, 165, 0)
    assert made.heldout is not None
    assert made.heldout.size == 20
    (shard,) = made.shards
    held = pixels_in(tmp_path / "out" / "heldout.safetensors")
    trained = pixels_in(tmp_path / "out" / "shards" / f"{shard.digest}.safetensors")
    assert (len(held), len(trained)) == (5, 50)
    assert not held & trained


def photograph(seed: int) -> Image.Image:
    """Return a picture of soft patches."""
    patches = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(patches).resize((96, 96), Image.Resampling.BICUBIC)


def album(numbers: range, quality: int = 95, side: int = 96, suffix: str = "") -> dict[str, bytes]:
    """Return photographs of two classes, as JPEG."""
    return {
        f"{'ab'[n % 2]}/{n}{suffix}.jpg": encoded(photograph(n).resize((side, side)), "JPEG", quality=quality)
        for n in numbers
    }


@pytest.mark.parametrize(("quality", "side"), [(30, 96), (60, 96), (90, 64), (75, 200)])
def test_copies_saved_anew_go_to_one_part(tmp_path: Path, quality: int, side: int) -> None:
    """Copies of some images may leave others to be held out."""
    once, again = album(range(60)), album(range(40), quality, side, "-again")
    made = prepared(tmp_path, once | again, 32)
    assert (made.verdict.repeats, made.verdict.heldout_overlap) == (0, 0)
    assert made.heldout is not None
    assert 8 <= made.heldout.size <= 10
    seeds: dict[bytes, int] = {}
    for name, content in (once | again).items():
        pixels = pixels_of(content, 32)
        assert pixels is not None
        seeds[pixels.tobytes()] = int(name[2:4].strip("-."))
    (shard,) = made.shards
    held, trained = (
        {seeds[each] for each in pixels_in(tmp_path / "out" / name)}
        for name in ("heldout.safetensors", f"shards/{shard.digest}.safetensors")
    )
    assert not trained & held
    assert codes_of(made.verdict) == []


def test_copies_saved_anew_of_a_part_set_aside_are_asked_about(tmp_path: Path) -> None:
    train = {f"train/{name}": content for name, content in album(range(40)).items()}
    val = {f"val/{name}": content for name, content in album(range(30, 50), 40).items()}
    made = prepared(tmp_path, train | val, 32)
    assert made.verdict.heldout_overlap == 0.5
    assert codes_of(made.verdict) == ["E435", "E439"]


def test_images_that_only_resemble_each_other_are_no_copies(tmp_path: Path) -> None:
    """Handwritten digits have thousands of similar hashes."""
    chance = np.random.default_rng(3)
    digits = {}
    for n in range(60):
        image = np.zeros((28, 28), np.uint8)
        image[4:24, 11:17] = chance.integers(120, 256, (20, 6))
        digits[f"{'ab'[n % 2]}/{n}.png"] = encoded(Image.fromarray(image))
    made = prepared(tmp_path, digits, 28)
    assert made.heldout is not None
    assert made.heldout.size == 6


def test_copies_that_all_resemble_the_next_are_not_held_out(tmp_path: Path) -> None:
    """As frames of a film do: each part would contain neighbours of the other."""
    first, last = (np.asarray(photograph(n), dtype=float) for n in (1, 2))
    frames = {
        f"{'ab'[n % 2]}/{n}.png": encoded(Image.fromarray((first + (last - first) * n / 79).astype(np.uint8)))
        for n in range(80)
    }
    made = prepared(tmp_path, frames, 32)
    assert made.heldout is None
    assert codes_of(made.verdict) == ["E440"]


def test_an_archive_named_as_set_aside_is_held_out(tmp_path: Path) -> None:
    archives = [
        tar(tmp_path / f"{name}.tar", album(numbers))
        for name, numbers in (("val", range(50, 60)), ("train", range(40)))
    ]
    made = prepare(archives[0], tmp_path / "out", ImagePreparation(32), archives[1:], names=[a.name for a in archives])
    assert [shard.source for shard in made.shards] == [1]
    assert made.heldout is not None
    assert (made.size, made.heldout.size, made.classes) == (40, 10, ["a", "b"])
    assert (made.verdict.heldout, codes_of(made.verdict)) == ("validation", ["E435"])
    names = ["val.tar", "more.tar"]
    other = prepare(archives[0], tmp_path / "other", ImagePreparation(32), archives[1:], names=names)
    assert codes_of(other.verdict) == ["E446"]


def test_a_part_set_aside_without_readable_images_is_asked_about(tmp_path: Path) -> None:
    lost = {f"val/a/{n}.jpg": b"no image" for n in range(3)}
    made = prepared(tmp_path, {f"train/{name}": content for name, content in album(range(40)).items()} | lost, 32)
    assert made.verdict.heldout == ""
    assert codes_of(made.verdict) == ["E462", "E444"]
    assert made.heldout is not None


@pytest.mark.parametrize(
    ("names", "held", "left_out"),
    [
        (("train", "val", "test"), "validation", 4),
        (("train", "test"), "test", 0),
        (("Training", "dev"), "validation", 0),
    ],
)
def test_images_set_aside_are_held_out(tmp_path: Path, names: tuple[str, ...], held: str, left_out: int) -> None:
    files = {
        f"set/{split}/{name}": content
        for number, split in enumerate(names)
        for colour in ("red", "blue")
        for name, content in squares(colour, 2 if number else 12, 12 * number).items()
    }
    made = prepared(tmp_path, files)
    assert (made.size, made.classes) == (24, ["blue", "red"])
    assert made.heldout is not None
    assert made.heldout.size == 4
    assert (made.verdict.heldout, codes_of(made.verdict)[0]) == (held, "E435")
    assert sum(made.verdict.left_out.values()) == left_out
    expected = {pixels.tobytes() for n in (12, 13) for pixels in _decoded(n)}
    assert pixels_in(tmp_path / "out" / "heldout.safetensors") == expected


def _decoded(number: int) -> list[Pixels]:
    found = [pixels_of(squares(name, 1, number)[f"{name}/{number}.png"], 8) for name in ("red", "blue")]
    return [pixels for pixels in found if pixels is not None]


def test_training_images_set_aside_too_are_asked_about(tmp_path: Path) -> None:
    files = {f"{split}/{name}": data for split in ("train", "test") for name, data in IMAGES.items()}
    made = prepared(tmp_path, {name.replace("set/", ""): data for name, data in files.items()})
    assert made.verdict.heldout_overlap == 1
    assert "E439" in codes_of(made.verdict)


def test_nothing_held_out_for_copies_is_asked_about(tmp_path: Path) -> None:
    files = {f"{name}/{n}.png": png(colour) for name, colour in PLAIN.items() for n in range(30)}
    made = prepared(tmp_path, files)
    assert made.heldout is None
    assert "E440" in codes_of(made.verdict)


@pytest.mark.parametrize("colour", [(250, 250, 250), (250, 0, 0)])
def test_images_of_a_single_colour_are_asked_about(tmp_path: Path, colour: Colour) -> None:
    made = prepared(tmp_path, {f"{name}/{n}.png": png(colour) for name in "ab" for n in range(5)})
    assert "E443" in codes_of(made.verdict)


def test_an_image_in_two_classes_is_told(tmp_path: Path) -> None:
    made = prepared(tmp_path, {**squares("red", 10), "blue/1.png": squares("red", 1)["red/0.png"]})
    (found,) = (found for found in made.verdict.findings if found.code == "E442")
    assert "1 images are in more than one class (for example blue and red)" in found.text


def test_the_verdict_measures_each_class(tmp_path: Path) -> None:
    made = prepared(tmp_path, {f"{name}/{n}.png": png(colour) for name, colour in COLOURS.items() for n in range(9)})
    assert made.verdict.classes == {"blue": 9, "green": 9, "red": 9}
    assert [(each.name, each.mean) for each in made.verdict.pieces] == [  # type: ignore[union-attr]
        ("blue", 83.33), ("green", 83.33), ("red", 83.33),
    ]  # fmt: skip
    pictures = sorted(path.name for path in (tmp_path / "out" / "pictures").iterdir())
    assert len(pictures) == 12
    assert {name.split("-")[1] for name in pictures} == {"0.png", "1.png", "2.png"}


def test_a_class_has_the_whole_name_of_its_folder(tmp_path: Path) -> None:
    names = [f"{'Animalia_' * 9}{last}" for last in ("erato", "sara")]
    made = prepared(tmp_path, {f"{name}/{n}.png": png((9 * n, len(name), 0)) for name in names for n in range(9)})
    assert made.classes == names


def test_images_outside_folders_have_no_class(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"E380.*30 images in 0 folders"):
        prepared(tmp_path, {f"{n}.png": png((n, n, n)) for n in range(30)})


def test_images_that_are_too_large_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "FILE_BYTES", max(map(len, IMAGES.values())))
    made = prepared(tmp_path, {**IMAGES, "set/red/large.png": png() + bytes(1000)})
    assert made.verdict.left_out == {"too large": 1}
    assert made.shards == prepared(tmp_path / "without").shards

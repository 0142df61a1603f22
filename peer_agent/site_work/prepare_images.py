"""Prepare images: turn tar archives into shards of pixels and a held-out part, in constant memory."""

import hashlib
import io
import tarfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Self

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray
from PIL import Image, ImageOps
from safetensors.numpy import save

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.publishing.tokenizer import write_content
from peer_agent.recipes.images.pixels import Images, Pixels
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.recipes.images.trunk import COLOURS
from peer_agent.recipes.preparation import DataFile, Prepared

# A tar of folders with images is read in order, with limits on sizes. Each image gets its folder's name as its class.
#
# A member's header is untrusted: names never become paths, and nothing is unpacked to disk.

FILE_BYTES = 64 * 1024 * 1024  # limit for one image
FILES = 20_000_000  # limit for one archive
LONG = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
LONGEST_NAME = 1024 * 1024  # bytes
HIDDEN = (".", "__MACOSX")  # names with these prefixes come from file systems, not from people


class Member(NamedTuple):
    """A file in an archive. `folder`: the name of its folder. `content`: empty if the file is too large."""

    folder: str
    name: str
    content: bytes


class Header(tarfile.TarInfo):
    """A tar header that limits the size of extension headers, because tarfile reads them into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header. Raises ReadError if it announces a name that is too long."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in LONG and header.size > LONGEST_NAME:
            raise tarfile.ReadError("a name in it is too long")
        return header


def members_of(path: Path) -> Iterator[Member]:
    """Yield the files in an archive's folders. Raises Problem E378 if the archive is incomplete. Raises Problem E379
    if a member is not a plain file or its path leads out of the archive.
    """
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|*", tarinfo=Header) as archive:
            yield from _members_in(archive)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Problem.of("E378", reason=error) from error


def _members_in(archive: tarfile.TarFile) -> Iterator[Member]:
    for number, entry in enumerate(archive):
        if number >= FILES:
            raise Problem.of("E378", reason=f"it has more than {FILES:,} files")
        archive.members = []  # type: ignore[attr-defined] # else tarfile keeps all headers of a large archive
        if entry.isdir():
            continue
        if not entry.isfile() or _leads_out(entry.name):
            raise Problem.of("E379", name=_shown(entry.name))
        path = PurePosixPath(entry.name)
        folder = path.parent.name
        if folder and not any(part.startswith(HIDDEN) for part in (folder, path.name)):
            yield Member(folder, path.name, _content_of(archive.extractfile(entry), entry.size))


def _leads_out(name: str) -> bool:
    return name.startswith("/") or ".." in PurePosixPath(name).parts


def _shown(name: str) -> str:
    return "".join(letter for letter in name if letter.isprintable())[:100]


def _content_of(file: IO[bytes] | None, size: int) -> bytes:
    return b"" if file is None or size > FILE_BYTES else file.read()


# Decoding of images. An error means "no image", and takes no more time or memory than a large image.

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "PPM", "TIFF")
MOST_PIXELS = 64 * 1024 * 1024  # pixels of an image that is decoded


def pixels_of(content: bytes, side: int) -> Pixels | None:
    """Decode an image to RGB [side, side, 3], scaled and cropped to a square. Return None if it is not an image."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=FORMATS) as image:
            warnings.simplefilter("ignore")  # about strange metadata; the size is checked below
            if image.width * image.height > MOST_PIXELS:
                return None
            image.load()
            upright = _on_white(ImageOps.exif_transpose(image))
            return np.asarray(ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC), dtype=np.uint8)
    except Exception:  # noqa: BLE001 (decoders may raise anything for untrusted bytes; the file counts as skipped)
        return None


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


# A shard ends at this size of its pixels, or at this number of images.
SHARD_BYTES, SHARD_IMAGES = 16 * 1024 * 1024, 4096
MOST_BYTES = 32 << 30  # limit for the pixels of all images
CLASSES, CLASS_NAME = 10_000, 60  # limits: classes, and letters in a class's name
HELD_OUT, HELD_OUT_MOST = 0.1, 10_000  # fraction of the images that is held out, and the limit of their number
FEWEST = 20  # with fewer images, none are held out
ORDER_KEY = 0x4D616E7968616E64  # a fixed key, so that the same images give the same shards
SHOWN = 30  # classes that are shown to people


class PreparedImages(Prepared, frozen=True, kw_only=True):
    """Prepared images. Sizes are in images. `skipped`: the number of files that were not images."""

    classes: list[str]
    skipped: int


class Read(Struct):
    """The contents of all the archives. The pixels are in a file. `ends`: the total image count after each archive."""

    ends: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    skipped: int = 0


def prepare(archive: Path, out: Path, preparation: ImagePreparation, further: Sequence[Path] = ()) -> PreparedImages:
    """Write `out`/shards and `out`/heldout.safetensors. Raises Problem E106, E301, E303, E378, E379, E380. Archives in
    `further` get their own shards and held-out parts. Folders with the same name form one class.
    """
    side, archives = preparation.side, (archive, *further)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if not all(each.stat().st_size for each in archives):
            raise Problem.of("E303")
        raw = out / "pixels"
        try:
            read = _read(archives, raw, side)
            if len(read.labels) < 2 or len(read.classes) < preparation.fewest_classes:
                raise Problem.of("E380", images=f"{len(read.labels):,}", folders=f"{len(read.classes):,}")
            return _write(read, np.memmap(raw, np.uint8, "r", shape=(len(read.labels), side, side, COLOURS)), out)
        finally:
            raw.unlink(missing_ok=True)


def _read(archives: Sequence[Path], raw: Path, side: int) -> Read:
    read = Read()
    with raw.open("wb") as file:
        for archive in archives:
            _read_one(archive, file, side, read)
            read.ends.append(len(read.labels))
    return read


def _read_one(archive: Path, file: IO[bytes], side: int, read: Read) -> None:
    for member in members_of(archive):
        pixels = pixels_of(member.content, side)
        if pixels is None:
            read.skipped += 1
            continue
        name = "".join(letter for letter in member.folder if letter.isprintable())[:CLASS_NAME]
        if len(read.labels) * pixels.size >= MOST_BYTES:
            raise Problem.of("E301", reason=f"at side {side} the images take more than {MOST_BYTES >> 30} GiB")
        label = read.classes.setdefault(name, len(read.classes))
        if label >= CLASSES:
            raise Problem.of("E301", reason=f"there are more than {CLASSES:,} folders")
        read.labels.append(label)
        file.write(pixels.tobytes())


def _write(read: Read, pixels: Pixels, out: Path) -> PreparedImages:
    classes, labels = _in_order(read)
    held, learned = _parted(read.ends)
    heldout = _write_heldout(Images(pixels[held], labels[held]), out / "heldout.safetensors")
    (out / "shards").mkdir(exist_ok=True)
    shards = [
        DataFile(write_content(_content(shard), out / "shards"), len(shard.labels), source)
        for source, places in enumerate(learned)
        for shard in _in_shards(pixels, labels, places)
    ]
    images, skipped = sum(shard.size for shard in shards), read.skipped
    left_out = f" {skipped:,} files were no images and are left out." if skipped else ""
    return PreparedImages(
        size=images,
        shards=shards,
        heldout=heldout,
        classes=classes,
        skipped=skipped,
        pieces=_told(classes, labels),
        ready=f"The images are ready: {images:,} of {len(classes):,} classes.{left_out}",
    )


def _parted(ends: Sequence[int]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the numbers of the held-out images, and of each source's training images, all shuffled."""
    held, learned = [], []
    for begin, end in zip((0, *ends), ends, strict=False):
        count = end - begin
        order = begin + np.argsort(np.random.Philox(key=ORDER_KEY).random_raw(count), kind="stable")
        aside = min(int(HELD_OUT * count), HELD_OUT_MOST // len(ends)) if count >= FEWEST else 0
        held.append(order[:aside])
        learned.append(order[aside:])
    return np.concatenate(held), learned


def _write_heldout(images: Images, path: Path) -> DataFile | None:
    if not images.labels.size:
        return None
    content = _content(images)
    path.write_bytes(content)
    return DataFile(hashlib.sha256(content).hexdigest(), images.labels.size)


def _in_order(read: Read) -> tuple[list[str], NDArray[np.uint16]]:
    """Return the classes sorted by name, and matching labels. Neither depends on the order within the archives."""
    classes = sorted(read.classes)
    number_of = np.zeros(len(classes), np.uint16)
    for number, name in enumerate(classes):
        number_of[read.classes[name]] = number
    return classes, number_of[np.array(read.labels)]


def _in_shards(pixels: Pixels, labels: NDArray[np.uint16], order: NDArray[np.int64]) -> Iterator[Images]:
    each = max(1, min(SHARD_IMAGES, SHARD_BYTES // pixels[0].size))
    for start in range(0, len(order), each):
        chosen = order[start : start + each]
        yield Images(pixels[chosen], labels[chosen])


def _content(images: Images) -> bytes:
    return save({"pixels": np.ascontiguousarray(images.pixels), "labels": images.labels})


def _told(classes: Iterable[str], labels: NDArray[np.uint16]) -> list[str]:
    counted = sorted(zip(classes, np.bincount(labels), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return [f"{name}: {count:,}" for name, count in counted[:SHOWN]]

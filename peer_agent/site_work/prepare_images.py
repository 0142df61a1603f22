"""Prepare images: turn tar archives into shards of pixels and a held-out part, in constant memory."""

import hashlib
import importlib
import io
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray
from PIL import Image, ImageOps
from safetensors.numpy import save

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.publishing.tokenizer import write_content
from peer_agent.recipes.image_classification import LONGEST_CLASS
from peer_agent.recipes.images.pixels import Images, Pixels
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.recipes.images.trunk import COLOURS
from peer_agent.recipes.preparation import DataFile, Prepared
from peer_agent.site_work.intake.unpack import Member, members_of, split_in
from peer_agent.site_work.intake.verdict import Pixels as ClassPixels
from peer_agent.site_work.intake.verdict import Verdict, counted, shown

# Decoding of images. An error means "no image", and takes no more time or memory than a large image.

FILE_BYTES = 64 * 1024 * 1024  # limit for one image
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "PPM", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".gif", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")
MOST_PIXELS = 64 * 1024 * 1024  # pixels of an image that is decoded
ORIENTATION = 0x0112  # tag in Exif
OUTLIERS, FAR = 2.0, 4.0  # percent at each end; clipped if all others take less than a quarter of the range
DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")  # Pillow's modes with more than 8 bits


class Decoded(NamedTuple):
    """An image as RGB [side, side, 3]. `was_scaled`: it had more than 8 bits per pixel."""

    pixels: Pixels
    was_scaled: bool


def decoded(content: bytes, side: int) -> Decoded | None:
    """Decode an image, scaled and cropped to a square. Return None if it is not an image that can be read."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=_formats()) as image:
            warnings.simplefilter("ignore")  # about strange metadata; the size is checked below
            if image.width * image.height > MOST_PIXELS:
                return None
            image.draft(None, (2 * side, 2 * side))  # JPEG only: decode no more than needed
            image.load()
            is_deep, small = image.mode in DEEP, _reduced(image, 2 * side)
            upright = _on_white(ImageOps.exif_transpose(_in_8_bits(small) if is_deep else small))
            pixels = np.asarray(ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC), dtype=np.uint8)
            return Decoded(pixels, is_deep)
    except Exception:  # noqa: BLE001 (decoders may raise anything for untrusted bytes; the file counts as left out)
        return None


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that are read. HEIC and AVIF are among them if pillow-heif is installed."""
    try:
        pillow_heif = importlib.import_module("pillow_heif")
    except ImportError:
        return FORMATS
    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


def _reduced(image: Image.Image, least: int) -> Image.Image:
    """Shrink a large image by a whole factor, to at least `least` pixels a side, so that later copies are small."""
    factor = min(image.size) // least
    if factor < 2:
        return image
    if image.mode in (*DEEP, "1", "P"):
        small = image.resize((image.width // factor, image.height // factor), Image.Resampling.NEAREST)
    else:
        small = image.reduce(factor)
    small.info |= image.info
    if orientation := image.getexif().get(ORIENTATION):
        small.getexif()[ORIENTATION] = orientation
    return small


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Scale an image with 16 bits or floats per pixel by its own darkest and brightest pixel.

    If a few pixels lie far outside the range of all others, as values for "no data" do, they are clipped.
    """
    values = np.asarray(image, dtype=np.float32)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Image.new("L", image.size)
    darkest, brightest = float(finite.min()), float(finite.max())
    low, high = (float(each) for each in np.percentile(finite, (OUTLIERS, 100 - OUTLIERS)))
    if low < high and high - low < (brightest - darkest) / FAR:
        darkest, brightest = low, high
    span = brightest - darkest
    filled = np.nan_to_num(values, nan=darkest, posinf=brightest, neginf=darkest)
    scaled = (filled.clip(darkest, brightest) - darkest) * (255 / span if span else 0)
    made = Image.fromarray(np.rint(scaled).astype(np.uint8), "L")
    if orientation := image.getexif().get(ORIENTATION):
        made.getexif()[ORIENTATION] = orientation
    return made


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


# A shard ends at this size of its pixels, or at this number of images.
SHARD_BYTES, SHARD_IMAGES = 16 * 1024 * 1024, 4096
MOST_BYTES = 32 << 30  # limit for the pixels of all images
CLASSES = 10_000  # limit
HELD_OUT, HELD_OUT_MOST = 0.1, 10_000  # fraction of the images that is held out, and the limit of their number
FEWEST = 20  # with fewer images, none are held out
FLAT = 8.0  # mean deviation of pixels, of 255, below which images hardly show anything
MANY_PLAIN, MANY_LEFT_OUT, SMALL_OVERLAP = 0.5, 0.2, 0.01  # shares that are worth a question
MEASURED, LOOKED_AT = 500, 5000  # images of a class that are measured, and of all that may be shown
ORDER_KEY = 0x4D616E7968616E64  # a fixed key, so that the same images give the same shards
SHOWN = 30  # classes that are shown to people
PICTURES, PICTURE_SIDE = 12, 96  # images that are shown to people, and their side in pixels
OTHERS = 5  # kinds of other files that an error names


class PreparedImages(Prepared, frozen=True, kw_only=True):
    """Prepared images. Sizes are in images. `skipped`: the number of files that are left out."""

    classes: list[str]
    skipped: int
    verdict: Verdict


class Read(Struct):
    """The contents of all archives. The pixels are in a file. `ends`: the number of images after each archive."""

    verdict: Verdict
    ends: list[int] = field(default_factory=list)
    folders: list[tuple[str, ...]] = field(default_factory=list)  # of each image
    digests: list[int] = field(default_factory=list)  # of the pixels
    deviation: float = 0.0  # of the pixels, summed over the images
    scaled: int = 0
    plain: int = 0  # images of a single colour


def prepare(
    archive: Path,
    out: Path,
    preparation: ImagePreparation,
    further: Sequence[Path] = (),
    *,
    names: Sequence[str] = (),
    fields: Sequence[str] = (),
) -> PreparedImages:
    """Write `out`/shards, `out`/pictures and `out`/heldout.safetensors. Raises Problem E106, E301, E303, E378, E380,
    E395, E424, E425.

    Archives in `further` get their own shards and held-out parts. Folders with the same name form one class. `names`:
    the archives' file names. `fields` is for texts.
    """
    del fields
    side, archives = preparation.side, (archive, *further)
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if not all(each.stat().st_size for each in archives):
            raise Problem.of("E303")
        raw = out / "pixels"
        try:
            read = _read(archives, names, raw, side)
            found = classes_of(read.folders, read.verdict, needs=preparation.fewest_classes)
            if len(read.folders) < 2 or len({*found.names} - {""}) < preparation.fewest_classes:
                images, folders = counted(len(read.folders), "image"), counted(len({*read.folders} - {()}), "folder")
                raise Problem.of("E380", images=images, folders=folders, others=_others(read))
            return _write(
                read, found, np.memmap(raw, np.uint8, "r", shape=(len(read.folders), side, side, COLOURS)), out
            )
        finally:
            raw.unlink(missing_ok=True)


def _others(read: Read) -> str:
    """Return words about the files that are not images that can be read."""
    found = [f"{count:,} {reason}" for reason, count in [*read.verdict.left_out.items()][:OTHERS]]
    return ", ".join(found) or "none"


def _read(archives: Sequence[Path], names: Sequence[str], raw: Path, side: int) -> Read:
    read = Read(Verdict(format="images in folders"))
    with raw.open("wb") as file:
        for number, archive in enumerate(archives):
            name, scratch = names[number] if number < len(names) else archive.name, raw.with_name("unpacked")
            for member in members_of(archive, name, read.verdict, scratch):
                _read_one(member, file, side, read)
            read.ends.append(len(read.folders))
    return read


def _read_one(member: Member, file: IO[bytes], side: int, read: Read) -> None:
    suffix = PurePosixPath(member.name).suffix.lower()
    content = member.file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        read.verdict.leave_out("too large", member.name)
        return
    image = decoded(content, side)
    if image is None:
        what = "damaged or huge images" if suffix in SUFFIXES else f"{suffix.upper().lstrip('.') or 'unnamed'} files"
        read.verdict.leave_out(what, member.name)
        return
    pixels = image.pixels
    if len(read.folders) * pixels.size >= MOST_BYTES:
        raise Problem.of("E301", reason=f"at side {side} the images take more than {MOST_BYTES >> 30} GiB")
    data = pixels.tobytes()
    read.folders.append(tuple(map(_readable, PurePosixPath(member.name).parts[:-1])))
    read.digests.append(int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()))
    read.scaled += image.was_scaled
    read.plain += bool((pixels == pixels[0, 0]).all())
    read.deviation += float(pixels.std())
    file.write(data)


def _readable(folder: str) -> str:
    """Return a folder's name, with characters that cannot be shown written as numbers. Raises Problem E425."""
    written = "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in folder)
    if len(written) > LONGEST_CLASS:
        raise Problem.of("E425", name=shown(written, 60))
    return written


class Found(NamedTuple):
    """The class and the split of each image. Both are empty if the image has none."""

    names: list[str]
    splits: list[str]


def classes_of(folders: Sequence[tuple[str, ...]], verdict: Verdict, *, needs: int) -> Found:
    """Return each image's class: the path of its folder, below what all images share and below a split.

    A folder such as `train` or `val` divides the images if there is one for training and one that is set aside.
    """
    root = _shared({*folders})
    below = [folder[root:] for folder in folders]
    known = {folder: next((split for part in folder if (split := split_in(part))), "") for folder in {*below}}
    is_divided = "train" in known.values() and len({*known.values()} - {"", "train"}) > 0
    if not is_divided and (aside := next((split for split in known.values() if split not in ("", "train")), "")):
        verdict.ask("E446", name=aside)
    paths = {folder: tuple(part for part in folder if not (is_divided and split_in(part))) for folder in known}
    if {*paths.values()} <= {()}:  # one folder with images, which may suffice
        paths = dict.fromkeys(paths, tuple(folders[0][root - 1 : root]) if folders and root else ())
    names = {folder: "/".join(path) for folder, path in paths.items()}
    if needs > 1:
        _ask_about(names, Counter(map(names.__getitem__, below)), verdict)
    splits = [known[folder] if is_divided else "" for folder in below]
    if len({*names.values()}) > CLASSES:
        raise Problem.of("E301", reason=f"there are more than {CLASSES:,} folders")
    return Found([names[folder] for folder in below], splits)


def _shared(folders: set[tuple[str, ...]]) -> int:
    """Return how many first parts all folders share."""
    if not folders:
        return 0
    first, last = min(folders), max(folders)
    differ = (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(first), len(last)))


def _ask_about(names: Mapping[tuple[str, ...], str], counts: Counter[str], verdict: Verdict) -> None:
    """Ask about classes whose folders are inside one another, are named nearly the same, or have a single image."""
    nested = next((name for name in names.values() if "/" in name), None)
    if nested is not None:
        verdict.ask("E455", name=shown(nested, 60))
    alike: dict[str, set[str]] = {}
    for name in {*names.values()} - {""}:
        plain = "".join(letter for letter in name.casefold() if unicodedata.category(letter)[0] in "LN")
        alike.setdefault(plain, set()).add(name)
    odd = [" and ".join(f"“{name}”" for name in sorted(group)) for group in alike.values() if len(group) > 1]
    odd += [f"“{name}” with one image" for name, count in counts.items() if name and count == 1 and len(counts) > 2]
    if odd:
        verdict.ask("E460", names=shown("; ".join(sorted(odd)[:3]), 300))


def _write(read: Read, found: Found, pixels: Pixels, out: Path) -> PreparedImages:
    classes, labels = _in_order(found.names)
    held, learned = _parted(read, found, has_classes=len(classes) > 1)
    heldout = _write_heldout(Images(pixels[held], labels[held]), out / "heldout.safetensors")
    (out / "shards").mkdir(exist_ok=True)
    shards = [
        DataFile(write_content(_content(shard), out / "shards"), len(shard.labels), source)
        for source, places in enumerate(learned)
        for shard in _in_shards(pixels, labels, places)
    ]
    images, skipped = sum(shard.size for shard in shards), sum(read.verdict.left_out.values())
    left_out = f" {skipped:,} files are left out." if skipped else ""
    _judge(read, pixels, classes, labels)
    _ask_about_parts(read.verdict, classes, labels[held], labels[np.concatenate(learned)])
    read.verdict.heldout_overlap, read.verdict.tokens = _overlap(read, held, learned), images
    _write_pictures(pixels, labels, np.concatenate(learned), out / "pictures")
    return PreparedImages(
        size=images,
        shards=shards,
        heldout=heldout,
        classes=classes,
        skipped=skipped,
        pieces=_told(classes, labels),
        ready=f"The images are ready: {images:,} of {len(classes):,} classes.{left_out}",
        verdict=read.verdict,
    )


def _judge(read: Read, pixels: Pixels, classes: list[str], labels: NDArray[np.uint16]) -> None:
    """Describe the images in the verdict, with what is strange about them."""
    verdict, count = read.verdict, len(labels)
    verdict.rows = count
    verdict.repeats = count - len(set(zip(read.digests, labels.tolist(), strict=True)))
    verdict.classes = dict(zip(classes, np.bincount(labels, minlength=len(classes)).tolist(), strict=True))
    verdict.pieces = [_pixels_of(name, pixels[labels == number]) for number, name in enumerate(classes[:SHOWN])]
    if read.scaled:
        verdict.note("E441", count=f"{read.scaled:,}")
    if read.plain > MANY_PLAIN * count or read.deviation < FLAT * count:
        verdict.ask("E443", count=f"{max(read.plain, 1):,}", images=f"{count:,}")
    found: dict[int, set[int]] = {}
    for digest, label in zip(read.digests, labels.tolist(), strict=True):
        found.setdefault(digest, set()).add(label)
    shared = [sorted(each) for each in found.values() if len(each) > 1]
    if shared:
        names = " and ".join(shown(classes[label], 60) for label in shared[0][:2])
        verdict.note("E442", count=f"{len(shared):,}", classes=names)
    if verdict.left_out:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in verdict.left_out.items())
        left = sum(verdict.left_out.values())
        find = verdict.ask if left > MANY_LEFT_OUT * (left + count) else verdict.note
        find("E444", left=f"{left:,}", reasons=reasons)


def _pixels_of(name: str, pixels: Pixels) -> ClassPixels:
    few = pixels[:: max(1, len(pixels) // MEASURED)]
    return ClassPixels(name, round(float(few.mean()), 2), round(float(few.std()), 2))


def _write_pictures(pixels: Pixels, labels: NDArray[np.uint16], order: NDArray[np.int64], folder: Path) -> None:
    """Write some images of different classes for people to look at, as `NUMBER-CLASS.png`."""
    folder.mkdir(exist_ok=True)
    by_class: dict[int, list[int]] = {}
    for place in order[:LOOKED_AT].tolist():
        by_class.setdefault(int(labels[place]), []).append(place)
    turns = [place for turn in zip_longest(*by_class.values()) for place in turn if place is not None]
    for number, place in enumerate(turns[:PICTURES]):
        image = Image.fromarray(pixels[place])
        image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
        image.save(folder / f"{number}-{labels[place]}.png")


def _ask_about_parts(
    verdict: Verdict, classes: list[str], held: NDArray[np.uint16], trained: NDArray[np.uint16]
) -> None:
    """Ask about classes that are held out and never trained on. `held`, `trained`: the labels of each part."""
    if missing := sorted({*held.tolist()} - {*trained.tolist()}):
        reason = f"no image of {shown(classes[missing[0]], 60)} is trained on"
        verdict.ask("E462", name=verdict.heldout or "held out", reason=reason)


def _parted(read: Read, found: Found, *, has_classes: bool) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the numbers of the held-out images, and of each source's training images, all shuffled.

    If people set images aside in folders such as `val` or `test`, those of the first such part are held out, and none
    of the others is used. Otherwise equal images go to the same part. Images without a class are not used if others
    have one.
    """
    splits, digests = np.array(found.splits), np.array(read.digests, dtype=np.uint64)
    is_used = np.array([bool(name) or not has_classes for name in found.names])
    if count := int((~is_used).sum()):
        read.verdict.leave_out("images outside the folders of classes", f"{count:,} images", count)
    named = [split for split in ("validation", "test") if ((splits == split) & is_used).any()]
    if named:
        read.verdict.heldout = named[0]
        read.verdict.note(
            "E435", part=f"{((splits == named[0]) & is_used).sum():,} images in folders called {named[0]}"
        )
        if len(named) > 1:
            count = int((splits == named[1]).sum())
            read.verdict.leave_out(f"set aside as a {named[1]}", f"{count:,} images", count)
    held, learned = [], []
    for begin, end in zip((0, *read.ends), read.ends, strict=False):
        count = end - begin
        order = begin + np.argsort(np.random.Philox(key=ORDER_KEY).random_raw(count), kind="stable")
        if named:
            aside = order[(splits[order] == named[0]) & is_used[order]][: HELD_OUT_MOST // len(read.ends)]
            is_trained = is_used[order] & ((splits[order] == "train") | (splits[order] == ""))
        else:
            most = min(int(HELD_OUT * count), HELD_OUT_MOST // len(read.ends)) if count >= FEWEST else 0
            chosen = _with_copies(digests[begin:end], most) + begin
            if most and not len(chosen):
                read.verdict.ask("E440")
            aside = order[np.isin(order, chosen) & is_used[order]]
            is_trained = ~np.isin(order, chosen) & is_used[order]
        held.append(aside)
        learned.append(order[is_trained])
    return np.concatenate(held), learned


def _with_copies(digests: NDArray[np.uint64], most: int) -> NDArray[np.int64]:
    """Return the numbers of up to `most` images, with all copies of each, in the order of their digests."""
    order = np.argsort(digests, kind="stable")
    ordered = digests[order]
    if most <= 0:
        return order[:0]
    if most < len(order):  # go back to the end of the group that would be divided
        most = int(np.searchsorted(ordered, ordered[most], side="left"))
    return order[:most]


def _overlap(read: Read, held: NDArray[np.int64], learned: Sequence[NDArray[np.int64]]) -> float:
    """Return the share of the held-out images that are also trained on, and ask about it if there are some."""
    digests = np.array(read.digests, dtype=np.uint64)
    trained = digests[np.concatenate(learned)]
    share = float(np.isin(digests[held], trained).mean()) if held.size else 0.0
    if share > SMALL_OVERLAP:
        read.verdict.ask("E439", percent=f"{100 * share:.0f}")
    return share


def _write_heldout(images: Images, path: Path) -> DataFile | None:
    if not images.labels.size:
        return None
    content = _content(images)
    path.write_bytes(content)
    return DataFile(hashlib.sha256(content).hexdigest(), images.labels.size)


def _in_order(names: Sequence[str]) -> tuple[list[str], NDArray[np.uint16]]:
    """Return the classes sorted by name, and matching labels. They do not depend on the order in the archives.

    An image without a class has any label; it is not used.
    """
    classes = sorted({*names} - {""}) or [""]
    number_of = {name: number for number, name in enumerate(classes)} | ({} if "" in classes else {"": 0})
    return classes, np.array([number_of[name] for name in names], dtype=np.uint16)


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

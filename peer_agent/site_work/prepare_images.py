"""Prepares images: turns archives or folders into shards of pixels and a held-out part, in constant memory."""

import hashlib
import importlib
import io
import sys
import unicodedata
import warnings
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps
from safetensors.numpy import save

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.publishing.tokenizer import write_content
from peer_agent.recipes.image_classification import LONGEST_CLASS
from peer_agent.recipes.images.pixels import Images, Pixels
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.recipes.images.trunk import COLOURS
from peer_agent.recipes.preparation import DataFile, Prepared
from peer_agent.site_work.intake.overlap import Copies, hash_of
from peer_agent.site_work.intake.unpack import Member, members_of, parts_of, split_in
from peer_agent.site_work.intake.verdict import Pixels as ClassPixels
from peer_agent.site_work.intake.verdict import Verdict, counted, shown

# Decoding images. A file that cannot be decoded is left out. It takes no more time or memory than a large image.

FILE_BYTES = 64 * 1024 * 1024  # limit per image
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "PPM", "TIFF")
SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".gif", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")
MOST_PIXELS = 64 * 1024 * 1024  # most pixels in an image to decode
ORIENTATION = 0x0112  # Exif tag
OUTLIERS, FAR = 2.0, 4.0  # percent of values at either end; clipped if all others span less than a quarter of the range
DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")  # Pillow's modes with more than 8 bits per channel
# Of each 16-bit color value, Pillow keeps one byte, chosen by the byte order in the mode's name. With the opposite byte
# order, it keeps the other byte. Gray with alpha has no opposite mode, but its four bytes can be read as four colors.
NATIVE = "LB" if sys.byteorder == "little" else "BL"
LOW = {
    **{f"{mode};16{high}": f"{mode};16{low}" for mode in ("RGB", "RGBA") for high, low in ("BL", "LB")},
    **{f"{mode};16N": f"{mode};16{NATIVE[1]}" for mode in ("RGB", "RGBA")},
    "LA;16B": "RGBA",
}


class Decoded(NamedTuple):
    """An image as RGB [side, side, 3]. `was_scaled`: it had more than 8 bits per channel."""

    pixels: Pixels
    was_scaled: bool


def decoded(content: bytes, side: int) -> Decoded | None:
    """Decode an image, scaled and cropped to a square. Return None if it is not a readable image."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=_formats()) as image:
            warnings.simplefilter("ignore")  # suppress warnings about unusual metadata; the size is checked below
            if image.width * image.height > MOST_PIXELS:
                return None
            image.draft(None, (2 * side, 2 * side))  # JPEG only: decode no more than needed
            low = _low_bytes(content, image, 2 * side)
            image.load()
            is_deep = image.mode in DEEP or low is not None
            small = _reduced(image, 2 * side, is_exact=is_deep)
            if is_deep:
                values = np.asarray(small, dtype=np.float32)
                small = _in_8_bits(small, values if low is None else 256 * values[..., :3] + low)
            upright = _on_white(ImageOps.exif_transpose(small))
            pixels = np.asarray(ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC), dtype=np.uint8)
            return Decoded(pixels, is_deep)
    except Exception:  # noqa: BLE001 (decoders may raise anything for untrusted bytes; the file counts as left out)
        return None


@cache
def _formats() -> tuple[str, ...]:
    """Return the image formats to read, including HEIC and AVIF if pillow-heif is installed."""
    try:
        pillow_heif = importlib.import_module("pillow_heif")
    except ImportError:
        return FORMATS
    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


def _low_bytes(content: bytes, image: ImageFile.ImageFile, least: int) -> NDArray[np.float32] | None:
    """Return the low bytes of an image with 16 bits per color, reduced in size like the image itself.

    Return None for other images.
    """
    tiles = [(tile, tile.args if isinstance(tile.args, tuple) else (tile.args,)) for tile in image.tile]
    if not tiles or any(not args or args[0] not in LOW for _, args in tiles):
        return None
    with Image.open(io.BytesIO(content), formats=_formats()) as other:
        assert isinstance(other, ImageFile.ImageFile)
        other.tile = [
            tile._replace(args=(LOW[args[0]], *args[1:]) if isinstance(tile.args, tuple) else LOW[args[0]])
            for tile, args in tiles
        ]
        other.load()
        values = np.asarray(_reduced(other, least, is_exact=True), dtype=np.float32)
    return values[..., 1:2] if tiles[0][1][0] == "LA;16B" else values[..., :3]


def _reduced(image: Image.Image, least: int, *, is_exact: bool) -> Image.Image:
    """Shrink a large image by a whole factor, to at least `least` pixels per side, so that later copies are small.

    With `is_exact`, pick single pixels instead of averaging.
    """
    factor = min(image.size) // least
    if factor < 2:
        return image
    if is_exact or image.mode in ("1", "P"):
        small = image.resize((image.width // factor, image.height // factor), Image.Resampling.NEAREST)
    else:
        small = image.reduce(factor)
    small.info |= image.info
    if orientation := image.getexif().get(ORIENTATION):
        small.getexif()[ORIENTATION] = orientation
    return small


def _in_8_bits(image: Image.Image, values: NDArray[np.float32]) -> Image.Image:
    """Scale `values`, [height, width] or [height, width, 3], so that the darkest becomes 0 and the brightest 255.

    If a few values lie far outside the range of the rest, such as values that mean "no data", they are clipped. The
    alpha channel and orientation are those of `image`.
    """
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
    made = Image.fromarray(np.rint(scaled).astype(np.uint8))
    if image.mode == "RGBA":
        made.putalpha(image.getchannel("A"))
    if orientation := image.getexif().get(ORIENTATION):
        made.getexif()[ORIENTATION] = orientation
    return made


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


# A shard ends at this size in pixels, or at this number of images.
SHARD_BYTES, SHARD_IMAGES = 16 * 1024 * 1024, 4096
MOST_BYTES = 32 << 30  # limit on the bytes of all images' pixels
CLASSES = 10_000  # most classes
HELD_OUT, HELD_OUT_MOST = 0.1, 10_000  # fraction of the images to hold out, and most images held out
FEWEST = 20  # with fewer images, none are held out
FLAT = 8.0  # mean standard deviation of the pixels (of 255) below which images hardly show anything
MANY_PLAIN, MANY_LEFT_OUT, SMALL_OVERLAP = 0.5, 0.2, 0.01  # shares above which a question is asked
MEASURED, LOOKED_AT = 500, 5000  # images measured per class, and images considered for display
ORDER_KEY = 0x4D616E7968616E64  # a fixed key, so that the same images give the same shards
SPARE = 4  # images whose copies are searched for, as a multiple of those wanted
ASIDE = ("validation", "test")  # parts that organizers set aside; the first one present is held out
SHOWN = 30  # most classes shown on pages
PICTURES, PICTURE_SIDE = 12, 96  # images shown on pages, and their side in pixels
OTHERS = 5  # most kinds of other files named in an error


class PreparedImages(Prepared, frozen=True, kw_only=True):
    """Prepared images. All sizes count images. `skipped`: the number of files left out."""

    classes: list[str]
    skipped: int
    verdict: Verdict


class Read(Struct):
    """Facts about the images read from all archives, without their pixels.

    `ends`: the number of images up to the end of each archive.
    """

    verdict: Verdict
    ends: list[int] = field(default_factory=list)
    folders: list[tuple[str, ...]] = field(default_factory=list)  # each image's folder
    digests: "array[int]" = field(default_factory=lambda: array("Q"))  # digest of each image's pixels
    hashes: "array[int]" = field(default_factory=lambda: array("Q"))  # each image's perceptual hash
    lost: dict[str, str] = field(default_factory=dict)  # by split: the name of a file that is not a readable image
    deviation: float = 0.0  # the standard deviation of each image's pixels, summed over the images
    scaled: int = 0
    plain: int = 0  # number of single-color images


def prepare(
    archive: Path,
    out: Path,
    preparation: ImagePreparation,
    further: Sequence[Path] = (),
    *,
    names: Sequence[str] = (),
    fields: Sequence[str] = (),
) -> PreparedImages:
    """Write `out`/shards, `out`/pictures and `out`/heldout.safetensors.

    Archives in `further` get their own shards and held-out parts. Folders with the same name form one class. `names`:
    the archives' file names. `fields` is ignored; only text datasets use it.

    Raises Problem E303 if an archive is empty, E380 if there are too few images or classes, or E301 if there are too
    many. Raises Problem E378, E395, E424 or E425 if an archive cannot be unpacked, or E106 if the disk fails.
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
    """Return how many files were left out for each reason, as a list in words."""
    found = [f"{count:,} {reason}" for reason, count in [*read.verdict.left_out.items()][:OTHERS]]
    return ", ".join(found) or "none"


def _read(archives: Sequence[Path], names: Sequence[str], raw: Path, side: int) -> Read:
    read, scratch = Read(Verdict(format="images in folders")), raw.with_name("unpacked")
    called = [names[number] if number < len(names) else archive.name for number, archive in enumerate(archives)]
    splits = parts_of(called, read.verdict)
    with raw.open("wb") as file:
        for archive, name, split in zip(archives, called, splits, strict=True):
            for member in members_of(archive, name, read.verdict, scratch):
                folders = tuple(filter(None, (split, *PurePosixPath(member.name).parts[:-1])))
                _read_one(member, folders, file, side, read)
            read.ends.append(len(read.folders))
    return read


def _read_one(member: Member, folders: tuple[str, ...], file: IO[bytes], side: int, read: Read) -> None:
    suffix = PurePosixPath(member.name).suffix.lower()
    content = member.file.read(FILE_BYTES + 1)
    if len(content) > FILE_BYTES:
        read.verdict.leave_out("too large", member.name)
        return
    image = decoded(content, side)
    if image is None:
        what = "damaged or huge images" if suffix in SUFFIXES else f"{suffix.upper().lstrip('.') or 'unnamed'} files"
        read.verdict.leave_out(what, member.name)
        if suffix in SUFFIXES:
            read.lost.setdefault(next(filter(None, map(split_in, folders)), ""), member.name)
        return
    pixels = image.pixels
    if len(read.folders) * pixels.size >= MOST_BYTES:
        raise Problem.of("E301", reason=f"at side {side} the images take more than {MOST_BYTES >> 30} GiB")
    data = pixels.tobytes()
    read.folders.append(tuple(map(_readable, folders)))
    read.digests.append(int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()))
    read.hashes.append(hash_of(pixels))
    read.scaled += image.was_scaled
    read.plain += bool((pixels == pixels[0, 0]).all())
    read.deviation += float(pixels.std())
    file.write(data)


def _readable(folder: str) -> str:
    """Return a folder's name, with unprintable characters escaped. Raises Problem E425 if the name is too long."""
    written = "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in folder)
    if len(written) > LONGEST_CLASS:
        raise Problem.of("E425", name=shown(written, 60))
    return written


class Found(NamedTuple):
    """Each image's class and split. An empty string means that the image has none."""

    names: list[str]
    splits: list[str]


def classes_of(folders: Sequence[tuple[str, ...]], verdict: Verdict, *, needs: int) -> Found:
    """Return each image's class and split. Raises Problem E301 if there are too many classes.

    A class is the path of the image's folder, without leading folders that all images share and without a split's name.
    Folders such as `train` and `val` divide the images if at least one is for training and another is set aside.
    """
    root = _shared({*folders})
    below = [folder[root:] for folder in folders]
    known = {folder: next((split for part in folder if (split := split_in(part))), "") for folder in {*below}}
    is_divided = "train" in known.values() and len({*known.values()} - {"", "train"}) > 0
    if not is_divided and (aside := next((split for split in known.values() if split not in ("", "train")), "")):
        verdict.ask("E446", name=aside)
    paths = {folder: tuple(part for part in folder if not (is_divided and split_in(part))) for folder in known}
    if {*paths.values()} <= {()}:  # a single folder of images, which may be enough
        paths = dict.fromkeys(paths, tuple(folders[0][root - 1 : root]) if folders and root else ())
    names = {folder: "/".join(path) for folder, path in paths.items()}
    if needs > 1:
        _ask_about(names, Counter(map(names.__getitem__, below)), verdict)
    splits = [known[folder] if is_divided else "" for folder in below]
    if len({*names.values()}) > CLASSES:
        raise Problem.of("E301", reason=f"there are more than {CLASSES:,} folders")
    return Found([names[folder] for folder in below], splits)


def _shared(folders: set[tuple[str, ...]]) -> int:
    """Return the number of leading path components that all folders share."""
    if not folders:
        return 0
    first, last = min(folders), max(folders)
    differ = (at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return next(differ, min(len(first), len(last)))


def _ask_about(names: Mapping[tuple[str, ...], str], counts: Counter[str], verdict: Verdict) -> None:
    """Ask the organizer about classes whose folders are nested, have almost the same name, or contain one image."""
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
    held, learned = _parted(read, found, pixels, has_classes=len(classes) > 1)
    trained = np.concatenate(learned)
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
    _ask_about_parts(read.verdict, classes, labels[held], labels[trained])
    read.verdict.heldout_overlap, read.verdict.tokens = _overlap(read, pixels, held, trained), images
    _write_pictures(pixels, labels, trained, out / "pictures")
    return PreparedImages(
        size=images,
        shards=shards,
        heldout=heldout,
        classes=classes,
        skipped=skipped,
        ready=f"The images are ready: {images:,} of {len(classes):,} classes.{left_out}",
        verdict=read.verdict,
    )


def _judge(read: Read, pixels: Pixels, classes: list[str], labels: NDArray[np.uint16]) -> None:
    """Describe the images in the verdict, including anything unusual."""
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
    """Write a few images of different classes, to be shown on pages, as `NUMBER-CLASS.png`."""
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
    """Ask the organizer about a class that is held out but never trained on.

    `held`, `trained`: the labels of the held-out and the training images.
    """
    if missing := sorted({*held.tolist()} - {*trained.tolist()}):
        reason = f"no image of {shown(classes[missing[0]], 60)} is trained on"
        verdict.ask("E462", name=verdict.heldout or "held out", reason=reason)


def _parted(
    read: Read, found: Found, pixels: Pixels, *, has_classes: bool
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the numbers of the held-out images, and of each source's training images, all shuffled.

    If the organizer set images aside in folders such as `val` or `test`, the first such part is held out, and any other
    such part is not used. Otherwise, choose the held-out images, with all copies of an image in the same part. If some
    images have classes, images without a class are not used.
    """
    splits, is_used = np.array(found.splits), np.array([bool(name) or not has_classes for name in found.names])
    if count := int((~is_used).sum()):
        read.verdict.leave_out("images outside the folders of classes", f"{count:,} images", count)
    named = [split for split in ASIDE if ((splits == split) & is_used).any()]
    known = {split_in(part) for folder in {*read.folders} for part in folder}
    if lost := next((read.lost[split] for split in ASIDE if split in read.lost.keys() - known), None):
        read.verdict.ask("E462", name=shown(lost), reason="none of its images can be read")
    if named:
        read.verdict.heldout = named[0]
        read.verdict.note(
            "E435", part=f"{((splits == named[0]) & is_used).sum():,} images in folders called {named[0]}"
        )
        if len(named) > 1:
            count = int((splits == named[1]).sum())
            read.verdict.leave_out("set aside as a test", f"{count:,} images", count)
    counts, most_each = np.diff([0, *read.ends]), HELD_OUT_MOST // len(read.ends)
    quotas = [min(int(HELD_OUT * count), most_each) if count >= FEWEST else 0 for count in counts.tolist()]
    is_chosen = np.isin(np.arange(len(splits)), [] if named else _chosen(read, pixels, quotas))
    if any(quotas) and not named and not is_chosen.any():
        read.verdict.ask("E440")
    held, learned = [], []
    for begin, count in zip((0, *read.ends), counts, strict=False):
        order = begin + np.argsort(np.random.Philox(key=ORDER_KEY).random_raw(count), kind="stable")
        if named:
            held.append(order[(splits[order] == named[0]) & is_used[order]][:most_each])
            learned.append(order[is_used[order] & ((splits[order] == "train") | (splits[order] == ""))])
        else:
            held.append(order[is_chosen[order] & is_used[order]])
            learned.append(order[~is_chosen[order] & is_used[order]])
    return np.concatenate(held), learned


def _chosen(read: Read, pixels: Pixels, quotas: Sequence[int]) -> NDArray[np.int64]:
    """Return the numbers of the images to hold out, up to each source's quota. An image is chosen with all its copies.

    Images are considered in the order of their digests. Those with too many copies stay in the training part.
    """
    digests = np.array(read.digests, dtype=np.uint64)
    _, firsts, groups, counts = np.unique(digests, return_index=True, return_inverse=True, return_counts=True)
    by_group, ends = np.argsort(groups, kind="stable"), np.cumsum(counts)
    copies = Copies(pixels, np.array(read.hashes, dtype=np.uint64), firsts)
    sources, left = np.searchsorted(read.ends, np.arange(len(digests)), side="right"), np.array(quotas)
    held, seen, looks = [by_group[:0]], set[int](), SPARE * sum(quotas)
    for group in range(len(firsts)):
        if looks <= 0 or not left.any():
            break
        if group in seen:
            continue
        family, further = {group}, {group}
        while further:
            numbers = np.concatenate([by_group[ends[each] - counts[each] : ends[each]] for each in sorted(family)])
            wanted = np.bincount(sources[numbers], minlength=len(left))
            if looks <= 0 or family & seen or (wanted > left).any():
                break
            looks -= len(further)
            further = set[int]().union(*(copies.of(int(firsts[each])).tolist() for each in further)) - family
            family |= further
        else:
            left -= wanted
            held.append(numbers)
        seen |= family
    return np.concatenate(held)


def _overlap(read: Read, pixels: Pixels, held: NDArray[np.int64], learned: NDArray[np.int64]) -> float:
    """Return the share of held-out images that have a copy in the training part.

    If it exceeds `SMALL_OVERLAP`, ask the organizer about it.
    """
    digests, hashes = (np.array(each, dtype=np.uint64) for each in (read.digests, read.hashes))
    are_learned = np.isin(digests[held], digests[learned])
    if read.verdict.heldout:  # otherwise, the part was chosen so that it has no copies
        copies = Copies(pixels, hashes, learned)
        are_learned |= [
            not is_equal and copies.of(each).size > 0 for each, is_equal in zip(held, are_learned, strict=True)
        ]
    share = float(are_learned.mean()) if held.size else 0.0
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
    """Return the classes sorted by name, and each image's label, which is the number of its class.

    Sorting makes the numbers independent of the order of images in the archives. An image without a class gets an
    arbitrary label, which is not used.
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

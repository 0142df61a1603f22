"""Choose a held-out part that has no copies or long passages in common with the training part.

Equal documents always go to the same part. A candidate for the held-out part stays in the training part if other
documents contain many of its passages. A passage is a sequence of eight words, as in the decontamination of GPT-2 and
GPT-3 (Radford et al. 2019, section 4; Brown et al. 2020, appendix C).

Copies of an image always go to the same part too, even if they were saved again at another quality or size. Likely
copies have similar 64-bit hashes (dHash, Krawetz 2013, "Kind of Like That"). The images themselves are then compared
cell by cell.
"""

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

PASSAGE = 8  # in words
WORD = re.compile(r"\w{1,12}")  # longer runs of letters, as in scripts without spaces, are split
CONTAINED = 0.5  # a document is not held out if others contain at least this share of its passages
SPARE = 2  # size of the candidates, as a multiple of the size to hold out
ROUNDS = 4  # most rounds; each returns candidates that resemble those returned in the round before
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Digests = NDArray[np.uint64]


class Texts(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> str: ...
    def size(self, number: int, /) -> int: ...


class Choice(NamedTuple):
    """The numbers of the held-out documents, and the share of their passages contained in the training part."""

    held: list[int]
    overlap: float


def digest_of(text: str) -> int:
    """Return a 64-bit digest that is equal for texts differing only in spaces, case and the form of accents."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return int.from_bytes(hashlib.blake2b(plain.encode("utf-8", "replace"), digest_size=8).digest())


def digests_of(texts: Texts) -> Digests:
    return np.fromiter((digest_of(texts[number]) for number in range(len(texts))), np.uint64, len(texts))


def choose(texts: Texts, *, wanted: int, most: int) -> Choice:
    """Choose documents totalling `wanted` to `most` bytes.

    Choose fewer if too many candidates resemble other documents.
    """
    digests = digests_of(texts)
    candidates = _candidates(texts, digests, SPARE * wanted, most)
    aside = {number for group in candidates for number in group}
    seen = _Passages([texts[group[0]] for group in candidates])
    seen.mark(texts[number] for number in range(len(texts)) if number not in aside)
    kept: list[int] = []
    size = 0
    for place in np.flatnonzero(seen.shares() < CONTAINED):
        if size < wanted:
            kept.append(int(place))
            size += sum(map(texts.size, candidates[place]))
    back = set(range(len(candidates))).difference(kept)
    for _ in range(ROUNDS):
        seen.mark(texts[candidates[place][0]] for place in sorted(back))
        shares = seen.shares()
        back = {place for place in kept if shares[place] >= CONTAINED}
        kept = [place for place in kept if place not in back]
        if not back:
            break
    seen.mark(texts[candidates[place][0]] for place in sorted(back))
    held = [number for place in kept for number in candidates[place]]
    return Choice(held, seen.share_of(kept))


def overlap_of(held: Sequence[str], trained: Iterable[str]) -> float:
    """Return the share of the held-out passages contained in the training texts, from 0 to 1."""
    seen = _Passages(held)
    seen.mark(trained)
    return seen.share_of(range(len(held)))


def _candidates(texts: Texts, digests: Digests, wanted: int, most: int) -> list[list[int]]:
    """Return groups of equal documents, in the order of their digests, until they add up to `wanted` bytes.

    Skip any group that would make the total exceed `most` bytes.
    """
    found: list[list[int]] = []
    size = 0
    order = np.argsort(digests, kind="stable").tolist()
    for _, group in groupby(order, key=digests.__getitem__):
        numbers = list(group)
        here = sum(map(texts.size, numbers))
        if size + here <= most:
            found.append(numbers)
            size += here
        if size >= wanted:
            break
    return found


class _Passages:
    """The passages of some documents, with a mark on each passage that other texts contain."""

    def __init__(self, texts: Sequence[str]) -> None:
        found = [passages_of(text) for text in texts]
        self._ends = np.cumsum([0, *map(len, found)])
        together = np.concatenate([np.empty(0, np.uint64), *found])
        self._known, self._places = np.unique(together, return_inverse=True)
        self._seen = np.zeros(len(self._known), dtype=bool)

    def mark(self, texts: Iterable[str]) -> None:
        if not len(self._known):
            return
        for text in texts:
            found = passages_of(text)
            at = np.searchsorted(self._known, found).clip(max=len(self._known) - 1)
            self._seen[at[self._known[at] == found]] = True

    def shares(self) -> NDArray[np.float64]:
        """Return, for each document, the share of its passages that are marked."""
        sums = np.concatenate([[0], np.cumsum(self._seen[self._places])])
        shares: NDArray[np.float64] = np.diff(sums[self._ends]) / np.maximum(np.diff(self._ends), 1)
        return shares

    def share_of(self, documents: Iterable[int]) -> float:
        lengths, shares = np.diff(self._ends), self.shares()
        chosen = list(documents)
        passages = lengths[chosen].sum() if chosen else 0
        return float((lengths[chosen] * shares[chosen]).sum() / passages) if passages else 0.0


def passages_of(text: str) -> Digests:
    """Return a hash of each sequence of `PASSAGE` words, or a single hash for a shorter text."""
    words = WORD.findall(text.casefold())
    codes = np.fromiter((zlib.crc32(word.encode("utf-8", "replace")) for word in words), np.uint64, len(words))
    length = min(PASSAGE, len(codes))
    if not length:
        return codes
    found = np.full(len(codes) - length + 1, length, np.uint64)
    for place in range(length):
        found = found * MULTIPLIER + codes[place : len(codes) - length + 1 + place]
        found ^= found >> np.uint64(29)
    return found


# Images

Images = NDArray[np.uint8]  # [images, side, side, 3]
CELLS = 8  # rows, and columns, of the grid of cells whose mean colors are compared
RISE = 2.0  # least difference in brightness (of 255) that sets a bit of a hash; anything less is noise
BITS = 8  # most bits in which the hashes of copies differ
COMPARED = 256  # most images with similar hashes compared with an image
MOST_APART, APART = 4.0, 0.08  # largest difference between copies (of 255), also as a share of an image's deviation


class Copies:
    """Finds exact and near duplicates of an image among the images numbered in `among`.

    `hashes`: the hashes of all images, made by `hash_of`.
    """

    def __init__(self, images: Images, hashes: Digests, among: NDArray[np.int64]) -> None:
        self._images, self._hashes = images, hashes
        self._among, self._theirs = among, hashes[among]

    def of(self, number: int) -> NDArray[np.int64]:
        """Return the positions in `among` of exact or near duplicates of an image.

        An image of a single color has only exact duplicates.
        """
        bits = np.bitwise_count(self._theirs ^ self._hashes[number])
        alike = np.flatnonzero(bits <= BITS)
        if len(alike) > COMPARED:
            alike = alike[np.argsort(bits[alike], kind="stable")[:COMPARED]]
        cells = _cells(self._images[self._among[alike]], CELLS, CELLS)
        (own,) = _cells(self._images[number][None], CELLS, CELLS)
        apart = np.sqrt(np.square(cells - own).mean(axis=(1, 2, 3)))
        deviations = np.sqrt(cells.var(axis=(1, 2)).mean(axis=1))
        found: NDArray[np.int64] = alike[apart <= np.minimum(APART * deviations, MOST_APART)]
        return found


def hash_of(image: NDArray[np.uint8]) -> int:
    """Return a 64-bit hash of an image [side, side, 3].

    Each bit shows if the image gets brighter from one cell to the next on its right.
    """
    brightness = _cells(image[None], CELLS, CELLS + 1).mean(axis=3)
    return int.from_bytes(np.packbits(np.diff(brightness, axis=2) > RISE).tobytes())


def _cells(images: Images, rows: int, columns: int) -> NDArray[np.float32]:
    """Divide each image into a grid of cells and return the cells' mean colors [images, rows, columns, 3]."""
    side = images.shape[1]
    down, right = (np.arange(count + 1) * side // count for count in (rows, columns))
    sums = np.add.reduceat(images.astype(np.float32), down[:-1], axis=1)
    sums = np.add.reduceat(sums, right[:-1], axis=2)
    sizes = np.outer(np.diff(down).clip(1), np.diff(right).clip(1))
    return (sums / sizes[:, :, None]).astype(np.float32)

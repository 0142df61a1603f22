"""Merkle trees: commitments to a vector of chunks before any byte of it is revealed (rule 12).

A leaf contains the SHA-256 of a chunk's bytes and the sum of squares of its values. A reducer checks each chunk against
its leaf before adding it, because it could not subtract the values later.
"""

import hashlib
import math
import struct
from collections.abc import Sequence

from msgspec import Struct

LEAF = struct.Struct(">32sd")
SUM_TOLERANCE = 1e-9  # relative; two machines adding the same float64 squares differ by about 1e-15


class Leaf(Struct, frozen=True):
    """The leaf of a chunk or span: the `digest` of its encoded bytes and the `sum_squares` of its values (float64)."""

    digest: bytes
    sum_squares: float

    def pack(self) -> bytes:
        return LEAF.pack(self.digest, self.sum_squares)


def leaf_of(encoded: bytes | memoryview, sum_squares: float) -> Leaf:
    return Leaf(hashlib.sha256(encoded).digest(), sum_squares)


def pack_leaves(leaves: Sequence[Leaf]) -> bytes:
    """Return Merkle leaves as bytes to send, 40 bytes per leaf."""
    return b"".join(leaf.pack() for leaf in leaves)


def unpack_leaves(data: bytes) -> list[Leaf]:
    """Parse the output of `pack_leaves`. Raises ValueError if the length is not a multiple of 40."""
    if len(data) % LEAF.size:
        raise ValueError("leaves are 40 bytes each")
    return [Leaf(*fields) for fields in LEAF.iter_unpack(data)]


def root_of(leaves: Sequence[Leaf]) -> bytes:
    return tree_of([leaf.pack() for leaf in leaves])[-1][0]


def span_leaf(leaves: Sequence[Leaf]) -> Leaf:
    """Return a span's leaf: the root over its chunks' leaves, and the sum of their sums of squares.

    The root over the leaves of all spans, in order, identifies a whole vector.
    """
    return Leaf(root_of(leaves), math.fsum(leaf.sum_squares for leaf in leaves))


def tree_of(entries: Sequence[bytes]) -> list[list[bytes]]:
    """Return all levels of the tree, leaves first. Odd nodes are promoted unpaired; prefixes are as in RFC 6962."""
    level = [leaf_hash(entry) for entry in entries] or [hashlib.sha256(b"").digest()]
    levels = [level]
    while len(level) > 1:
        pairs = [_pair(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) - len(level) % 2 :]
        levels.append(level)
    return levels


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\0" + entry).digest()


def path_of(tree: Sequence[Sequence[bytes]], position: int) -> tuple[bytes, ...]:
    """Return a leaf's proof: the sibling hashes up to the root, about 32 x log2(leaves) bytes."""
    path = []
    for level in tree[:-1]:
        if position ^ 1 < len(level):
            path.append(level[position ^ 1])
        position //= 2
    return tuple(path)


def is_under(root: bytes, entry: bytes, position: int, count: int, path: Sequence[bytes]) -> bool:
    """Return True if `entry` is leaf number `position` of the `count` leaves under `root`."""
    if not 0 <= position < count:
        return False
    node, left = leaf_hash(entry), list(path)
    while count > 1:
        if position ^ 1 < count:
            if not left:
                return False
            sibling = left.pop(0)
            node = _pair(sibling, node) if position & 1 else _pair(node, sibling)
        position, count = position // 2, (count + 1) // 2
    return not left and node == root


def _pair(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()

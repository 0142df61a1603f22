"""What a vector of chunks is committed to before any byte of it is revealed (rule 12).

A leaf is sha256 of a chunk's encoded bytes together with the sum of squares of its decoded values, so that a reducer
can check a chunk on arrival, before it adds what nobody could subtract.
"""

import hashlib
import struct
from collections.abc import Sequence

from msgspec import Struct

LEAF = struct.Struct(">32sd")


class Leaf(Struct, frozen=True):
    """One chunk: `digest` of its encoded bytes, `sum_squares` of its decoded values (float64)."""

    digest: bytes
    sum_squares: float

    def pack(self) -> bytes:
        """The 40 bytes of this leaf."""
        return LEAF.pack(self.digest, self.sum_squares)


def leaf_of(encoded: bytes | memoryview, sum_squares: float) -> Leaf:
    """The leaf of a chunk."""
    return Leaf(hashlib.sha256(encoded).digest(), sum_squares)


def pack_leaves(leaves: Sequence[Leaf]) -> bytes:
    """Leaves as they travel, 40 bytes each."""
    return b"".join(leaf.pack() for leaf in leaves)


def unpack_leaves(data: bytes) -> list[Leaf]:
    """Inverse of `pack_leaves`. Raises ValueError where the length is not a multiple of 40."""
    if len(data) % LEAF.size:
        raise ValueError("leaves are 40 bytes each")
    return [Leaf(*fields) for fields in LEAF.iter_unpack(data)]


def root_of(leaves: Sequence[Leaf]) -> bytes:
    """Root of the binary tree over the leaves; an odd node moves up unpaired. Prefixes as in RFC 6962."""
    level = [hashlib.sha256(b"\0" + leaf.pack()).digest() for leaf in leaves]
    if not level:
        return hashlib.sha256(b"").digest()
    while len(level) > 1:
        pairs = [hashlib.sha256(b"\1" + a + b).digest() for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]

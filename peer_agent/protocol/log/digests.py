"""A cheap digest of a replica's state that is the same on all hardware (rule 17)."""

import numpy as np
from numpy.typing import NDArray

VECTORS = ("parameters", "moment1", "moment2")  # a replica's flat vectors, in this order in memory, files and digests
POSITION = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads neighboring positions over all bits
BLOCK = 1 << 16  # elements processed at a time, so that int64 copies fit in the cache


def state_digest(*arrays: NDArray[np.float32]) -> str:
    """Return the digest of all arrays in order, as 16 hexadecimal digits.

    The digest is the wrapping int64 sum of each bit pattern times an odd constant that depends on its position. It does
    not depend on the number of threads or on vector units.
    """
    total, offset = 0, 0
    for array in arrays:
        flat = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
        for start in range(0, flat.size, BLOCK):
            bits = flat[start : start + BLOCK].view(np.int32).astype(np.int64).view(np.uint64)
            place = np.arange(offset + start, offset + start + bits.size, dtype=np.uint64)
            total += int(np.sum(bits * (place * np.uint64(POSITION) | np.uint64(1)), dtype=np.uint64))
        offset += flat.size
    return f"{total % 2**64:016x}"

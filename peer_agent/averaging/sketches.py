"""Sketches: 256 numbers that stand for a gradient, so that it can be compared with a recomputation.

A sketch flips random signs and adds each value to one of 256 buckets. It is linear, and the cosine and norms of two
gradients are about those of their sketches (tug-of-war sketch: Alon, Matias and Szegedy, 1996, and Charikar, Chen and
Farach-Colton, 2002). The signs follow from a seed that the coordinator draws only after all gradients are offered, so
no contributor can make a false gradient that has the sketch of a true one.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.codecs import Floats, decode_into
from peer_agent.averaging.contributor import Accumulator, Sending
from peer_agent.averaging.memory import SCRATCH
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.records import ChunkRange
from peer_agent.protocol.messages import Weight
from peer_agent.protocol.recipe import Codec

BUCKETS = 256


class Signs:
    """The random signs for one round's sketches.

    All chunks share the signs of their elements. Each chunk's whole sketch has one more random sign, and is rotated by
    a random number of buckets.
    """

    def __init__(self, seed: int, elements: int) -> None:
        """Draw the signs for chunks of up to `elements` elements. The same seed gives the same signs everywhere."""
        self._seed = seed
        words = _random(seed, 0, -(-elements // 64))
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), count=elements, bitorder="little")
        self._flips = np.left_shift(bits, 31, dtype=np.uint32)

    def add(self, chunk: int, values: Floats, sketch: Floats) -> None:
        """Add a chunk's values [n] to a sketch [256]."""
        flipped = SCRATCH.room("flipped", np.uint32, values.size)
        np.bitwise_xor(values.view(np.uint32), self._flips[: values.size], out=flipped)
        rows, rest = divmod(values.size, BUCKETS)
        own = flipped[: rows * BUCKETS].view(np.float32).reshape(rows, BUCKETS).sum(axis=0)
        own[:rest] += flipped[rows * BUCKETS :].view(np.float32)
        draw = int(_random(self._seed, chunk + 1, 1)[0])
        sketch += np.roll(own if draw >> 63 else -own, draw % BUCKETS)


def sketch_again(
    gradient_sum: Floats, tokens: int, *, codec: Codec, grid: Grid, parts: Iterable[ChunkRange], seed: int
) -> bytes:
    """Encode a gradient sum [P] as its contributor did, and return the sketch of these chunks.

    Raises NotFinite if the gradient is not finite.
    """
    accumulator = Accumulator(grid)
    accumulator.add(gradient_sum)
    return sketch_of(accumulator.offer(codec, [Weight(0, grid.chunks, tokens)]), grid, parts, seed)


def sketch_of(sending: Sending, grid: Grid, parts: Iterable[ChunkRange], seed: int) -> bytes:
    """Return the sketch of these chunks of an encoded gradient, as reducers make it: 256 float32."""
    signs, sketch = Signs(seed, grid.chunk_elements), np.zeros(BUCKETS, np.float32)
    values = np.empty(grid.chunk_elements, np.float32)
    for part in parts:
        for chunk in range(part.first, part.stop):
            own = values[: grid.length(chunk)]
            decode_into(sending.codec, sending.payloads[chunk], own)
            signs.add(chunk, own, sketch)
    return sketch.astype("<f4").tobytes()


def _random(seed: int, stream: int, words: int) -> NDArray[np.uint64]:
    """Return 64-bit words of Philox, whose output numpy keeps the same on all systems and in all versions."""
    return np.random.Philox(key=seed, counter=stream << 128).random_raw(words)

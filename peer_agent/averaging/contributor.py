"""A contributor's gradient sums between two commits.

The same sums provide carry-over, partial inclusion and error feedback (rule 9). Each chunk has a sum S of
token-weighted gradients over W tokens. The contributor sends enc(S/W). At the commit it subtracts W * dec(sent) from S.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from peer_agent.averaging.codecs import Encoded, Floats, decode_into, encode_with_leaves
from peer_agent.averaging.memory import SCRATCH, Payloads
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.merkle import Leaf, root_of
from peer_agent.protocol.messages import Weight
from peer_agent.protocol.recipe import Codec

AT_ONCE = 64 * 1024  # in elements; short chunks are encoded in batches that fit the processor's cache


class NotFinite(ArithmeticError):
    """Raised if a gradient, or the sum of gradients, contains a non-finite value."""


class Sending(Struct, frozen=True, kw_only=True, eq=False):
    """The data behind an offer: each chunk's payload and leaf. Chunks without tokens are sent as zeros."""

    weights: tuple[Weight, ...]  # covering every chunk, including ranges without tokens
    codec: Codec
    payloads: Sequence[bytes | memoryview]
    leaves: list[Leaf]
    root: bytes
    norm: float  # norm of the decoded payloads


class Accumulator:
    """The gradient sums [P], and the open offer if there is one. The sums are frozen while an offer is open."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._sum = np.zeros(grid.elements, np.float32)
        self._sending: Sending | None = None

    @property
    def sending(self) -> Sending | None:
        return self._sending

    def add(self, gradient_sum: Floats) -> None:
        """Add a gradient [P] of the summed loss.

        Raises NotFinite, and leaves the sums unchanged, if any value is not finite.
        """
        if self._sending:
            raise RuntimeError("an offered accumulator is frozen until commit or void")
        if gradient_sum.shape != self._sum.shape or gradient_sum.dtype != np.float32:
            raise ValueError(f"a gradient is float32 {self._sum.shape}, not {gradient_sum.shape}")
        if not _is_finite(gradient_sum):
            raise NotFinite
        with np.errstate(all="ignore"):  # `offer` detects overflow
            self._sum += gradient_sum

    def offer(self, codec: Codec, weights: Sequence[Weight]) -> Sending:
        """Freeze the sums, divide them by the tokens in `weights`, and encode the quotients.

        Repeated calls return the same object. Raises NotFinite if the sums have overflowed.
        """
        if self._sending is None:
            self._sending = self._encoded(codec, tuple(weights))
        if (self._sending.codec, self._sending.weights) != (codec, tuple(weights)):
            raise RuntimeError(f"already offered in {self._sending.codec}")
        return self._sending

    def remove_averaged(self, included: Iterable[tuple[int, int]]) -> None:
        """Subtract what was sent for the chunk ranges [first, stop) that the commit includes. Unfreeze the sums."""
        sending = self._frozen()
        tokens = _by_chunk(sending.weights)
        for chunk in {chunk for first, stop in included for chunk in range(first, stop)}:
            self._subtract(chunk, sending, tokens[chunk])
        self._sending = None

    def release(self) -> None:
        """Unfreeze the sums, without changing them, after the coordinator has declared the round void."""
        self._frozen()
        self._sending = None

    def _frozen(self) -> Sending:
        if self._sending is None:
            raise RuntimeError("nothing is offered")
        return self._sending

    def _encoded(self, codec: Codec, weights: tuple[Weight, ...]) -> Sending:
        tokens, encoded, room = _by_chunk(weights), list[Encoded](), Payloads(codec, self.grid, 0, self.grid.chunks)
        for first, stop in _batches(self.grid):
            encoded += self._batch(codec, first, tokens[first:stop], room)
        leaves = [leaf for _, leaf in encoded]
        return Sending(
            weights=weights,
            codec=codec,
            payloads=[payload for payload, _ in encoded],
            leaves=leaves,
            root=root_of(leaves),
            norm=math.sqrt(sum(leaf.sum_squares for leaf in leaves)),
        )

    def _batch(self, codec: Codec, first: int, tokens: Sequence[int], room: Payloads) -> list[Encoded]:
        try:
            return encode_with_leaves(codec, self._means(first, tokens), room.rows(first, len(tokens)))
        except ValueError as error:
            raise NotFinite from error

    def _means(self, first: int, tokens: Sequence[int]) -> Floats:
        """Return each chunk's sum divided by its tokens, [chunks, n]. Chunks without tokens are zeros."""
        start, stop = self.grid.bounds(first)[0], self.grid.bounds(first + len(tokens) - 1)[1]
        sums = self._sum[start:stop].reshape(len(tokens), -1)
        means: Floats = SCRATCH.room("means", np.float32, sums.size).reshape(sums.shape)
        with np.errstate(all="ignore"):
            np.divide(sums, np.array(tokens, np.float32).reshape(-1, 1), out=means)
        for row in (row for row, weight in enumerate(tokens) if not weight):
            if not _is_finite(sums[row]):
                raise NotFinite
            means[row] = 0
        return means

    def _subtract(self, chunk: int, sending: Sending, tokens: int) -> None:
        values = self._values(chunk)
        if sending.codec == "fp32":
            values[:] = 0  # exactly zero: rounding errors of the division are not carried over
            return
        sent: Floats = SCRATCH.room("means", np.float32, values.size)
        decode_into(sending.codec, sending.payloads[chunk], sent)
        np.multiply(sent, np.float32(tokens), out=sent)
        np.subtract(values, sent, out=values)

    def _values(self, chunk: int) -> Floats:
        start, stop = self.grid.bounds(chunk)
        return self._sum[start:stop]


def _by_chunk(weights: Sequence[Weight]) -> list[int]:
    return [part.tokens for part in weights for _ in range(part.first, part.stop)]


def _batches(grid: Grid) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, stop) of chunks of equal length, for `encode_with_leaves`."""
    whole = grid.elements // grid.chunk_elements
    step = max(1, AT_ONCE // grid.chunk_elements)
    for first in range(0, whole, step):
        yield first, min(first + step, whole)
    if whole < grid.chunks:
        yield whole, grid.chunks


def _is_finite(values: Floats) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.min(initial=0)) and np.isfinite(values.max(initial=0)))

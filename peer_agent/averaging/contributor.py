"""The floats a contributor holds between two commits. What they weigh, and whose samples they are, its core knows.

One mechanism is carry-over, partial inclusion and error feedback at once (rule 9): per chunk a sum S of
token-weighted gradients with W tokens. enc(S/W) is sent; at the commit W * dec(sent) is subtracted.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from peer_agent.averaging.codecs import Floats, decode, decode_with_leaf, encode
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.merkle import Leaf, root_of
from peer_agent.protocol.messages import Weight
from peer_agent.protocol.recipe import Codec


class NotFinite(ArithmeticError):
    """Gradients that are no numbers, or have added up to such."""


class Sending(Struct, frozen=True, kw_only=True, eq=False):
    """The bytes behind an offer: a payload and a leaf for every chunk, zeros where W is 0."""

    weights: tuple[Weight, ...]  # covers every chunk, ranges of W = 0 too
    codec: Codec
    payloads: list[bytes]
    leaves: list[Leaf]
    root: bytes
    norm: float  # of the decoded payloads


class Accumulator:
    """Gradient sums, [P], and the offer they are frozen for."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._sum = np.zeros(grid.elements, np.float32)
        self._sending: Sending | None = None

    @property
    def sending(self) -> Sending | None:
        """The offer this is frozen for."""
        return self._sending

    def add(self, gradient_sum: Floats) -> None:
        """Add the gradient of a summed loss, [P].

        Raises NotFinite, changing nothing. Raises RuntimeError between offer and commit.
        """
        if self._sending:
            raise RuntimeError("an offered accumulator is frozen until commit or void")
        if gradient_sum.shape != self._sum.shape or gradient_sum.dtype != np.float32:
            raise ValueError(f"a gradient is float32 {self._sum.shape}, not {gradient_sum.shape}")
        if not _is_finite(gradient_sum):
            raise NotFinite
        with np.errstate(all="ignore"):  # what overflows is found by `offer`
            self._sum += gradient_sum

    def offer(self, codec: Codec, weights: Sequence[Weight]) -> Sending:
        """Freeze and encode with these tokens; asked again, the same object with the same bytes.

        Raises NotFinite where finite gradients have added up to one that is not. Raises RuntimeError while frozen
        with another codec or other weights.
        """
        if self._sending is None:
            self._sending = self._encoded(codec, tuple(weights))
        if (self._sending.codec, self._sending.weights) != (codec, tuple(weights)):
            raise RuntimeError(f"already offered in {self._sending.codec}")
        return self._sending

    def remove_averaged(self, included: Iterable[tuple[int, int]]) -> None:
        """The commit: chunk ranges [first, stop) in which this was averaged in. What was sent leaves the sum."""
        sending = self._frozen()
        tokens = _by_chunk(sending.weights)
        for chunk in {chunk for first, stop in included for chunk in range(first, stop)}:
            self._subtract(chunk, sending, tokens[chunk])
        self._sending = None

    def release(self) -> None:
        """The void: go on adding to what is here."""
        self._frozen()
        self._sending = None

    def _frozen(self) -> Sending:
        if self._sending is None:
            raise RuntimeError("nothing is offered")
        return self._sending

    def _encoded(self, codec: Codec, weights: tuple[Weight, ...]) -> Sending:
        if not _is_finite(self._sum):
            raise NotFinite
        payloads, leaves = [], []
        for chunk, tokens in zip(self.grid, _by_chunk(weights), strict=True):
            payload = encode(codec, self._mean(chunk, tokens))
            payloads.append(payload)
            leaves.append(decode_with_leaf(codec, payload, self.grid.length(chunk))[1])
        return Sending(
            weights=weights,
            codec=codec,
            payloads=payloads,
            leaves=leaves,
            root=root_of(leaves),
            norm=math.sqrt(sum(leaf.sum_squares for leaf in leaves)),
        )

    def _mean(self, chunk: int, tokens: int) -> Floats:
        """S/W, or zeros where there are no tokens: a residual alone has no weight and waits for some."""
        values = self._values(chunk)
        return values / np.float32(tokens) if tokens else np.zeros_like(values)

    def _subtract(self, chunk: int, sending: Sending, tokens: int) -> None:
        values = self._values(chunk)
        if sending.codec == "fp32":
            values[:] = 0  # by definition: what the division rounded away is no residual
        else:
            sent = decode(sending.codec, sending.payloads[chunk], values.size)
            values -= sent * np.float32(tokens)

    def _values(self, chunk: int) -> Floats:
        start, stop = self.grid.bounds(chunk)
        return self._sum[start:stop]


def _by_chunk(weights: Sequence[Weight]) -> list[int]:
    return [part.tokens for part in weights for _ in range(part.first, part.stop)]


def _is_finite(values: Floats) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.min(initial=0)) and np.isfinite(values.max(initial=0)))

"""What a contributor holds between two commits.

One mechanism is carry-over, partial inclusion and error feedback at once (rule 9): per chunk a sum S of
token-weighted gradients and the tokens W in it. enc(S/W) is sent; at the commit W * dec(sent) is subtracted.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.averaging.codecs import Floats, decode, decode_with_leaf, encode
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import AccumulatorId, RunId
from peer_agent.protocol.merkle import Leaf, root_of
from peer_agent.protocol.messages import DoneUnit, Offer, Weight
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.records import Record


class Sending(Struct, frozen=True, kw_only=True, eq=False):
    """A frozen offer and the bytes behind it: a payload and a leaf for every chunk, zeros where W is 0."""

    accumulator: AccumulatorId
    units: tuple[DoneUnit, ...]
    weights: tuple[Weight, ...]  # covers every chunk, ranges of W = 0 too
    loss_tokens: int
    loss_sum: float  # nats
    codec: Codec
    payloads: list[bytes]
    leaves: list[Leaf]
    root: bytes
    norm: float  # of the decoded payloads

    def message(self, run: RunId, step: int, fence: int, attempt: int) -> Offer:
        """The offer as it is said."""
        return Offer(
            run=run,
            step=step,
            fence=fence,
            attempt=attempt,
            accumulator=self.accumulator,
            units=self.units,
            weights=self.weights,
            loss_tokens=self.loss_tokens,
            loss_sum=self.loss_sum,
            norm=self.norm,
            root=self.root,
        )


class Accumulator:
    """Gradient sums and tokens per chunk, the units behind them, and the offer they are frozen for."""

    def __init__(self, accumulator: AccumulatorId, grid: Grid) -> None:
        self.id = accumulator
        self.grid = grid
        self._sum = np.zeros(grid.elements, np.float32)
        self._tokens = np.zeros(grid.chunks, np.int64)
        self._units: list[DoneUnit] = []
        self._loss_tokens = 0
        self._loss_sum = 0.0
        self._sending: Sending | None = None

    @property
    def units(self) -> tuple[DoneUnit, ...]:
        """Done and not yet in any commit."""
        return tuple(self._units)

    @property
    def samples(self) -> int:
        """Samples of these units."""
        return sum(done.unit.samples for done in self._units)

    @property
    def loss_tokens(self) -> int:
        """Loss tokens of these units. What earlier rounds left out of a chunk counts in its weight alone."""
        return self._loss_tokens

    @property
    def loss_sum(self) -> float:
        """Nats over these tokens."""
        return self._loss_sum

    @property
    def sending(self) -> Sending | None:
        """The offer this is frozen for."""
        return self._sending

    def add(self, gradient_sum: Floats, tokens: int, loss_sum: float, units: Sequence[DoneUnit]) -> None:
        """Add the gradient of a loss *summed* over `tokens`, [P].

        Raises Problem E108 where it is not finite: then nothing is changed, and these units alone go back.
        Raises RuntimeError between offer and commit.
        """
        if self._sending:
            raise RuntimeError("an offered accumulator is frozen until commit or void")
        if gradient_sum.shape != self._sum.shape or gradient_sum.dtype != np.float32:
            raise ValueError(f"a gradient is float32 {self._sum.shape}, not {gradient_sum.shape}")
        if not (_is_finite(gradient_sum) and math.isfinite(loss_sum)):
            raise _not_finite(units)
        with np.errstate(all="ignore"):  # what overflows is found by `offer`
            self._sum += gradient_sum
        self._tokens += tokens
        self._units += units
        self._loss_tokens += tokens
        self._loss_sum += loss_sum

    def offer(self, codec: Codec) -> Sending:
        """Freeze and encode; asked again, the same object with the same bytes.

        Raises Problem E108 where finite gradients have added up to one that is not: give the units back and
        start another accumulator. Raises RuntimeError while frozen with another codec.
        """
        if self._sending is None:
            self._sending = self._encoded(codec)
        if self._sending.codec != codec:
            raise RuntimeError(f"already offered in {self._sending.codec}")
        return self._sending

    def settle(self, included: NDArray[np.bool_]) -> None:
        """The commit: `included` [chunks] is where this was averaged in. What was sent leaves the sum."""
        sending = self._frozen()
        settled = np.flatnonzero(included)
        for chunk in settled:
            self._subtract(int(chunk), sending)
        self._tokens[settled] = 0
        if settled.size:
            self._units, self._loss_tokens, self._loss_sum = [], 0, 0.0
        self._sending = None

    def release(self) -> None:
        """The void: go on adding to what is here."""
        self._frozen()
        self._sending = None

    def _frozen(self) -> Sending:
        if self._sending is None:
            raise RuntimeError("nothing is offered")
        return self._sending

    def _encoded(self, codec: Codec) -> Sending:
        if not _is_finite(self._sum):
            raise _not_finite(self._units)
        payloads, leaves = [], []
        for chunk in self.grid:
            payload = encode(codec, self._mean(chunk))
            payloads.append(payload)
            leaves.append(decode_with_leaf(codec, payload, self.grid.length(chunk))[1])
        return Sending(
            accumulator=self.id,
            units=self.units,
            weights=tuple(_weights(self._tokens)),
            loss_tokens=self._loss_tokens,
            loss_sum=self._loss_sum,
            codec=codec,
            payloads=payloads,
            leaves=leaves,
            root=root_of(leaves),
            norm=math.sqrt(sum(leaf.sum_squares for leaf in leaves)),
        )

    def _mean(self, chunk: int) -> Floats:
        """S/W, or zeros where there are no tokens: a residual alone has no weight and waits for some."""
        tokens = self._tokens[chunk]
        values = self._values(chunk)
        return values / np.float32(tokens) if tokens else np.zeros_like(values)

    def _subtract(self, chunk: int, sending: Sending) -> None:
        values = self._values(chunk)
        if sending.codec == "fp32":
            values[:] = 0  # by definition: what the division rounded away is no residual
        else:
            sent = decode(sending.codec, sending.payloads[chunk], values.size)
            values -= sent * np.float32(self._tokens[chunk])

    def _values(self, chunk: int) -> Floats:
        start, stop = self.grid.bounds(chunk)
        return self._sum[start:stop]


def included_of(record: Record, slot: int) -> NDArray[np.bool_]:
    """[chunks] where a record averaged this slot in."""
    included = np.zeros(Grid(record.elements, record.chunk_elements).chunks, np.bool_)
    for span in record.spans:
        for entry in span.included:
            if slot in entry.slots:
                included[entry.first : entry.stop] = True
    return included


def _weights(tokens: NDArray[np.int64]) -> Iterator[Weight]:
    first = 0
    for weight, group in groupby(tokens.tolist()):
        stop = first + len(list(group))
        yield Weight(first, stop, weight)
        first = stop


def _is_finite(values: Floats) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.min(initial=0)) and np.isfinite(values.max(initial=0)))


def _not_finite(units: Iterable[DoneUnit]) -> Problem:
    ranges = sorted({(done.unit.shard, done.unit.start, done.unit.stop) for done in units})
    shards = sorted({shard for shard, _, _ in ranges})
    return Problem.of(
        "E108",
        samples=", ".join(f"{start}-{stop - 1}" for _, start, stop in ranges),
        shard=", ".join(map(str, shards)),
    )

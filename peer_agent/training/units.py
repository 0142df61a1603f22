"""Leased units on a device: their samples, batches made in advance, units per pass, and results. This module does not
need torch.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import DoneUnit
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.sampling import order_of
from peer_agent.recipes.training import Batch, Place, Samples, Shard, training_of


class Joined(Struct, frozen=True):
    """The samples of several units as one batch, and the number of loss units in each."""

    batch: Batch
    loss_units: tuple[int, ...]


class Made(Struct, frozen=True):
    """A batch that is being made in the background, with its recipe and units."""

    recipe: Recipe  # the recipe as it applies at the batch's step
    units: tuple[Unit, ...]
    batch: "Future[Joined]"


class Batches:
    """Makes batches in one thread, so that shards need no lock. At most one batch is made in advance."""

    def __init__(self, make: Callable[[Recipe, Unit], Batch], loss_units_in: Callable[[Batch], int]) -> None:
        self._make, self._loss_units_in = make, loss_units_in
        self._thread = ThreadPoolExecutor(1, "batches")
        self._ahead: Made | None = None

    def take(self, recipe: Recipe, units: tuple[Unit, ...], then: tuple[Unit, ...] = ()) -> Joined:
        """Return the batch of these units, and start to make the batch of the units `then`. Raises the errors of the
        function `make` passed to the constructor.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None or (ahead.recipe, ahead.units) != (recipe, units):
            ahead = self._begun(recipe, units)
        batch = ahead.batch.result()
        if then:
            self._ahead = self._begun(recipe, then)
        return batch

    def _begun(self, recipe: Recipe, units: tuple[Unit, ...]) -> Made:
        return Made(recipe, units, self._thread.submit(self._joined, recipe, units))

    def _joined(self, recipe: Recipe, units: tuple[Unit, ...]) -> Joined:
        """Make each unit's batch separately, then join them, so that randomness stays keyed by each unit's samples
        (rule 33).
        """
        batches = [self._make(recipe, unit) for unit in units]
        whole = batches[0] if len(batches) == 1 else tuple(map(np.concatenate, zip(*batches, strict=True)))
        return Joined(whole, tuple(map(self._loss_units_in, batches)))


class Shards(Protocol):
    """Shards by number: a list, or a mapping that loads a shard on access."""

    def __getitem__(self, shard: int, /) -> Shard: ...


def batch_of(recipe: Recipe, unit: Unit, *, run: RunId, shard: Shard) -> Batch:
    """Return a unit's samples as model input, one row per sample. Raises ValueError if the unit is beyond the shard."""
    kind = training_of(recipe)
    samples = samples_of(unit, run=run, of=recipe.samples_in(kind.size_of(shard)))
    return kind.batch_of(recipe, shard, samples, Place(run, unit.epoch, unit.shard))


def samples_of(unit: Unit, *, run: RunId, of: int) -> Samples:
    """Return the numbers of a unit's samples in a shard of `of` samples. Raises ValueError if the shard is shorter."""
    if not 0 <= unit.start < unit.stop <= of:
        raise ValueError(f"samples {unit.start} to {unit.stop} of a shard of {of}")
    return order_of(run, unit.epoch, unit.shard, of)[unit.start : unit.stop]


# The number of units that a device computes in one pass is determined by trial. A cut discards the current pass, and an
# update waits for it, so the number grows only while more units are faster.

MOST_UNITS = 64
# Passes with each number of units. Only the fastest counts, because first passes and data fetches are slow.
TRIES = 3
GAIN = 1.1  # the number of units doubles again only if the last doubling raised samples per second this much
LONGEST_S = 1.0  # limit on a pass of several units, estimated from one with fewer


class DeviceBatch:
    """The number of units in the next pass. It starts at 1, doubles for as long as that is faster, and then never grows
    again.
    """

    def __init__(self, most: int = 1) -> None:
        """Begin with one unit. `most`: the limit, which is 1 if using more units cannot be faster."""
        self.most = most
        self._found, self._alone = 1, 0
        self._rates: list[float] = []  # speeds of passes with the current number of units, in samples per second
        self._rate_before = 0.0  # speed with half as many units

    @property
    def units(self) -> int:
        return 1 if self._alone else self._found

    def took(self, units: int, samples: int, seconds: float) -> None:
        self._alone = max(0, self._alone - 1)
        if units != self._found or self._found == self.most:
            return  # this number is not on trial, or no larger one may be tried
        self._rates.append(samples / seconds)
        if len(self._rates) < TRIES:
            return
        rate, before = max(self._rates), self._rate_before
        self._rates, self._rate_before = [], rate
        if rate < GAIN * before:
            self._settle(self._found // 2)
        elif 2 * self._found > self.most or 2 * samples / rate > LONGEST_S:
            self._settle(self._found)
        else:
            self._found *= 2

    def fits(self, units: int) -> None:
        """Limit passes to the number of units that fit in memory. 0 means that even one unit is computed in parts."""
        if units < self._found:
            self._settle(max(1, units))
        self.most = max(self._found, min(self.most, units))

    def was_not_finite(self, units: int) -> None:
        """Record a pass whose gradient was not finite. If it had several units, limit the next passes to one unit each,
        until as many units have been computed.
        """
        self._alone = units if units > 1 else max(0, self._alone - 1)

    def _settle(self, units: int) -> None:
        self._found = self.most = units


class Computed(Struct, frozen=True):
    """Units whose gradient was computed in one pass. `loss_sum`: their summed loss in nats."""

    units: tuple[Unit, ...]
    base_step: int
    loss_sum: float
    loss_tokens: tuple[int, ...]  # the number of loss tokens in each unit


class NonFinite(Struct, frozen=True):
    """Units whose gradient was discarded because it was not finite."""

    units: tuple[Unit, ...]


class Taken(Struct, frozen=True):
    """The gradient summed since the last `take_sum`, as a flat vector, with its loss and units."""

    gradient_sum: NDArray[np.float32]
    loss_tokens: int
    loss_sum: float
    units: tuple[DoneUnit, ...]

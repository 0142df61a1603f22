"""Leased units on their way through a device: samples, batches made ahead, how many to a pass, and what comes of them.

Nothing here needs torch.
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
    """The samples of units as one batch, and the loss units of each."""

    batch: Batch
    loss_units: tuple[int, ...]


class Made(Struct, frozen=True):
    """What is made, or being made, and of what."""

    recipe: Recipe  # as it is at the step for which the batch is
    units: tuple[Unit, ...]
    batch: "Future[Joined]"


class Batches:
    """At most one is made ahead. All are made by one thread, so shards need no lock."""

    def __init__(self, make: Callable[[Recipe, Unit], Batch], loss_units_in: Callable[[Batch], int]) -> None:
        self._make, self._loss_units_in = make, loss_units_in
        self._thread = ThreadPoolExecutor(1, "batches")
        self._ahead: Made | None = None

    def take(self, recipe: Recipe, units: tuple[Unit, ...], then: tuple[Unit, ...] = ()) -> Joined:
        """That of units, which may be there already; that of `then` is begun. Raises what `make` raises."""
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
        """Each unit's by itself, so that chance in it stays keyed by its samples (rule 33)."""
        batches = [self._make(recipe, unit) for unit in units]
        whole = batches[0] if len(batches) == 1 else tuple(map(np.concatenate, zip(*batches, strict=True)))
        return Joined(whole, tuple(map(self._loss_units_in, batches)))


class Shards(Protocol):
    """Shards by number: a list, or a mapping that loads them when they are asked for."""

    def __getitem__(self, shard: int, /) -> Shard: ...


def batch_of(recipe: Recipe, unit: Unit, *, run: RunId, shard: Shard) -> Batch:
    """A unit as the model takes it, a row per sample. Raises ValueError for a unit beyond the shard."""
    kind = training_of(recipe)
    samples = samples_of(unit, run=run, of=recipe.samples_in(kind.size_of(shard)))
    return kind.batch_of(recipe, shard, samples, Place(run, unit.epoch, unit.shard))


def samples_of(unit: Unit, *, run: RunId, of: int) -> Samples:
    """The samples of a unit by number, where the shard holds so many. Raises ValueError for a unit beyond it."""
    if not 0 <= unit.start < unit.stop <= of:
        raise ValueError(f"samples {unit.start} to {unit.stop} of a shard of {of}")
    return order_of(run, unit.epoch, unit.shard, of)[unit.start : unit.stop]


# How many units a device computes in one pass: the largest number that is found, by trial, to pay. A cut leaves the
# pass in hand undone, and an update waits for it: no more units than pay are worth that.

MOST_UNITS = 64
TRIES = 3  # passes of a number of units, of which the fastest counts: the first of a size is slow, as are fetched data
GAIN = 1.1  # in samples per second, for twice as many units
LONGEST_S = 1.0  # that a pass may take with more than one unit, as far as one with fewer tells


class DeviceBatch:
    """`units`: of the next pass. The number doubles from 1 while that pays, and never grows again once it does not."""

    def __init__(self, most: int = 1) -> None:
        """`most`: 1 where there is nothing to win."""
        self.most = most
        self._found, self._alone = 1, 0
        self._rates: list[float] = []  # of passes with the number that is tried, in samples per second
        self._rate_before = 0.0  # with half as many units

    @property
    def units(self) -> int:
        """How many the device takes next."""
        return 1 if self._alone else self._found

    def took(self, units: int, samples: int, seconds: float) -> None:
        """A pass is done: of so many units, with so many samples."""
        self._alone = max(0, self._alone - 1)
        if units != self._found or self._found == self.most:
            return  # another number than is tried, or nothing left to try
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
        """Memory is too short for more than these in one pass; for less than one it may be computed in parts."""
        if units < self._found:
            self._settle(max(1, units))
        self.most = max(self._found, min(self.most, units))

    def was_not_finite(self, units: int) -> None:
        """A pass was not: where it had several units, each is computed alone once, to find those that are to blame."""
        self._alone = units if units > 1 else max(0, self._alone - 1)

    def _settle(self, units: int) -> None:
        self._found = self.most = units


class Computed(Struct, frozen=True):
    """Units whose gradient has been computed in one pass. `loss_sum`: nats over the `loss_tokens` of all."""

    units: tuple[Unit, ...]
    base_step: int
    loss_sum: float
    loss_tokens: tuple[int, ...]  # of each


class NonFinite(Struct, frozen=True):
    """Units whose gradient was not finite and was thrown away."""

    units: tuple[Unit, ...]


class Taken(Struct, frozen=True):
    """Everything since the last hand-over: the flat gradient of the summed loss, and what it is made of."""

    gradient_sum: NDArray[np.float32]
    loss_tokens: int
    loss_sum: float
    units: tuple[DoneUnit, ...]

"""What is computed in one pass, made in a thread of its own: the next one while the device computes."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from msgspec import Struct

from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import Batch


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

"""Batches of units, in a thread of their own: the next one is made while the device computes."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec import Struct

from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import Batch


class Made(Struct, frozen=True):
    """A batch that is made, or being made, and of what."""

    recipe: Recipe  # as it is at the step for which the batch is
    unit: Unit
    batch: "Future[Batch]"


class Batches:
    """At most one batch is made ahead. All are made by one thread, so shards need no lock."""

    def __init__(self, make: Callable[[Recipe, Unit], Batch]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "batches")
        self._ahead: Made | None = None

    def take(self, recipe: Recipe, unit: Unit, then: Unit | None = None) -> Batch:
        """That of a unit, which may be there already; that of `then` is begun. Raises what `make` raises."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or (ahead.recipe, ahead.unit) != (recipe, unit):
            ahead = self._begun(recipe, unit)
        batch = ahead.batch.result()
        if then is not None:
            self._ahead = self._begun(recipe, then)
        return batch

    def _begun(self, recipe: Recipe, unit: Unit) -> Made:
        return Made(recipe, unit, self._thread.submit(self._make, recipe, unit))

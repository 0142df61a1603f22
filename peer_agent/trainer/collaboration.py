"""The connection between an agent and the training loop that computes its units. The loop is either the agent's own,
`compute_units`, or that of another program using `peer_agent.collaboration`.
"""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

from msgspec import Struct

from peer_agent.protocol.log.records import Unit
from peer_agent.training.units import Computed, NonFinite

if TYPE_CHECKING:  # torch is loaded only for training
    from peer_agent.training.loop import UnitInHand

LOOK_S = 0.5  # on some systems, a wait without a timeout blocks Ctrl-C


class Asked(Struct, frozen=True):
    """Units to compute in one pass, and the future that receives their result."""

    begin: "Callable[..., UnitInHand]"
    units: tuple[Unit, ...]
    result: "Future[Computed | NonFinite]"


class Collaboration:
    """Work for one training loop. The loop takes units from `units()`, computes each gradient, and calls `step()`.
    Updates combine all machines' gradients and change the parameters between units. The loop must not change them.
    """

    def __init__(self) -> None:
        # The core requests one computation at a time.
        self._asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._asks: Asked | None = None
        self._in_hand: UnitInHand | None = None
        self._is_over = False
        self.error: BaseException | None = None  # the error that made this machine leave the run, or None

    # --- the loop's side ----------------------------------------------------------------------------------------

    def units(self) -> "Iterator[UnitInHand]":
        """Yield units until this machine has left the run. If a loop stops during a unit, the next loop gets the same
        unit. Raises the error that made this machine leave. Raises Problem E107 if a unit needs too much memory, or
        E111 if its shard is damaged.
        """
        while self._has_one() or self._waits_for_one():
            assert self._asks is not None
            try:
                self._in_hand = self._asks.begin(*self._asks.units)
            except CancelledError:  # the agent ended while data was being fetched; `end` reports that
                self._asks = None
                continue
            except Exception as error:
                self.fail(error)
                raise
            yield self._in_hand
            if self._in_hand is not None:
                raise RuntimeError("the unit before has no step() yet")
        if self.error is not None:
            raise self.error

    def step(self) -> None:
        """Finish the current unit. It counts only if its gradient is finite. Raises RuntimeError if there is no current
        unit, or ValueError if the loop computed no loss or gradient for it.
        """
        if self._asks is None or self._in_hand is None:
            raise RuntimeError("there is no unit in hand")
        # This comes first, because Ctrl-C may interrupt between any two statements.
        self._asks.result.set_result(self._in_hand.finish())
        self._asks = self._in_hand = None

    def fail(self, error: BaseException) -> None:
        """Report that the current unit cannot be computed."""
        asked, self._asks, self._in_hand = self._asks, None, None
        if asked is not None:
            asked.result.set_exception(error)

    def _has_one(self) -> bool:
        """Return True if the last loop stopped during a unit for which the agent is still waiting."""
        if self._asks is not None and self._asks.result.done():
            self._asks = self._in_hand = None
        return self._asks is not None

    def _waits_for_one(self) -> bool:
        """Wait for a unit. Return False if none will come."""
        while not self._is_over:
            try:
                asked = self._asked.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            if asked is None:
                self._is_over = True
            elif asked.result.set_running_or_notify_cancel():
                self._asks = asked
                return True
        return False

    # --- the agent's side ---------------------------------------------------------------------------------------

    def ask(self, begin: "Callable[..., UnitInHand]", *units: Unit) -> "Future[Computed | NonFinite]":
        """Ask the loop to compute these units in one pass. If the loop is another program's, give it only one unit."""
        result: Future[Computed | NonFinite] = Future()
        self._asked.put(Asked(begin, units, result))
        return result

    def end(self, error: BaseException | None = None) -> None:
        """End the loop. If `error` is given, the loop raises it."""
        self.error = self.error or error
        self._asked.put(None)


def compute_units(collaboration: Collaboration) -> None:
    """Run the agent's own loop: compute units until this machine has left the run. The caller of `ask` receives any
    error.
    """
    try:
        for unit in collaboration.units():
            unit.backward()
            collaboration.step()
    except Exception as error:  # noqa: BLE001 (the caller of `ask` receives the error)
        collaboration.fail(error)

"""The units that a run leases to this machine, one after another, for a loop that computes them.

The agent's own loop is `compute_units`; `peer_agent.collaboration` lends the place to anybody else's.
"""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

from msgspec import Struct

from peer_agent.protocol.log.records import Unit
from peer_agent.training.units import Computed, NonFinite

if TYPE_CHECKING:  # torch is loaded by whoever trains
    from peer_agent.training.loop import UnitInHand

LOOK_S = 0.5  # on some systems whoever waits without a limit does not hear Ctrl-C


class Asked(Struct, frozen=True):
    """Units that are to be computed in one pass, and who waits for what comes of them."""

    begin: "Callable[..., UnitInHand]"
    units: tuple[Unit, ...]
    result: "Future[Computed | NonFinite]"


class Collaboration:
    """A loop takes `units()`, computes the gradient of each, and says `step()`. One loop at a time.

    What it computes is one machine's part: the update is made of everybody's, and comes when all is there. So
    parameters change between two units, and never by the loop.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()  # the core asks for one at a time
        self._asks: Asked | None = None
        self._in_hand: UnitInHand | None = None
        self._is_over = False
        self.error: BaseException | None = None  # by which this machine left the run

    # --- the loop's side ----------------------------------------------------------------------------------------

    def units(self) -> "Iterator[UnitInHand]":
        """Until this machine has left the run. Raises what ended it, and Problem E107, E111 of a unit.

        A loop that is left in the middle of a unit gets that again when it asks anew.
        """
        while self._has_one() or self._waits_for_one():
            assert self._asks is not None
            try:
                self._in_hand = self._asks.begin(*self._asks.units)
            except CancelledError:  # the agent ended while data were fetched; that is told by `end`
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
        """The unit in hand is computed; it counts if its gradient is finite. Raises ValueError, RuntimeError."""
        if self._asks is None or self._in_hand is None:
            raise RuntimeError("there is no unit in hand")
        self._asks.result.set_result(self._in_hand.finish())  # first: Ctrl-C may come between any two of these
        self._asks = self._in_hand = None

    def fail(self, error: BaseException) -> None:
        """The unit in hand cannot be computed; whoever asked for it is told."""
        asked, self._asks, self._in_hand = self._asks, None, None
        if asked is not None:
            asked.result.set_exception(error)

    def _has_one(self) -> bool:
        """Whether the loop was left in the middle of a unit that nobody was told of yet."""
        if self._asks is not None and self._asks.result.done():
            self._asks = self._in_hand = None
        return self._asks is not None

    def _waits_for_one(self) -> bool:
        """False where there will be none."""
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
        """Have these computed, in one pass; a loop that is not the agent's own is asked for one at a time."""
        result: Future[Computed | NonFinite] = Future()
        self._asked.put(Asked(begin, units, result))
        return result

    def end(self, error: BaseException | None = None) -> None:
        """There will be no unit more; the loop ends by `error`, if there is one."""
        self.error = self.error or error
        self._asked.put(None)


def compute_units(collaboration: Collaboration) -> None:
    """The agent's loop. What goes wrong with a unit is told to whoever asked for it."""
    try:
        for unit in collaboration.units():
            unit.backward()
            collaboration.step()
    except Exception as error:  # noqa: BLE001 (told where it is waited for)
        collaboration.fail(error)

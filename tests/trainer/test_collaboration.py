"""A run's units in a user's own training loop: in order, and each answered once. The loop is told when the run ends."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import Unit
from peer_agent.trainer.collaboration import Collaboration, compute_units
from peer_agent.training.units import Computed, NonFinite
from tests.agent.scripted_site import PATIENCE_S

UNITS = [Unit(0, 0, start, start + 4) for start in (0, 4, 8)]


class InHand:
    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.is_computed = False

    def backward(self) -> None:
        if self.unit == UNITS[2]:
            raise Problem.of("E107", reason="no room")
        self.is_computed = True

    def finish(self) -> Computed | NonFinite:
        assert self.is_computed
        return Computed((self.unit,), 0, 1.0, (4,))


def begin(unit: Unit) -> Any:
    return InHand(unit)


def asked(collaboration: Collaboration, unit: Unit, how: Any = begin) -> "Future[Computed | NonFinite]":
    return collaboration.ask(how, unit)


@pytest.fixture
def collaboration() -> Iterator[Collaboration]:
    found = Collaboration()
    yield found
    found.end()


def test_units_come_in_their_order_until_the_end(collaboration: Collaboration) -> None:
    results = [asked(collaboration, unit) for unit in UNITS[:2]]
    collaboration.end()
    for unit in collaboration.units():
        unit.backward()
        collaboration.step()
    assert [result.result(0) for result in results] == [Computed((unit,), 0, 1.0, (4,)) for unit in UNITS[:2]]
    assert not list(collaboration.units()), "it stays at its end"


def test_whoever_goes_on_without_a_step_is_told(collaboration: Collaboration) -> None:
    for unit in UNITS[:2]:
        asked(collaboration, unit)
    units = collaboration.units()
    next(units)
    with pytest.raises(RuntimeError, match="no step"):
        next(units)
    collaboration.end()
    with pytest.raises(RuntimeError, match="no unit in hand"):
        Collaboration().step()


def test_a_unit_that_was_left_in_the_middle_comes_again(collaboration: Collaboration) -> None:
    result = asked(collaboration, UNITS[0])
    for _ in collaboration.units():
        break
    again = next(collaboration.units())
    assert again.unit == UNITS[0]
    again.backward()
    collaboration.step()
    assert isinstance(result.result(0), Computed)


def test_what_nobody_waits_for_is_not_computed(collaboration: Collaboration) -> None:
    asked(collaboration, UNITS[0]).cancel()
    asked(collaboration, UNITS[1])
    assert next(collaboration.units()).unit == UNITS[1]


def test_data_that_cannot_be_loaded_are_told_to_both(collaboration: Collaboration) -> None:
    def missing(_: Unit) -> Any:
        raise Problem.of("E111", name="a shard", url="http://site")

    result = asked(collaboration, UNITS[0], missing)
    with pytest.raises(Problem, match="E111"):
        next(collaboration.units())
    assert isinstance(result.exception(0), Problem)


def test_an_agent_that_ends_while_data_are_fetched_ends_the_loop(collaboration: Collaboration) -> None:
    def cancelled(_: Unit) -> Any:
        collaboration.end(Problem.of("E306"))
        raise CancelledError

    asked(collaboration, UNITS[0], cancelled)
    with pytest.raises(Problem, match="E306"):
        next(collaboration.units())


def test_an_interrupted_unit_is_still_to_be_computed(collaboration: Collaboration) -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupted(unit: Unit) -> Any:
        if interrupts:
            raise interrupts.pop()
        return begin(unit)

    result = asked(collaboration, UNITS[0], interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(collaboration.units())
    assert not result.done()
    collaboration.end()
    compute_units(collaboration)
    assert isinstance(result.result(0), Computed)


def test_a_unit_that_was_told_of_is_not_computed_again(collaboration: Collaboration) -> None:
    """A regression: after Ctrl-C inside step(), the agent waited a minute for an answer. A second answer would be
    wrong too.
    """
    told, next_one = (asked(collaboration, unit) for unit in UNITS[:2])
    first = next(collaboration.units())
    first.backward()
    told.set_result(first.finish())
    collaboration.end()
    compute_units(collaboration)
    assert told.result(0) == Computed((UNITS[0],), 0, 1.0, (4,))
    assert next_one.result(0) == Computed((UNITS[1],), 0, 1.0, (4,))


def test_the_loop_ends_by_what_ended_the_agent(collaboration: Collaboration) -> None:
    collaboration.end(Problem.of("E306"))
    collaboration.end()
    with pytest.raises(Problem, match="E306"):
        next(collaboration.units())


def test_the_agents_own_loop_tells_what_went_wrong_and_ends(collaboration: Collaboration) -> None:
    results = [asked(collaboration, unit) for unit in UNITS]
    thread = threading.Thread(target=compute_units, args=[collaboration], daemon=True)
    thread.start()
    assert isinstance(results[1].result(PATIENCE_S), Computed)
    assert isinstance(results[2].exception(PATIENCE_S), Problem)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_unit_that_comes_late_is_waited_for(collaboration: Collaboration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer_agent.trainer.collaboration.LOOK_S", 0.01)
    threading.Timer(0.1, asked, [collaboration, UNITS[0]]).start()
    assert next(collaboration.units()).unit == UNITS[0]

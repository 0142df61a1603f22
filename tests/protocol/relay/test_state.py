"""An attempt's full name, and the averages that a log keeper expects in it."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.relay.opened import Place
from peer_agent.protocol.relay.state import awaited, is_now, named, place_of
from tests.protocol.relay.stage import HERE, ME, OTHER, THERE, Stage, frame, greeting, plan_of

PLAN = plan_of()


@pytest.mark.parametrize("change", [{}, {"run": "cd" * 16}, {"step": 8}, {"fence": 4}, {"attempt": 2}], ids=str)
def test_only_what_names_all_of_it_belongs_to_the_open_attempt(change: dict[str, int]) -> None:
    relay = Stage().join()
    relay.hear(PLAN)
    assert relay.attempt is not None
    said = frame(PLAN, 0, 0, **change)
    assert is_now(relay.attempt, said) == (not change)
    drop = m.Drop(**named(relay.attempt), slot=0)
    assert is_now(relay.attempt, drop)
    assert place_of(drop) == PLAN.place == Place(3, 7, 1)


def test_averages_are_expected_only_from_others_without_a_log() -> None:
    of_another = plan_of(reducer=OTHER)
    relay = Stage()
    relay.hear(greeting(listeners=(HERE, replace(THERE, keeps_log=False))))
    assert awaited(relay.state, of_another) == {0: {0, 1}, 1: {2, 3}}
    assert awaited(relay.state, plan_of(reducer=ME)) == {}
    relay.hear(m.Listeners(run=PLAN.run, listeners=(HERE, THERE)))
    assert awaited(relay.state, of_another) == {}
    assert awaited(Stage(keeps=False).state, of_another) == {}

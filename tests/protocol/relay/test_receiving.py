"""A log keeper receives averages from a reducer that keeps no log, and reports them once they are on its own disk."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.log.records import MOST_SQUARES
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.opened import Place
from peer_agent.protocol.relay.reducing import AGAIN_S
from peer_agent.protocol.wire import Kind
from tests.protocol.relay.stage import HERE, OTHER, SENDERS, THERE, THIRD, Stage, average, named, plan_of, said

WITHOUT_A_LOG = replace(THERE, keeps_log=False)
PLAN = plan_of(reducer=OTHER)


def receiving(*, keeps: bool = True) -> Stage:
    """Return a relay in an attempt that another peer, which keeps no log, reduces alone."""
    relay = Stage(keeps=keeps).join(listeners=(HERE, WITHOUT_A_LOG))
    relay.hear(PLAN)
    return relay


def come(relay: Stage, *chunks: int, peer: Any = OTHER, **changes: Any) -> list[e.Action]:
    return [a for chunk in chunks for a in relay.handle(e.AverageCame(peer, replace(average(PLAN, chunk), **changes)))]


def test_complete_span_is_written_and_then_announced() -> None:
    relay = receiving()
    assert come(relay, 1) == [e.KeepAverage(0, 1)]
    assert come(relay, 0) == [e.KeepAverage(0, 0), e.WriteReceived(PLAN.plan.spans[0])]
    (have,) = said(relay.handle(e.SpanReceived(PLAN.place, 0, b"r" * 32, 0.5)))
    assert have == m.Have(**named(PLAN.place), span=0, root=b"r" * 32, sum_squares=0.5)
    assert relay.handle(e.SpanReceived(PLAN.place, 0, b"r" * 32, 0.5)) == []


@pytest.mark.parametrize("squares", [math.nan, math.inf])
def test_span_that_is_not_finite_is_sent_with_the_largest_sum(squares: float) -> None:
    """The site refuses messages with other numbers, so one reducer's bytes could end a relay's link."""
    relay = receiving()
    come(relay, 0, 1)
    (have,) = said(relay.handle(e.SpanReceived(PLAN.place, 0, b"r" * 32, squares)))
    assert isinstance(have, m.Have)
    assert have.sum_squares == MOST_SQUARES


def test_what_comes_again_is_not_kept_again() -> None:
    relay = receiving()
    come(relay, 0)
    assert come(relay, 0) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"peer": SENDERS[0]},
        {"peer": THIRD},
        {"kind": Kind.GRADIENT},
        {"span": 1},
        {"span": 9},
        {"chunk": 9},
        {"attempt": 2},
        {"fence": 2},
        {"step": 8},
        {"run": "cd" * 16},
        {"payload": bytes(7)},
    ],
    ids=str,
)
def test_what_the_plan_does_not_promise_is_ignored(changes: dict[str, Any]) -> None:
    assert come(receiving(), 0, **changes) == []


def test_what_a_reducer_keeps_itself_is_copied_later() -> None:
    relay = Stage().join(listeners=(HERE, THERE))
    relay.hear(PLAN)
    assert come(relay, 0) == []


def test_who_keeps_no_log_receives_nothing() -> None:
    assert come(receiving(keeps=False), 0) == []


def test_it_is_said_again_until_the_attempt_is_over() -> None:
    relay = receiving()
    come(relay, 0, 1)
    relay.handle(e.SpanReceived(PLAN.place, 0, bytes(32), 0.5))
    again = [message for message in said(relay.tick(AGAIN_S)) if isinstance(message, m.Have)]
    assert [have.span for have in again] == [0]
    relay.hear(m.Void(**named(PLAN.place), round=1, reason=""))
    assert [message for message in said(relay.tick(AGAIN_S)) if isinstance(message, m.Have)] == []


def test_span_written_for_a_closed_attempt_is_not_announced() -> None:
    relay = receiving()
    come(relay, 0, 1)
    relay.hear(plan_of(attempt=2, reducer=OTHER))
    assert relay.handle(e.SpanReceived(PLAN.place, 0, bytes(32), 0.5)) == []
    assert relay.handle(e.SpanReceived(Place(9, 9, 9), 0, bytes(32), 0.5)) == []

"""How messages and frames name an attempt, and which averages come to a keeper of the log in it."""

from typing import Any

from peer_agent.protocol import messages as m
from peer_agent.protocol.relay.opened import OpenPlan, Place
from peer_agent.protocol.relay.state import Attempt, RelayState
from peer_agent.protocol.wire import Frame


def place_of(message: m.Attempted | Frame) -> Place:
    """The attempt that it says it belongs to."""
    return Place(message.fence, message.step, message.attempt)


def is_now(attempt: Attempt, message: m.Attempted | Frame) -> bool:
    """Whether it belongs to the open attempt (rule 2)."""
    return message.run == attempt.plan.run and place_of(message) == attempt.place


def named(attempt: Attempt) -> dict[str, Any]:
    """The fields by which messages name an attempt."""
    plan = attempt.plan.plan
    return {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}


def awaited(state: RelayState, plan: OpenPlan) -> dict[int, set[int]]:
    """Chunks by span that come to a keeper of the log: of reducers that keep none themselves, or of all others."""
    if state.keeper is None:
        return {}
    keepers = {listener.peer for listener in state.listeners if listener.keeps_log and not state.gets_all} | {state.me}
    spans = (span for span in plan.plan.spans if not span.root and span.reducer not in keepers)
    return {span.span: set(range(span.first, span.stop)) for span in spans}

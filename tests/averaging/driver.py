"""A reducer for one attempt, without its own process. Its state machine and arithmetic are called as a relay calls
them.
"""

from collections.abc import Iterable

from peer_agent.averaging.reducer import ClosedSpan, Reduction
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.advance import advance
from peer_agent.protocol.relay.opened import OpenPlan
from peer_agent.protocol.relay.state import Reducer, RelayState
from peer_agent.protocol.wire import Frame

Result = tuple[int, bytes | memoryview] | ClosedSpan  # (chunk, its average), or a closed span


class Driver:
    """A reducer that tests feed with leaves and frames. Its methods return the error number if it refuses the input."""

    def __init__(self, plan: m.Plan, me: PeerId) -> None:
        self.plan = OpenPlan(plan, plan.slots)
        self.state = RelayState(run=plan.run, me=me, reducer=Reducer(), keeper=None)
        self.reduction = Reduction(self.plan)
        self._take(e.Heard(self.plan))

    def _place(self) -> dict[str, object]:
        plan = self.plan.plan
        return {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}

    def _take(self, event: e.Event, payload: bytes | memoryview = b"") -> list[Result] | str:
        closed: list[Result] = []
        for action in advance(self.state, event, 0.0):
            result = self._do(action, payload)
            if isinstance(result, str):
                return result
            closed += result
        return closed

    def _do(self, action: e.Action, payload: bytes | memoryview) -> list[Result] | str:
        match action:
            case e.KeepLeaves(slot=slot, leaves=leaves):
                fault = self.reduction.leaves(slot, leaves)
                return self._answer(e.LeavesKept(self.plan.place, slot), fault, slot, 0)
            case e.AddChunk(slot=slot, chunk=chunk, again=again):
                fault = self.reduction.add(slot, chunk, payload, again=again)
                return self._answer(e.ChunkAdded(self.plan.place, slot, chunk), fault, slot, chunk)
            case e.CloseChunk(chunk=chunk, tokens=tokens):
                return [(chunk, self.reduction.close(chunk, tokens))]
            case e.WriteSpan(span=span, included=included):
                return [self.reduction.take_span(span, included)]
            case e.Say(message=m.SlotRefused(code=code)):
                return code
        return []

    def _answer(self, event: e.Event, fault: Fault | None, slot: int, chunk: int) -> list[Result] | str:
        if fault is not None:
            return self._take(e.ChunkRefused(self.plan.place, slot, chunk, fault.code))
        return self._take(event)

    def leaves(self, slot: int, data: bytes) -> str:
        """Return the error number if the reducer refuses the leaves, or an empty string if it accepts them."""
        peer = self.plan.slots[slot].peer
        result = self._take(e.Asked(peer, m.Leaves(**self._place(), slot=slot, leaves=data)))  # type: ignore[arg-type]
        return result if isinstance(result, str) else ""

    def add(self, frame: Frame) -> list[Result] | str:
        """Return the chunks and spans that this frame completes, or the error number if the reducer refuses the
        frame."""
        slots = self.plan.slots
        peer = slots[frame.slot].peer if frame.slot < len(slots) else PeerId("9" * 32)
        return self._take(e.FrameCame(peer, frame), frame.payload)

    def drop(self, slot: int) -> list[Result]:
        result = self._take(e.Heard(m.Drop(**self._place(), slot=slot)))  # type: ignore[arg-type]
        assert not isinstance(result, str)
        return result

    def progress(self) -> tuple[tuple[int, int], ...]:
        """Return (slot, number of chunks received) pairs."""
        assert self.state.reducer is not None
        assert self.state.reducer.attempt is not None
        return self.state.reducer.attempt.coverage.progress()


def closed_by(driver: Driver, frames: Iterable[Frame]) -> list[Result]:
    closed: list[Result] = []
    for each in frames:
        result = driver.add(each)
        assert not isinstance(result, str), result
        closed += result
    return closed

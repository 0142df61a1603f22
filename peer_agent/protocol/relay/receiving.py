"""The part that receives: averages of reducers that keep no log, chunk by chunk, until a span of them is on the disk.

A step is committed when a keeper of the log has every span (rule 5). What a reducer keeps itself is copied later.
"""

from peer_agent.protocol import messages as m
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.attempts import is_now, named
from peer_agent.protocol.relay.state import Attempt, RelayState, Said
from peer_agent.protocol.wire import Frame, Kind


def average_came(state: RelayState, peer: PeerId, frame: Frame) -> list[e.Action]:
    """Whether a reducer's average is one that is awaited of it. Whether its bytes are right, the record will tell."""
    attempt = state.reducer.attempt if state.reducer is not None else None
    if attempt is None or frame.kind != Kind.AVERAGE or not is_now(attempt, frame):
        return []
    span = next((span for span in attempt.plan.plan.spans if span.span == frame.span), None)
    if span is None or span.reducer != peer or frame.chunk not in attempt.awaited.get(frame.span, ()):
        return []
    expected = encoded_size(attempt.plan.plan.codec_down, attempt.plan.grid.length(frame.chunk))
    if len(frame.payload) != expected:
        return []
    attempt.awaited[frame.span].discard(frame.chunk)
    kept: list[e.Action] = [e.KeepAverage(frame.span, frame.chunk)]
    return [*kept, e.WriteReceived(span)] if not attempt.awaited[frame.span] else kept


def span_received(attempt: Attempt | None, event: e.SpanReceived, now: float) -> list[e.Action]:
    """A span of another's is on the disk: the coordinator is told, once here and then until the attempt is over."""
    if attempt is None or attempt.place != event.place or event.span in attempt.received:
        return []
    message = m.Have(**named(attempt), span=event.span, root=event.root)
    attempt.received[event.span] = Said(message, now)
    return [e.Say(message)]

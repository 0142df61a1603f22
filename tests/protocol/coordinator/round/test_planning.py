"""Who averages what: all chunks among those who are there, and no byte is held by the dead."""

from peer_agent.protocol.coordinator import events as e
from tests.protocol.coordinator.scenes import CHUNKS, reducing


def test_spans_of_a_dead_relay_do_not_count_as_held() -> None:
    stage, _, relays = reducing({}, {})
    dead, living = relays
    for span in stage.spans():
        if span.reducer == dead:
            stage.span_done(span)
    stage.take(e.Lost(dead))
    assert stage.round.attempt == 2
    assert {span.reducer for span in stage.spans()} == {living}
    assert not any(span.root for span in stage.spans())
    assert sum(span.stop - span.first for span in stage.spans()) == CHUNKS
    stage.reduce()
    assert {span.reducer for span in stage.round.record.spans} == {living}  # type: ignore[union-attr]


def test_spans_of_the_living_are_kept_when_another_reducer_dies() -> None:
    stage, _, (dead, living) = reducing({}, {})
    held = [span for span in stage.spans() if span.reducer == living]
    for span in held:
        stage.span_done(span)
    stage.take(e.Lost(dead))
    kept = {(span.first, span.stop, span.attempt) for span in stage.spans() if span.root}
    assert kept == {(span.first, span.stop, 1) for span in held}

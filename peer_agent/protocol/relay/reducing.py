"""Average gradients: attempts, slots, spans. These functions change the state, but only `move` changes the phase."""

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.counting import arrivals_of, count
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import codes
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import LEAF
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.closing import Closing, Coverage
from peer_agent.protocol.relay.opened import OpenPlan, Place
from peer_agent.protocol.relay.state import NEVER, Attempt, Phase, Reducer, RelayState, Said, awaited, is_now, named
from peer_agent.protocol.timing import batch_chunks
from peer_agent.protocol.wire import Frame, Kind

PROGRESS_S = 1.0
AGAIN_S = 2.0  # seconds before repeating a report of a finished span or refused slot, as it may be lost
FIRST_FRAME_S = 10.0  # seconds beyond the plan's duration in which a slot must answer an Open message (rule 40)
AHEAD = 1 / 32  # fraction of its chunks, or two batches, by which a slot may lead the slowest one
OPEN_BYTES = 256 * 1024 * 1024  # by which slots may lead if no deadline limits it, all slots together, decoded
HOLD_S = 4.0  # seconds for which a slot may be held back without deadlines
MOVES_S = 1.5  # seconds, or two batches' planned time if longer; slots silent for longer hold back no others
PAUSE_S = 0.75  # seconds without an event; a longer gap means that this process was suspended

TRANSITIONS: dict[tuple[Phase, str], Phase] = {
    (Phase.IDLE, "a plan gives it a part"): Phase.REDUCE,
    (Phase.IDLE, "a plan gives it no part"): Phase.HOLD,
    (Phase.REDUCE, "a plan gives it a part"): Phase.REDUCE,
    (Phase.REDUCE, "a plan gives it no part"): Phase.HOLD,
    (Phase.REDUCE, "its last span is written"): Phase.HOLD,
    (Phase.REDUCE, "void"): Phase.IDLE,
    (Phase.REDUCE, "committed"): Phase.IDLE,
    (Phase.REDUCE, "a new host has begun anew"): Phase.IDLE,
    (Phase.REDUCE, "the run is finished"): Phase.IDLE,
    (Phase.HOLD, "a plan gives it a part"): Phase.REDUCE,
    (Phase.HOLD, "a plan gives it no part"): Phase.HOLD,
    (Phase.HOLD, "void"): Phase.IDLE,
    (Phase.HOLD, "committed"): Phase.IDLE,
    (Phase.HOLD, "a new host has begun anew"): Phase.IDLE,
    (Phase.HOLD, "the run is finished"): Phase.IDLE,
}


def move(reducer: Reducer, why: str) -> None:
    """Change the phase. Raises KeyError if the table has no such transition, which is a bug."""
    reducer.phase = TRANSITIONS[reducer.phase, why]


# --- attempts ----------------------------------------------------------------------------------------------------


def begin(state: RelayState, reducer: Reducer, plan: OpenPlan, now: float) -> list[e.Action]:
    """Begin a plan's attempt, and ask the contributors that have a data link for their chunks."""
    if plan.place <= reducer.newest:
        return []
    spans = plan.given_to(state.me)
    move(reducer, "a plan gives it a part" if spans else "a plan gives it no part")
    reducer.newest = plan.place
    coverage = Coverage(plan.slots, spans.values())
    reducer.attempt = Attempt(plan, spans, coverage, began_at=now, clock=now, awaited=awaited(state, plan))
    fresh = _opens_outbox(reducer, plan)
    opening = [action for peer in state.links for action in open_to(reducer, peer, now)]
    return [e.Begin(plan, fresh), *opening]


def _opens_outbox(reducer: Reducer, plan: OpenPlan) -> bool:
    """Return True if the plan needs a new outbox for averages.

    All attempts at a step under one host share an outbox, so that spans kept from earlier attempts are still sent.
    """
    before, reducer.outbox = reducer.outbox, (plan.plan.fence, plan.plan.step)
    return reducer.outbox != before


def open_to(reducer: Reducer, peer: PeerId, now: float) -> list[e.Action]:
    """Ask a contributor for its chunks. The message lists the chunks already received (rule 19)."""
    attempt = reducer.attempt
    if attempt is None or not attempt.spans:
        return []
    opening: list[e.Action] = []
    for number, slot in enumerate(attempt.plan.slots):
        if slot.peer == peer and number not in attempt.refused and not attempt.coverage.is_dropped(number):
            received = attempt.coverage.received(number)
            attempt.opened_at[number] = now
            opening.append(e.Tell(peer, m.Open(**named(attempt), slot=number, received=received)))
    return opening


def end(reducer: Reducer, why: str, *, silent: bool) -> list[e.Action]:
    """End the attempt. If `silent`, stop sending its averages too; otherwise, slow peers still get them."""
    if reducer.attempt is None:
        return []
    move(reducer, why)
    reducer.attempt = None
    if silent:
        reducer.outbox = None
    return [e.End(silent)]


def void(reducer: Reducer, message: m.Void) -> list[e.Action]:
    """End the current attempt if it or a later one of its round is void, and discard the void attempts' spans.

    The coordinator may void a later attempt whose plan has not arrived here.
    """
    place, attempt = Place(message.fence, message.step, message.attempt), reducer.attempt
    reducer.newest = max(reducer.newest, place)
    is_ours = attempt is not None and _is_of_round(attempt.place, place) and attempt.place <= place
    return [*(end(reducer, "void", silent=True) if is_ours else []), e.Discard(place)]


def _is_of_round(ours: Place, theirs: Place) -> bool:
    return (ours.fence, ours.step) == (theirs.fence, theirs.step)


def committed(reducer: Reducer, head: Place) -> list[e.Action]:
    """End the attempt if `head` shows that its update has been committed. Slow peers still get the averages."""
    attempt = reducer.attempt
    reducer.newest = max(reducer.newest, head)  # a plan that arrives late must not start an attempt
    return end(reducer, "committed", silent=False) if attempt is not None and attempt.place.step < head.step else []


def greeted(reducer: Reducer, greeting: m.Greeting) -> list[e.Action]:
    """Catch up with the host that sent the greeting: end the attempt if it is already committed or void.

    A new host voids anything that the previous host had not committed, without sending a message about it.
    """
    actions = committed(reducer, Place(greeting.fence, greeting.step, 0))
    attempt = reducer.attempt
    if attempt is not None and greeting.fence > attempt.place.fence:
        actions += [*end(reducer, "a new host has begun anew", silent=True), e.Discard(attempt.place)]
    return actions


def finished(reducer: Reducer) -> list[e.Action]:
    """End the attempt, because the run will make no more updates."""
    attempt = reducer.attempt
    if attempt is None:
        return []
    return [*end(reducer, "the run is finished", silent=True), e.Discard(attempt.place)]


# --- slots -------------------------------------------------------------------------------------------------------


def leaves(reducer: Reducer, peer: PeerId, message: m.Leaves, now: float) -> list[e.Action]:
    """Accept a contributor's Merkle leaves: once, before the first chunk, and only with the planned length."""
    attempt = reducer.attempt
    if attempt is None or not is_now(attempt, message) or not _may_speak(attempt, message.slot, peer):
        return []
    attempt.opened_at.pop(message.slot, None)
    if message.slot in attempt.leaves:
        return []
    if len(message.leaves) != LEAF.size * attempt.plan.grid.chunks:
        return _refuse(attempt, message.slot, 0, codes.CHUNK_DIFFERS, now)
    return [e.KeepLeaves(message.slot, message.leaves)]


def leaves_kept(reducer: Reducer, event: e.LeavesKept) -> list[e.Action]:
    attempt = reducer.attempt
    if attempt is not None and attempt.place == event.place and event.slot < len(attempt.plan.slots):
        attempt.leaves.add(event.slot)
    return []


def frame_came(reducer: Reducer, peer: PeerId, frame: Frame, now: float) -> list[e.Action]:
    """Add a chunk that the plan asks for, and ignore any other chunk.

    Refuse the slot if the chunk has the wrong size, or arrives before the slot's Merkle leaves.
    """
    attempt = reducer.attempt
    if attempt is None or not is_now(attempt, frame) or not _may_speak(attempt, frame.slot, peer):
        return []
    span = attempt.spans.get(frame.span)
    is_there = span is not None and span.first <= frame.chunk < span.stop and frame.kind == Kind.GRADIENT
    if not is_there or not attempt.coverage.asks_for(frame.slot, frame.chunk):
        return []
    attempt.opened_at.pop(frame.slot, None)
    codec = attempt.plan.slots[frame.slot].codec
    if len(frame.payload) != encoded_size(codec, attempt.plan.grid.length(frame.chunk)):
        return _refuse(attempt, frame.slot, frame.chunk, codes.WRONG_SIZE, now)
    if frame.slot not in attempt.leaves:
        return _refuse(attempt, frame.slot, frame.chunk, codes.NOT_ALLOWED, now)
    # The same bytes sent again change nothing. Different bytes for the same chunk are misconduct (rule 19).
    return [e.AddChunk(frame.slot, frame.chunk, attempt.coverage.has(frame.slot, frame.chunk))]


def chunk_added(reducer: Reducer, event: e.ChunkAdded, now: float) -> list[e.Action]:
    """Record an added chunk, and close it if it is complete. A repeated chunk changes nothing."""
    attempt = reducer.attempt
    if attempt is None or attempt.place != event.place or not attempt.coverage.asks_for(event.slot, event.chunk):
        return []
    if attempt.coverage.has(event.slot, event.chunk):
        return []
    plan, slot = attempt.plan, attempt.plan.slots[event.slot]
    count(attempt.arrived, slot.peer, encoded_size(slot.codec, plan.grid.length(event.chunk)), now)
    return _close(attempt, attempt.coverage.add(event.slot, event.chunk, _since_plan_s(attempt, now)))


def is_ahead(reducer: Reducer, slot: int, now: float) -> bool:
    """Return True if the shell should pause reading from this slot, because it is far ahead of the slowest one.

    A chunk is averaged only after the slowest slot has sent it. Under a plan with deadlines, faster slots would take
    that slot's share of the downlink while the uplink sits idle. No slot is held back so long that it would miss its
    deadlines. Under any other plan, the limit is the memory that open chunks need if all their slots are kept, and no
    slot is held back for more than `HOLD_S` in all, because nothing else limits how long the slowest slot may take.
    """
    attempt = reducer.attempt
    if reducer.phase is not Phase.REDUCE or attempt is None or not 0 <= slot < len(attempt.plan.slots):
        return False
    plan = attempt.plan.plan
    since_s = _since_plan_s(attempt, now)
    two_batches = 2 * batch_chunks({each.codec for each in attempt.plan.slots}, plan.chunk_elements)
    if not plan.sigma or not plan.duration_s or plan.rule != "mean":  # other rules keep all slots of open chunks
        if attempt.held_s.get(attempt.plan.slots[slot].peer, 0.0) >= HOLD_S:
            return False
        chunks = OPEN_BYTES // (4 * plan.chunk_elements * len(attempt.plan.slots))
        least = max(chunks, two_batches) / len(attempt.coverage.chunks)
        return attempt.coverage.is_ahead(slot, least, since_s - MOVES_S)
    part = two_batches / len(attempt.coverage.chunks)
    moved_since_s = since_s - max(MOVES_S, part * plan.duration_s)
    scheduled = since_s / plan.duration_s - plan.sigma
    return attempt.coverage.is_ahead(slot, max(AHEAD, part), moved_since_s, scheduled)


def held_back(reducer: Reducer, event: e.HeldBack) -> list[e.Action]:
    """Record how long the shell paused reading a slot's link. To the sender, the link looked full but was not."""
    attempt = reducer.attempt
    if attempt is not None and attempt.place == event.place and 0 <= event.slot < len(attempt.plan.slots):
        peer = attempt.plan.slots[event.slot].peer
        attempt.held_s[peer] = attempt.held_s.get(peer, 0.0) + event.seconds
    return []


def refused(reducer: Reducer, event: e.ChunkRefused, now: float) -> list[e.Action]:
    """Refuse a slot whose leaves or chunk did not match the offer, and accept no more of its chunks."""
    attempt = reducer.attempt
    if attempt is None or attempt.place != event.place or event.slot >= len(attempt.plan.slots):
        return []
    return [] if event.slot in attempt.refused else _refuse(attempt, event.slot, event.chunk, event.code, now)


def drop(reducer: Reducer, message: m.Drop) -> list[e.Action]:
    """Continue without a slot that the coordinator has dropped.

    The coordinator decides which slots the reducers wait for.
    """
    attempt = reducer.attempt
    if attempt is None or not is_now(attempt, message):
        return []
    attempt.opened_at.pop(message.slot, None)
    return _close(attempt, attempt.coverage.drop(message.slot))


def _may_speak(attempt: Attempt, slot: int, peer: PeerId) -> bool:
    slots = attempt.plan.slots
    return 0 <= slot < len(slots) and slots[slot].peer == peer and slot not in attempt.refused


def _refuse(attempt: Attempt, slot: int, chunk: int, code: str, now: float) -> list[e.Action]:
    message = m.SlotRefused(**named(attempt), slot=slot, chunk=chunk, code=code)
    attempt.refused[slot] = Said(message, now)
    attempt.opened_at.pop(slot, None)
    return [e.Say(message), e.Tell(attempt.plan.slots[slot].peer, message)]


def _close(attempt: Attempt, closing: list[Closing]) -> list[e.Action]:
    """Close the chunks first, then write the spans that are now complete."""
    actions: list[e.Action] = []
    spans: dict[int, m.PlannedSpan] = {}
    for part in closing:
        span = next(span for span in attempt.spans.values() if span.first <= part.chunk < span.stop)
        spans[span.span] = span
        actions.append(e.CloseChunk(span.span, part.chunk, part.tokens))
    for span in spans.values():
        if attempt.coverage.is_complete(span):
            attempt.writing.add(span.span)
            actions.append(e.WriteSpan(span, attempt.coverage.included(span)))
    return actions


def span_written(reducer: Reducer, event: e.SpanWritten, now: float) -> list[e.Action]:
    """Report a finished span. The report is repeated until the attempt ends."""
    attempt = reducer.attempt
    if attempt is None or attempt.place != event.place or event.span not in attempt.writing:
        return []
    if event.span in attempt.done:
        return []
    message = m.SpanDone(
        **named(attempt),
        span=event.span,
        root=event.root,
        sum_squares=event.sum_squares,
        included=attempt.coverage.included(attempt.spans[event.span]),
        sketches=event.sketches,
    )
    attempt.done[event.span] = Said(replace(message, sketches=()), now)  # sketches are large; audits can do without
    if len(attempt.done) < len(attempt.spans):
        return [e.Say(message)]
    move(reducer, "its last span is written")
    late = zip((slot.peer for slot in attempt.plan.slots), attempt.coverage.lateness(attempt.plan.plan), strict=True)
    arrivals = arrivals_of(attempt.arrived, attempt.began_at, dict(late), attempt.held_s)
    told = m.Arrivals(**named(attempt), arrivals=arrivals)
    return [e.Say(message), e.Say(told)]


# --- time --------------------------------------------------------------------------------------------------------


def tell_time(reducer: Reducer, now: float) -> None:
    """Exclude the time for which this process was suspended from deadlines (rule 22).

    Otherwise, slots would count as late because of this pause.
    """
    attempt = reducer.attempt
    if attempt is None:
        return
    gap, attempt.clock = now - attempt.clock, now
    if gap > PAUSE_S:
        attempt.slept_s += gap


def _since_plan_s(attempt: Attempt, now: float) -> float:
    return now - attempt.began_at - attempt.slept_s


def has_deadlines(reducer: Reducer) -> bool:
    """Return True if chunks close at deadlines, so that the shell must check the clock often."""
    return reducer.phase is Phase.REDUCE and reducer.attempt is not None and reducer.attempt.plan.plan.sigma > 0


def tick(state: RelayState, reducer: Reducer, now: float) -> list[e.Action]:
    """Close late chunks, report progress, repeat messages that may have been lost, and close idle links."""
    attempt = reducer.attempt
    if attempt is None or not (attempt.spans or attempt.received):
        return []
    closing = attempt.coverage.close_late(attempt.plan.plan, _since_plan_s(attempt, now))
    if closing and (behind := attempt.coverage.behind(attempt.plan.plan)) != attempt.behind:
        attempt.behind, attempt.progress_at = behind, NEVER  # reported at once
    actions = _close(attempt, closing)
    if state.joined and now - attempt.progress_at >= PROGRESS_S:
        attempt.progress_at = now
        if attempt.spans:
            actions.append(e.Say(_progress(attempt)))
        actions += _again(attempt, now)
    return actions + _idle_links(state, attempt, now)


def _progress(attempt: Attempt) -> m.Progress:
    coverage = attempt.coverage
    behind = tuple(slot for slot in attempt.behind if not coverage.is_dropped(slot))
    return m.Progress(**named(attempt), received=coverage.progress(), dropped=coverage.dropped, behind=behind)


def _again(attempt: Attempt, now: float) -> list[e.Action]:
    actions: list[e.Action] = []
    for said in (*attempt.refused.values(), *attempt.done.values(), *attempt.received.values()):
        if now - said.at >= AGAIN_S:
            said.at = now
            actions.append(e.Say(said.message))
    return actions


def _idle_links(state: RelayState, attempt: Attempt, now: float) -> list[e.Action]:
    patience_s = FIRST_FRAME_S + max(attempt.plan.plan.duration_s, 0.0)
    idle = [slot for slot, at in attempt.opened_at.items() if now - at > patience_s]
    for slot in idle:
        del attempt.opened_at[slot]
    peers = {attempt.plan.slots[slot].peer: None for slot in idle}
    return [e.CutLink(peer) for peer in peers if state.links.get(peer) is Role.TRAINER]

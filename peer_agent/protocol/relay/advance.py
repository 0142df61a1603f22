"""A relay's state machine for one run, `advance(state, event, now) -> actions`. The simulator and tests use it too.

The function may change the given state. The program that calls it, the shell, carries out all actions in order before
it passes on the next event. `reducing.TRANSITIONS` lists the phases of an attempt.
"""

from typing import assert_never

from peer_agent.protocol import messages as m
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import MOST_SQUARES
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay import keeping, reducing
from peer_agent.protocol.relay.opened import OpenCommit, Opened, OpenPlan, Place
from peer_agent.protocol.relay.state import NOBODY, Attempt, Keeper, RelayState, Said, is_now, named
from peer_agent.protocol.wire import Frame, Kind

HEARTBEAT_S = 2.0  # seconds without any other message, after which the relay sends a heartbeat
PAGE_RECORDS = 64  # records per page, after which the coordinator waits for an acknowledgement
REACHES_S = 30.0  # seconds between reports of reachable listeners
ACKNOWLEDGE_S = 0.5  # seconds from writing a record to disk to acknowledging it


def advance(state: RelayState, event: e.Event, now: float) -> list[e.Action]:
    """Process one event and return the actions for the shell. `now` is in monotonic seconds."""
    if state.reducer is not None:
        reducing.tell_time(state.reducer, now)
    actions = [*_take(state, event, now), *_acknowledge(state, event, now)]
    if any(isinstance(action, e.Say) for action in actions):
        state.said_at = now
    return actions


def _take(state: RelayState, event: e.Event, now: float) -> list[e.Action]:  # noqa: C901, PLR0912 - one arm per event
    reducer, keeper = state.reducer, state.keeper
    match event:
        case e.Heard():
            return _hear(state, event.message, now)
        case e.Linked():
            state.links[event.peer] = event.role
            return reducing.open_to(reducer, event.peer, now) if reducer is not None else []
        case e.Unlinked():
            state.links.pop(event.peer, None)
            return []
        case e.Asked():
            return _answer(state, event, now)
        case e.Reached():
            return _reached(state, event.listeners)
        case e.Ticked():
            return _tick(state, now)
        case e.ControlLost():
            state.joined = False
            return []
        case e.FrameCame():
            return reducing.frame_came(reducer, event.peer, event.frame, now) if reducer is not None else []
        case e.LeavesKept():
            return reducing.leaves_kept(reducer, event) if reducer is not None else []
        case e.ChunkAdded():
            return reducing.chunk_added(reducer, event, now) if reducer is not None else []
        case e.ChunkRefused():
            return reducing.refused(reducer, event, now) if reducer is not None else []
        case e.HeldBack():
            return reducing.held_back(reducer, event) if reducer is not None else []
        case e.SpanWritten():
            return reducing.span_written(reducer, event, now) if reducer is not None else []
        case e.AverageCame():
            return average_came(state, event.peer, event.frame)
        case e.SpanReceived():
            return span_received(reducer.attempt if reducer is not None else None, event, now)
        case e.Appended() | e.AppendFailed() | e.Scanned() | e.Copied() | e.CopyFailed():
            return _of_the_log(state, keeper, event, now) if keeper is not None else []
    assert_never(event)


def _of_the_log(
    state: RelayState,
    keeper: Keeper,
    event: e.Appended | e.AppendFailed | e.Scanned | e.Copied | e.CopyFailed,
    now: float,
) -> list[e.Action]:
    """Process a disk event, or the result of copying a span from another log."""
    match event:
        case e.Appended():
            return keeping.appended(state, keeper, event, now)
        case e.AppendFailed():
            return keeping.append_failed(state, keeper, event, now)
        case e.Scanned():
            return keeping.scanned(state, keeper, event, now)
        case e.Copied():
            return keeping.copied(state, keeper, event, now)
        case e.CopyFailed():
            return keeping.copy_failed(state, keeper, event, now)
    assert_never(event)


def _hear(state: RelayState, message: Opened, now: float) -> list[e.Action]:
    """Process a message from the site. Drop messages from older hosts, except commits, which are always valid."""
    if getattr(message, "fence", state.fence) < state.fence and not isinstance(message, OpenCommit):
        return []
    match message:
        case m.Rehello():
            state.joined, state.fence, state.finished = True, message.fence, False
            return [e.Say(hello(state)), *_reaches(state, now)]
        case m.Greeting():
            return _greeted(state, message, now)
        case m.Listeners():
            return _follow(state, message.listeners)
        case OpenPlan():
            return _plan(state, message, now)
        case m.Drop():
            return reducing.drop(state.reducer, message) if state.reducer is not None else []
        case m.Void():
            return reducing.void(state.reducer, message) if state.reducer is not None else []
        case OpenCommit():
            return _commit(state, message, now)
        case m.Snapshotted():
            return _snapshotted(state, message.keep_after, now)
        case m.State():
            return _stand(state, message, now)
        case (
            m.Lease()
            | m.AccumulatorRevoked()
            | m.Cut()
            | m.SitOut()
            | m.Reload()
            | m.Notice()
            | m.Probe()
            | m.Uplink()
            | m.Audit()
        ):
            return []  # these messages are for trainers or for the links
    assert_never(message)


def _snapshotted(state: RelayState, keep_after: int, now: float) -> list[e.Action]:
    if state.keeper is not None:
        return keeping.forget(state, state.keeper, keep_after, now)
    return [e.Forget(keep_after)] if state.spare is not None else []


def _plan(state: RelayState, plan: OpenPlan, now: float) -> list[e.Action]:
    if state.reducer is None or plan.run != state.run or plan.place.fence < state.fence:
        return []
    return reducing.begin(state, state.reducer, plan, now)


def _greeted(state: RelayState, greeting: m.Greeting, now: float) -> list[e.Action]:
    state.fence, state.joined = greeting.fence, True
    actions = _follow(state, greeting.listeners)
    if state.reducer is not None:
        actions += reducing.greeted(state.reducer, greeting)
    if state.keeper is not None:
        actions += keeping.greeted(state, state.keeper, greeting, now)
    return actions


def _follow(state: RelayState, listeners: tuple[m.Listener, ...]) -> list[e.Action]:
    state.listeners = listeners
    is_asked = any(listener.peer == state.me and listener.keeps_log for listener in listeners)
    if state.gets_all and is_asked is not (state.keeper is not None):
        state.keeper, state.spare = state.spare, state.keeper
    return [e.Follow(listeners)]


def _commit(state: RelayState, commit: OpenCommit, now: float) -> list[e.Action]:
    place = Place(max(state.fence, commit.fence), commit.record.step, 0)
    actions = reducing.committed(state.reducer, place) if state.reducer is not None else []
    if state.reducer is not None:
        actions.append(e.Settle(commit.record.index, commit.record.fence, commit.record.step, commit.record.spans))
    return actions + (keeping.commit(state, state.keeper, commit, now) if state.keeper is not None else [])


def _stand(state: RelayState, message: m.State, now: float) -> list[e.Action]:
    """Record the run's state. Once the run is finished, end the attempt and delete averages that a snapshot covers."""
    state.finished = message.state == "finished"
    if not state.finished:
        return []
    actions = reducing.finished(state.reducer) if state.reducer is not None else []
    if state.keeper is None:
        return actions
    return actions + keeping.forget(state, state.keeper, state.keeper.keep_after, now)


def _answer(state: RelayState, event: e.Asked, now: float) -> list[e.Action]:
    message, keeps = event.message, state.keeper is not None or state.spare is not None
    match message:
        case m.Leaves():
            return reducing.leaves(state.reducer, event.peer, message, now) if state.reducer is not None else []
        case m.FetchSpan():
            if keeps and message.run == state.run:
                return [e.GiveSpan(event.peer, message.index, message.span)]
            return [e.Tell(event.peer, m.SpanMissing(run=message.run, index=message.index, span=message.span))]
        case m.FetchRecords():
            if keeps and message.run == state.run:
                return [e.GiveRecords(event.peer, message.first)]
            return [e.Tell(event.peer, m.Records(run=message.run, first=message.first, last=-1, records=()))]
        case m.Probing():
            return []  # this message is for the links
    assert_never(message)


def _tick(state: RelayState, now: float) -> list[e.Action]:
    actions = reducing.tick(state, state.reducer, now) if state.reducer is not None else []
    if state.keeper is not None:
        actions += keeping.scan(state, state.keeper, now)
    if state.joined and not state.finished and state.reached and now - state.reaches_at >= REACHES_S:
        actions += _reaches(state, now)
    has_spoken = any(isinstance(action, e.Say) for action in actions)
    if state.joined and not state.finished and not has_spoken and now - state.said_at >= HEARTBEAT_S:
        actions.append(_heartbeat(state))
    return actions


def _acknowledge(state: RelayState, event: e.Event, now: float) -> list[e.Action]:
    """Acknowledge records so that the coordinator sends the next page of the log."""
    keeper = state.keeper
    if keeper is None or not state.joined or keeper.index <= keeper.said:
        return []
    news = keeper.index - keeper.said
    is_page = news >= PAGE_RECORDS or (news > 1 and keeper.index == keeper.appending)  # a page is also limited in bytes
    is_late = isinstance(event, e.Ticked) and now - state.said_at >= ACKNOWLEDGE_S
    return [_heartbeat(state)] if is_page or is_late else []


def _reached(state: RelayState, listeners: tuple[PeerId, ...]) -> list[e.Action]:
    """Tell the site which listeners this peer's data links reach, if that has changed. The list may be empty."""
    if listeners == state.reached:
        return []
    state.reached = listeners
    return [e.Say(m.Reaches(run=state.run, listeners=listeners))] if state.joined else []


def _reaches(state: RelayState, now: float) -> list[e.Say]:
    state.reaches_at = now
    return [e.Say(m.Reaches(run=state.run, listeners=state.reached))]


def _heartbeat(state: RelayState) -> e.Say:
    if state.keeper is None:
        return e.Say(m.Heartbeat(run=state.run, index=-1, heard=_heard(state)))
    state.keeper.said = state.keeper.index
    return e.Say(m.Heartbeat(run=state.run, index=state.keeper.index, heard=_heard(state)))


def _heard(state: RelayState) -> m.Heard | None:
    """Return how far this reducer has heard of the open round."""
    attempt = state.reducer.attempt if state.reducer is not None else None
    if attempt is None:
        return None
    place = attempt.place
    return m.Heard(place.step, place.fence, place.attempt, has_plan=True, dropped=attempt.coverage.dropped)


def hello(state: RelayState) -> m.Hello:
    """Return a hello with the relay's roles and everything it holds, so that repeating the hello changes nothing."""
    attempt = state.reducer.attempt if state.reducer is not None else None
    doubt = (m.InDoubt(attempt.place.step, attempt.place.fence, attempt.place.attempt),) if attempt is not None else ()
    if state.keeper is not None:
        state.keeper.said = state.keeper.index
    return m.Hello(
        run=state.run,
        accumulator=NOBODY,
        fence=state.fence,
        in_doubt=doubt,
        url=state.url,
        reduces=state.reducer is not None,
        keeps_log=state.keeper is not None,
        fingerprint=state.fingerprint,
        reserve_percent=state.reserve_percent,
        log_index=state.keeper.index if state.keeper is not None else -1,
    )


def average_came(state: RelayState, peer: PeerId, frame: Frame) -> list[e.Action]:
    """Keep another reducer's average if the attempt expects it. The commit record later shows whether it is correct."""
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
    """Tell the coordinator that another reducer's span is on disk. The report is repeated until the attempt ends."""
    if attempt is None or attempt.place != event.place or event.span in attempt.received:
        return []
    squares = min(MOST_SQUARES, event.sum_squares)  # the received values may include inf or nan
    message = m.Have(**named(attempt), span=event.span, root=event.root, sum_squares=squares)
    attempt.received[event.span] = Said(message, now)
    return [e.Say(message)]

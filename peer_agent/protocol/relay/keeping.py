"""Keep the log: append records in order, and copy other reducers' averages until a snapshot covers them.

A database restored from a backup may lack the latest records of this log. The relay then sends them to the site. If
the site has already written other records, these replace the relay's from the entry where the branches diverge (rule
16).
"""

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.opened import OpenCommit
from peer_agent.protocol.relay.state import Copy, Keeper, RelayState

GAP_S = 2.0  # seconds between reports of the same gap
STEP_BACK = 64  # in records, doubled each time while searching for where two branches diverge
APPENDS_AHEAD = 256  # most records waiting for the disk; the coordinator resends any others later
SCAN_RECORDS = 64
COPIES_KNOWN, COPIES_AT_ONCE = 4096, 4
COPY_PAUSE_S, LONGEST_COPY_PAUSE_S = 0.2, 60.0  # the first pause is short, because only one disk has the span


def commit(state: RelayState, keeper: Keeper, event: OpenCommit, now: float) -> list[e.Action]:
    """Append the next record. If records are missing, report the last index so that the coordinator resends them."""
    index = event.record.index
    if keeper.index < index <= keeper.appending:
        return []  # the disk has already been given this record
    if index <= keeper.index:
        return [e.Append(index, event.sealed)]  # the disk compares it with its own record and so detects forks
    if index == keeper.appending + 1 and index <= keeper.index + APPENDS_AHEAD:
        keeper.appending = index
        return [e.Append(index, event.sealed)]
    if now - keeper.gap_at < GAP_S:
        return []
    keeper.gap_at = now
    return [e.Say(m.Heartbeat(run=state.run, index=keeper.index))]


def appended(state: RelayState, keeper: Keeper, event: e.Appended, now: float) -> list[e.Action]:
    """Record that the log on disk has grown, and look for spans that only other peers have."""
    replaced = _replace(keeper, event.index) if event.replaced else []
    keeper.index = max(keeper.index, event.index)
    keeper.appending = max(keeper.appending, keeper.index)
    if keeper.scanned is None:  # the greeting, which says where to begin, may be lost or late
        keeper.scanned = keeper.index - 1
    return [*replaced, *scan(state, keeper, now)]


def _replace(keeper: Keeper, index: int) -> list[e.Action]:
    """Continue on the branch that the site follows. Send the site the records that were moved out of the log."""
    keeper.step_back = 0
    keeper.index = keeper.appending = index
    keeper.copies = {place: copy for place, copy in keeper.copies.items() if place[0] < index}
    keeper.scanned = min(keeper.scanned or 0, index - 1)
    return [e.HandIn()]


def append_failed(state: RelayState, keeper: Keeper, event: e.AppendFailed, now: float) -> list[e.Action]:
    """Reset the queue after a failed append, because the records that follow in the queue will fail too.

    If the record belongs to another branch, report an earlier index, so that the site resends the records before it.
    """
    if event.index > keeper.index:
        keeper.appending = keeper.index
    if not event.forks or now - keeper.gap_at < GAP_S:
        return []
    keeper.gap_at, keeper.step_back = now, max(STEP_BACK, 2 * keeper.step_back)
    return [e.Say(m.Heartbeat(run=state.run, index=max(0, keeper.index - keeper.step_back)))]


def cover(state: RelayState, keeper: Keeper, index: int, now: float) -> list[e.Action]:
    """Record that a verified snapshot covers the log up to `index`, so that no spans up to there need to be copied."""
    keeper.covered = max(keeper.covered, index)
    for place in [place for place, copy in keeper.copies.items() if place[0] <= index and copy.asking is None]:
        del keeper.copies[place]
    keeper.scanned = max(keeper.scanned or 0, keeper.covered)
    return scan(state, keeper, now)


def greeted(state: RelayState, keeper: Keeper, greeting: m.Greeting, now: float) -> list[e.Action]:
    """Check again all records that no snapshot covers, and send the site any records that its database lacks.

    The check is repeated because this may be a new process whose disk has lost files.
    """
    keeper.scanned = max(keeper.covered, greeting.snapshot.index)
    is_ahead = greeting.index < keeper.index
    return [
        e.HandIn(greeting.index + 1 if is_ahead else 0),
        *cover(state, keeper, greeting.snapshot.index, now),
    ]


def forget(state: RelayState, keeper: Keeper, keep_after: int, now: float) -> list[e.Action]:
    """Delete the spans of records up to `keep_after`. The records themselves stay."""
    keeper.keep_after = max(keeper.keep_after, keep_after)
    return [e.Forget(keeper.keep_after), *cover(state, keeper, keeper.keep_after, now)]


def scan(state: RelayState, keeper: Keeper, now: float) -> list[e.Action]:
    """Look for spans missing from the disk, in records that are neither checked nor covered by a snapshot."""
    actions = copy_more(state, keeper, now)
    if keeper.scanned is None or keeper.scanning or keeper.scanned >= keeper.index:
        return actions
    if len(keeper.copies) >= COPIES_KNOWN:
        return actions
    keeper.scanning = keeper.scanned + 1
    return [*actions, e.Scan(keeper.scanning, min(keeper.scanned + SCAN_RECORDS, keeper.index) + 1)]


def scanned(state: RelayState, keeper: Keeper, event: e.Scanned, now: float) -> list[e.Action]:
    if keeper.scanned == keeper.scanning - 1:  # otherwise, a greeting has since changed where the scan begins
        keeper.scanned = max(keeper.scanned, min(event.stop - 1, keeper.index))
    keeper.scanning = 0
    for lack in event.missing:
        if lack.index > keeper.covered:
            keeper.copies.setdefault((lack.index, lack.entry.span), Copy(lack.entry))
    return scan(state, keeper, now)


def copy_more(state: RelayState, keeper: Keeper, now: float) -> list[e.Action]:
    """Request any copies that are due, only a few at a time to save memory."""
    actions: list[e.Action] = []
    free = COPIES_AT_ONCE - sum(copy.asking is not None for copy in keeper.copies.values())
    for (index, _), copy in keeper.copies.items() if free > 0 else ():
        if len(actions) >= free:
            break
        if copy.asking is None and now >= copy.at and (peer := _next_to_ask(state, copy)) is not None:
            copy.asking = peer
            copy.asked.add(peer)
            actions.append(e.CopySpan(index, copy.entry, peer))
    return actions


def _next_to_ask(state: RelayState, copy: Copy) -> PeerId | None:
    """Return the next peer to ask for a span: first the reducer, then the other log keepers, each once per try."""
    others = sorted(listener.peer for listener in state.listeners if listener.keeps_log)
    known = {listener.peer for listener in state.listeners}
    order = [copy.entry.reducer, *others] if copy.entry.reducer in known else others
    return next((peer for peer in order if peer != state.me and peer not in copy.asked), None)


def copy_failed(state: RelayState, keeper: Keeper, event: e.CopyFailed, now: float) -> list[e.Action]:
    """Ask the next peer at once. If all have been asked, retry with backoff until a snapshot covers the span."""
    copy = keeper.copies.get((event.index, event.span))
    if copy is None or copy.asking != event.peer:
        return []
    copy.asking = None
    if event.index <= keeper.covered:
        del keeper.copies[event.index, event.span]
    elif _next_to_ask(state, copy) is None:
        copy.at = now + min(COPY_PAUSE_S * 2 ** min(copy.tries, 16), LONGEST_COPY_PAUSE_S)
        copy.tries += 1
        copy.asked.clear()
    return scan(state, keeper, now)


def copied(state: RelayState, keeper: Keeper, event: e.Copied, now: float) -> list[e.Action]:
    """Remove a finished copy from the queue. Delete the copied span if it is no longer needed."""
    keeper.copies.pop((event.index, event.span), None)
    gone: list[e.Action] = [e.Forget(keeper.keep_after)] if event.index <= keeper.keep_after else []
    return [*gone, *scan(state, keeper, now)]

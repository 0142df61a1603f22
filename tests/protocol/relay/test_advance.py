"""A relay's run as a whole: what it sends and when, its two parts on their own, and events in any order."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.advance import HEARTBEAT_S, PAGE_RECORDS
from peer_agent.protocol.relay.opened import Place
from peer_agent.protocol.relay.state import Attempt
from tests.protocol.relay.stage import (
    HERE,
    ME,
    OTHER,
    RUN,
    SENDERS,
    SNAPSHOT,
    THIRD,
    Stage,
    average,
    commit_of,
    entry_of,
    frame,
    greeting,
    named,
    plan_of,
    said,
    told,
)
from tests.tier import length

PLAN = plan_of()


def beats(actions: list[e.Action]) -> list[int]:
    return [message.index for message in said(actions) if isinstance(message, m.Heartbeat)]


# Messages


@pytest.mark.parametrize("reduces", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
def test_it_says_what_it_is(*, reduces: bool, keeps: bool) -> None:
    relay = Stage(reduces=reduces, keeps=keeps, index=5)
    hello, _ = said(relay.hear(m.Rehello(run=RUN, fence=3)))
    assert (hello.reduces, hello.keeps_log, hello.log_index, hello.fence) == (reduces, keeps, 5 if keeps else -1, 3)


def test_hello_names_the_attempt_that_has_no_known_end() -> None:
    relay = Stage().join()
    relay.hear(PLAN)
    hello, _ = said(relay.hear(m.Rehello(run=RUN, fence=3)))
    assert hello.in_doubt == (m.InDoubt(7, 3, 1),)


def test_silent_relay_sends_a_heartbeat_every_two_seconds() -> None:
    relay = Stage(index=4).join()
    assert [beats(relay.tick(0.5)) for _ in range(8)] == [[], [], [], [4]] * 2
    relay.hear(plan_of())
    assert [beats(relay.tick(HEARTBEAT_S)) for _ in range(3)] == [[], [], []], "there is progress"


def test_relay_is_silent_before_a_rehello_and_after_the_end() -> None:
    relay = Stage(index=4)
    assert beats(relay.tick(60.0)) == []
    relay.join()
    relay.handle(e.ControlLost())
    assert beats(relay.tick(60.0)) == []
    relay.join()
    relay.hear(m.State(run=RUN, state="finished", reason=""))
    assert beats(relay.tick(60.0)) == []


def test_log_page_is_acknowledged_once_it_is_on_disk() -> None:
    """The next page is sent only after this acknowledgement. In an open round, no other message gives the index."""
    relay = Stage().join(step=0)
    relay.hear(plan_of())
    last = 2 * PAGE_RECORDS + 5
    for index in range(1, last + 1):
        relay.hear(commit_of(index, step=1))
    heard = [index for appended in range(1, last + 1) for index in beats(relay.handle(e.Appended(appended)))]
    assert heard == [PAGE_RECORDS, 2 * PAGE_RECORDS, last], "a page may be shorter: the last one is all that has come"
    relay.hear(commit_of(last + 1, step=1))
    assert beats(relay.handle(e.Appended(last + 1))) == [], "one record alone is no page"
    assert beats(relay.tick(0.5)) == [last + 1]


def test_words_of_an_older_host_are_dropped() -> None:
    relay = Stage().join(fence=4)
    assert relay.hear(m.Rehello(run=RUN, fence=3)) == []
    assert relay.hear(greeting(fence=3)) == []
    assert relay.hear(plan_of(fence=3, step=9)) == []


def test_plan_of_an_older_host_is_not_followed_before_a_greeting() -> None:
    relay = Stage().join()
    relay.hear(m.Rehello(run=RUN, fence=4))
    assert relay.hear(plan_of(fence=3, step=9)) == []


def test_who_can_be_dialled_is_followed() -> None:
    relay = Stage().join()
    assert relay.hear(m.Listeners(run=RUN, listeners=(HERE,))) == [e.Follow((HERE,))]


def reaches(*listeners: PeerId) -> m.Reaches:
    return m.Reaches(run=RUN, listeners=listeners)


def test_reach_is_sent_on_change_with_a_hello_and_regularly() -> None:
    relay = Stage()
    assert said(relay.handle(e.Reached((OTHER,)))) == [], "nobody hears it yet"
    assert reaches(OTHER) in said(relay.hear(m.Rehello(run=RUN, fence=3)))
    assert said(relay.handle(e.Reached((OTHER,)))) == []
    assert said(relay.handle(e.Reached((OTHER, THIRD)))) == [reaches(OTHER, THIRD)]
    again = [message for _ in range(40) for message in said(relay.tick(1.0))]
    assert [message for message in again if isinstance(message, m.Reaches)] == [reaches(OTHER, THIRD)]
    assert said(relay.handle(e.Reached(()))) == [reaches()]
    assert not [message for _ in range(40) for message in said(relay.tick(1.0)) if isinstance(message, m.Reaches)]


def test_trainers_part_keeps_the_log_while_the_site_asks_it_to() -> None:
    relay = Stage(index=5).join()
    relay.state.gets_all, relay.state.keeper, relay.state.spare = True, None, relay.state.keeper
    fetch: Any = m.FetchSpan(run=RUN, index=3, span=1)
    relay.hear(m.Listeners(run=RUN, listeners=(replace(HERE, keeps_log=False),)))
    assert relay.state.keeper is None
    assert relay.handle(e.Asked(SENDERS[0], fetch)) == [e.GiveSpan(SENDERS[0], 3, 1)], "what it has, others may copy"
    relay.hear(m.Listeners(run=RUN, listeners=(HERE,)))
    assert relay.keeper.index == 5
    relay.hear(m.Listeners(run=RUN, listeners=(HERE,)))
    assert relay.keeper.index == 5, "asked twice, it goes on"
    relay.hear(m.Listeners(run=RUN, listeners=()))
    assert relay.state.keeper is None
    snapshotted = m.Snapshotted(run=RUN, snapshot=SNAPSHOT, keep_after=2)
    assert relay.hear(snapshotted) == [e.Forget(2)], "what a snapshot covers goes all the same"


def test_a_relay_keeps_the_log_whatever_the_others_are_told() -> None:
    relay = Stage(index=5).join()
    relay.hear(m.Listeners(run=RUN, listeners=()))
    assert relay.keeper.index == 5


# Data links


def test_the_log_is_given_to_whoever_asks_and_of_this_run_only() -> None:
    relay, elsewhere = Stage(), "cd" * 16
    fetch: Any = m.FetchSpan(run=RUN, index=3, span=1)
    assert relay.handle(e.Asked(SENDERS[0], fetch)) == [e.GiveSpan(SENDERS[0], 3, 1)]
    assert relay.handle(e.Asked(SENDERS[0], m.FetchRecords(run=RUN, first=2))) == [e.GiveRecords(SENDERS[0], 2)]
    other: Any = m.FetchSpan(run=elsewhere, index=3, span=1)  # type: ignore[arg-type]
    missing = m.SpanMissing(run=elsewhere, index=3, span=1)  # type: ignore[arg-type]
    assert told(relay.handle(e.Asked(SENDERS[0], other))) == [(SENDERS[0], missing)]
    reducer = Stage(keeps=False)
    assert [type(said) for _, said in told(reducer.handle(e.Asked(SENDERS[0], fetch)))] == [m.SpanMissing]


# Anything in any order


def events() -> list[e.Event]:
    plans = [plan_of(), plan_of(attempt=2), plan_of(step=8), plan_of(fence=4), plan_of(attempt=3, reducer=OTHER)]
    places = [plan.place for plan in plans] + [Place(9, 9, 9)]
    every: list[e.Event] = [e.Heard(plan) for plan in plans]
    every += [e.Heard(commit_of(index, step)) for index, step in ((1, 7), (2, 8), (3, 9), (7, 8))]
    every += [e.Heard(greeting(fence, step)) for fence, step in ((3, 7), (3, 8), (4, 7), (4, 8))]
    every += [e.Heard(m.Rehello(run=RUN, fence=fence)) for fence in (3, 4)]
    for place in places:
        every += [e.Heard(m.Drop(**named(place), slot=slot)) for slot in (0, 2, 7)]
        every += [e.Heard(m.Void(**named(place), round=1, reason=""))]
        every += [e.ChunkAdded(place, slot, chunk) for slot in (0, 1, 2, 7) for chunk in (0, 1, 2, 3, 9)]
        every += [e.HeldBack(place, slot, 0.5) for slot in (-1, 0, 7)]
        every += [e.ChunkRefused(place, slot, 0, "E211") for slot in (2, 7)]
        every += [e.LeavesKept(place, slot) for slot in (0, 1, 7)]
        every += [e.SpanWritten(place, span, bytes(32), 0.5) for span in (0, 1, 7)]
        every += [e.SpanReceived(place, span, bytes(32), 0.5) for span in (0, 1, 7)]
    for plan in plans:
        every += [e.FrameCame(SENDERS[s], frame(plan, t, 1)) for s, t in ((0, 0), (0, 1), (2, 2))]
        every += [e.AverageCame(peer, average(plan, chunk)) for peer in (OTHER, SENDERS[0]) for chunk in (0, 1)]
        every += [e.Asked(SENDERS[0], m.Leaves(**named(plan.place), slot=0, leaves=bytes(size))) for size in (160, 7)]
    every += [e.Linked(peer, Role.TRAINER) for peer in SENDERS] + [e.Unlinked(peer) for peer in SENDERS]
    every += [e.Appended(1), e.Appended(2), e.AppendFailed(2), e.Ticked(), e.ControlLost()]
    every += [e.Scanned(stop, (e.Missing(1, entry_of(0)),)) for stop in (1, 3)]
    every += [e.Copied(1, 0), e.CopyFailed(1, 0, OTHER), e.CopyFailed(5, 1, ME)]
    every += [e.Reached(()), e.Reached((OTHER,))]
    every += [e.Heard(m.Snapshotted(run=RUN, snapshot=SNAPSHOT, keep_after=after)) for after in (0, 2)]
    every += [e.Heard(m.State(run=RUN, state=state, reason="")) for state in ("finished", "running")]
    return every


ALL = events()


def test_every_kind_of_event_is_among_them() -> None:
    assert {type(event) for event in ALL} == set(get_args(e.Event))


@settings(max_examples=length(150, 40))
@given(st.lists(st.tuples(st.sampled_from(ALL), st.floats(0, 3)), max_size=120), st.booleans(), st.booleans())
def test_nothing_that_comes_in_any_order_breaks_it(
    steps: list[tuple[e.Event, float]], reduces: bool, keeps: bool
) -> None:
    """No event raises an error, a chunk closes only once, only added chunks are included, and ended attempts are not
    mentioned.
    """
    relay = Stage(reduces=reduces, keeps=keeps)
    closed: dict[Place, set[int]] = {}
    added: dict[Place, set[tuple[int, int]]] = {}
    for event, later_s in steps:
        relay.now += later_s
        actions = relay.handle(event)
        attempt = relay.attempt if reduces else None
        place = attempt.place if attempt is not None else None
        if isinstance(event, e.ChunkAdded) and attempt is not None and _is_in(attempt, event):
            added.setdefault(attempt.place, set()).add((event.slot, event.chunk))
        for action in actions:
            if isinstance(action, e.CloseChunk):
                assert place is not None
                assert action.chunk not in closed.setdefault(place, set()), "a chunk closed twice"
                closed[place].add(action.chunk)
            if isinstance(action, e.WriteSpan):
                assert place is not None
                members = {(s, c) for part in action.included for c in range(part.first, part.stop) for s in part.slots}
                assert members == {(s, c) for s, c in added[place] if action.span.first <= c < action.span.stop}
        for message in said(actions):
            if isinstance(message, m.SpanDone | m.SlotRefused | m.Progress | m.Have | m.Arrivals):
                assert place == Place(message.fence, message.step, message.attempt), "its attempt is over"


def _is_in(attempt: Attempt, event: e.ChunkAdded) -> bool:
    is_planned = attempt.place == event.place and attempt.spans and event.slot < 3 and event.chunk < 4
    return bool(is_planned) and attempt.coverage.has(event.slot, event.chunk)

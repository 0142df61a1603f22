"""A relay's log: its order, gaps and copies, and the entries that a snapshot covers."""

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.keeping import APPENDS_AHEAD, COPIES_AT_ONCE, GAP_S, SCAN_RECORDS
from tests.protocol.relay.stage import (
    ANYWHERE,
    HERE,
    ME,
    OTHER,
    RUN,
    SNAPSHOT,
    THERE,
    THIRD,
    Stage,
    commit_of,
    entry_of,
    greeting,
    said,
)


def appends(actions: list[e.Action]) -> list[int]:
    return [action.index for action in actions if isinstance(action, e.Append)]


def copies(actions: list[e.Action]) -> list[tuple[int, int, str]]:
    return [(a.index, a.entry.span, a.peer) for a in actions if isinstance(a, e.CopySpan)]


def lacking(relay: Stage, *places: tuple[int, int], stop: int | None = None) -> list[e.Action]:
    missing = tuple(e.Missing(index, entry_of(span)) for index, span in places)
    return relay.handle(e.Scanned(stop or max(index for index, _ in places) + 1, missing))


# Records


def test_records_are_appended_in_order_and_not_twice_at_once() -> None:
    relay = Stage().join(step=0)
    assert [appends(relay.hear(commit_of(index))) for index in (1, 2, 2, 1, 3)] == [[1], [2], [], [], [3]]
    relay.handle(e.Appended(1))
    assert appends(relay.hear(commit_of(1))) == [1], "the disk sees whether it is the same"
    assert relay.keeper.index == 1


def test_gap_is_reported_no_more_often_than_it_can_be_answered() -> None:
    relay = Stage(index=3).join(step=3)
    heard = [said(relay.hear(commit_of(index))) for index in (6, 7, 8)]
    assert heard == [[m.Heartbeat(run=RUN, index=3)], [], []]
    relay.now += GAP_S
    assert said(relay.hear(commit_of(9))) == [m.Heartbeat(run=RUN, index=3)]


def test_no_more_waits_for_the_disk_than_is_named() -> None:
    relay = Stage().join(step=0)
    taken = [index for index in range(1, APPENDS_AHEAD + 10) if appends(relay.hear(commit_of(index)))]
    assert taken == list(range(1, APPENDS_AHEAD + 1))
    relay.handle(e.Appended(1))
    assert appends(relay.hear(commit_of(APPENDS_AHEAD + 1))) == [APPENDS_AHEAD + 1]


def test_record_is_appended_again_after_a_failed_append() -> None:
    relay = Stage().join(step=0)
    for index in (1, 2, 3):
        relay.hear(commit_of(index))
    relay.handle(e.Appended(1))
    relay.handle(e.AppendFailed(2))
    assert appends(relay.hear(commit_of(2))) == [2]


def test_a_commit_of_an_older_host_is_true_all_the_same() -> None:
    relay = Stage().join(step=0, fence=9)
    actions = relay.hear(commit_of(1, fence=3))
    assert appends(actions) == [1]
    (settled,) = [action for action in actions if isinstance(action, e.Settle)]
    assert (settled.fence, settled.step, len(settled.spans)) == (3, 1, 2), "what was averaged then is in the update"


# A database that was restored


def test_log_that_is_ahead_is_handed_in() -> None:
    relay = Stage(index=9)
    relay.hear(m.Rehello(run=RUN, fence=3))
    assert e.HandIn(8) in relay.hear(greeting(step=7))
    assert [a for a in relay.hear(greeting(step=9)) if isinstance(a, e.HandIn)] == [e.HandIn()], "lost branches"


def test_branch_of_the_site_is_searched_for_further_and_further_back() -> None:
    relay = Stage(index=500).join(step=600)
    told = []
    for _ in range(5):
        relay.now += GAP_S
        told += said(relay.handle(e.AppendFailed(501, forks=True)))
    assert told == [m.Heartbeat(run=RUN, index=index) for index in (436, 372, 244, 0, 0)]
    assert not said(relay.handle(e.AppendFailed(501, forks=True))), "the answer is still under way"


def test_log_goes_on_from_where_the_branches_part() -> None:
    relay = Stage(index=9).join(step=20)
    assert e.HandIn() in relay.handle(e.Appended(8, replaced=True))
    assert relay.keeper.index == 8
    assert appends(relay.hear(commit_of(9))) == [9]
    relay.handle(e.Appended(9))
    assert relay.keeper.index == 9


# Copies from other relays


def test_uncovered_log_is_scanned_in_pages_after_a_restart() -> None:
    """A regression: only a commit triggered copying, so bytes missing at a restart stayed missing."""
    relay = Stage(index=200)
    relay.hear(m.Rehello(run=RUN, fence=3))
    assert e.Scan(31, 31 + SCAN_RECORDS) in relay.hear(greeting(snapshot=replace(SNAPSHOT, index=30)))
    assert not [a for a in relay.tick() if isinstance(a, e.Scan)], "one at a time"
    assert e.Scan(95, 95 + SCAN_RECORDS) in relay.handle(e.Scanned(95, ()))
    relay.handle(e.Scanned(159, ()))
    assert not [a for a in relay.handle(e.Scanned(201, ())) if isinstance(a, e.Scan)]
    relay.hear(commit_of(201))
    assert e.Scan(201, 202) in relay.handle(e.Appended(201))


def test_nothing_is_looked_for_before_the_site_has_said_anything() -> None:
    assert not [a for a in Stage(index=200).tick() if isinstance(a, e.Scan)]


def test_committed_spans_are_copied_though_the_greeting_was_lost() -> None:
    relay = Stage(index=4)
    relay.hear(commit_of(5))
    assert e.Scan(5, 6) in relay.handle(e.Appended(5))
    assert relay.hear(greeting(step=5))
    assert e.Scan(1, 6) in relay.handle(e.Scanned(6, ())), "and what came before it, once it is known where to begin"


def test_the_reducer_of_a_span_is_asked_first_then_the_others() -> None:
    relay = Stage(index=1).join(step=1, listeners=(HERE, ANYWHERE, THERE))
    assert copies(lacking(relay, (1, 0))) == [(1, 0, OTHER)]
    assert copies(relay.handle(e.CopyFailed(1, 0, OTHER))) == [(1, 0, THIRD)]
    assert copies(relay.handle(e.CopyFailed(1, 0, THIRD))) == []
    assert copies(relay.tick(0.15)) == []
    assert copies(relay.tick(0.05)) == [(1, 0, OTHER)], "and again, later"


def test_missing_span_is_asked_for_less_often_but_never_given_up() -> None:
    """A regression: after five tries, the span stayed missing until the next restart."""
    relay = Stage(index=1).join(step=1)
    lacking(relay, (1, 0))
    waits = []
    for _ in range(12):
        relay.handle(e.CopyFailed(1, 0, OTHER))
        began = relay.now
        while not copies(relay.tick(0.5)):
            pass
        waits.append(relay.now - began)
    assert waits == sorted(waits)
    assert waits[-1] == 60.0


def test_peer_without_a_log_is_asked_only_for_what_it_reduced() -> None:
    relay = Stage(index=1).join(step=1, listeners=(HERE, replace(ANYWHERE, keeps_log=False)))
    assert copies(lacking(relay, (1, 0))) == []
    relay.hear(m.Listeners(run=RUN, listeners=(HERE, replace(THERE, keeps_log=False))))
    assert copies(relay.tick()) == [(1, 0, OTHER)]


def test_its_own_span_that_is_gone_is_asked_of_others() -> None:
    relay = Stage(index=1).join(step=1)
    missing = (e.Missing(1, entry_of(0, reducer=ME)),)
    assert copies(relay.handle(e.Scanned(2, missing))) == [(1, 0, OTHER)]


def test_few_spans_are_on_their_way_at_once() -> None:
    relay = Stage(index=9).join(step=9)
    asked = copies(lacking(relay, *((index, span) for index in range(1, 6) for span in (0, 1)), stop=10))
    assert len(asked) == COPIES_AT_ONCE
    assert copies(relay.handle(e.Copied(1, 0))) == [(3, 0, OTHER)]


def test_an_answer_that_was_not_waited_for_changes_nothing() -> None:
    relay = Stage(index=1).join(step=1)
    lacking(relay, (1, 0))
    assert relay.handle(e.CopyFailed(1, 0, THIRD)) == []
    assert relay.handle(e.CopyFailed(7, 0, OTHER)) == []
    assert copies(relay.handle(e.Copied(7, 0))) == []
    assert list(relay.keeper.copies) == [(1, 0)]


# Deletion


def test_what_a_snapshot_covers_is_not_copied() -> None:
    relay = Stage(index=9).join(step=9)
    lacking(relay, *((index, 0) for index in range(1, 10)), stop=10)
    actions = relay.hear(m.Snapshotted(run=RUN, snapshot=SNAPSHOT, keep_after=8))
    assert e.Forget(8) in actions
    assert sorted(relay.keeper.copies) == [(1, 0), (2, 0), (3, 0), (4, 0), (9, 0)], "four are on their way"
    relay.handle(e.CopyFailed(1, 0, OTHER))
    assert (1, 0) not in relay.keeper.copies


def test_spans_covered_during_a_scan_are_not_copied() -> None:
    relay = Stage(index=9).join(step=9)
    relay.hear(m.Snapshotted(run=RUN, snapshot=SNAPSHOT, keep_after=8))
    assert copies(lacking(relay, (5, 0), (9, 0), stop=10)) == [(9, 0, OTHER)]


def test_a_copy_that_comes_after_it_was_covered_goes_at_once() -> None:
    """A regression: the copy stayed on the disk forever."""
    relay = Stage(index=9).join(step=9)
    lacking(relay, (5, 0), stop=10)
    relay.hear(m.Snapshotted(run=RUN, snapshot=SNAPSHOT, keep_after=8))
    assert e.Forget(8) in relay.handle(e.Copied(5, 0))


def test_the_bytes_of_a_finished_run_go_once_they_are_covered() -> None:
    relay = Stage(index=9).join(step=9)
    relay.hear(m.Snapshotted(run=RUN, snapshot=SNAPSHOT, keep_after=6))
    assert e.Forget(6) in relay.hear(m.State(run=RUN, state="finished", reason=""))
    assert e.Forget(9) in relay.hear(m.Snapshotted(run=RUN, snapshot=SNAPSHOT, keep_after=9))

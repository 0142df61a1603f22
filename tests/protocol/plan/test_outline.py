"""The public outline of a plan: a few lines for any number of peers, and no private facts."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.plan import Kind, Limit, Outline, Participant, outline_of
from peer_agent.protocol.plan.outline import MOST_NAMED, parts_of
from tests.protocol.plan.instances import peer

HEAD = m.PlanHead(
    run=RunId("a" * 32), step=4, fence=1, attempt=1, round=1, elements=1 << 20, chunk_elements=1 << 14, spans=(),
    contributors=0, slots_root=bytes(32), codec_down="fp16", duration_s=2.5,
)  # fmt: skip


def spans(*parts: int) -> tuple[m.PlannedSpan, ...]:
    starts = [sum(parts[:i]) for i in range(len(parts))]
    return tuple(
        m.PlannedSpan(span=i, first=start, stop=start + count, reducer=peer(i), attempt=1)
        for i, (start, count) in enumerate(zip(starts, parts, strict=True))
    )


def named(of: PeerId) -> Participant:
    return Participant(f"person {int(of, 16):04}", "laptop", of, "trainer")


def outline(parts: Sequence[int], count: int, *limits: Limit, unmeasured: Sequence[PeerId] = ()) -> Outline:
    known = {(peer(i), way) for i in range(2000) for way in ("up", "down") if peer(i) not in unmeasured}
    plan = replace(HEAD, spans=spans(*parts))
    contributors = [peer(i) for i in range(count)]
    return outline_of(plan, contributors, limits, named=named, measured=known, began_at=7.0)


def upload(number: int, part: float = 1.0) -> Limit:
    return Limit(Kind.UP, (peer(number),), part)


def test_few_are_all_named() -> None:
    found = outline((6, 2), 8, upload(3))
    assert (found.step, found.planned_s, found.began_at, found.took_s) == (5, 2.5, 7.0, None)
    assert [who.peer for who in found.senders] == [peer(i) for i in range(8)]
    assert [(each.who.peer, each.part) for each in found.averagers] == [(peer(0), 0.75), (peer(1), 0.25)]
    assert (found.other_senders, found.other_averagers, found.other_part) == (0, 0, 0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=100), st.integers(1, 300))
def test_participants_are_named_or_counted_in_few_lines(parts: list[int], count: int) -> None:
    found = outline(parts, count, upload(count - 1))
    assert len(found.senders) + found.other_senders == count
    assert len(found.averagers) + found.other_averagers == len(parts)
    assert sum(each.part for each in found.averagers) + found.other_part == pytest.approx(1)
    for lines, others in ((found.senders, found.other_senders), (found.averagers, found.other_averagers)):
        assert len(lines) + (others > 0) <= MOST_NAMED
        assert others != 1, "one more has room for its name"
    assert peer(count - 1) in {who.peer for who in found.senders}, "whom the round waits for is named"
    parts_named = [each.part for each in found.averagers]
    assert parts_named == pytest.approx(sorted(parts_named, reverse=True), abs=0.01)


def test_parts_of_the_same_per_cent_do_not_change_places() -> None:
    assert [each.who.peer for each in outline((1000, 1001, 999), 3).averagers] == [peer(0), peer(1), peer(2)]


def test_parts_are_of_all_spans_of_a_reducer() -> None:
    kept, new = spans(3, 5), m.PlannedSpan(span=2, first=8, stop=16, reducer=peer(0), attempt=2)
    assert parts_of((*kept, new)) == {peer(0): 11 / 16, peer(1): 5 / 16}
    assert parts_of(()) == {}


def test_what_is_not_measured_is_not_said_to_limit_anything() -> None:
    """An unknown link counts as the slowest of its kind, so its row may be among those that limit the round."""
    found = outline((8,), 3, upload(1, 0.5), upload(2, 0.5), unmeasured=[peer(2)])
    assert [each.who[0].peer for each in found.bottlenecks] == [peer(1)]


def test_who_shares_an_address_with_whom_is_not_told() -> None:
    home, pair = Limit(Kind.HOUSEHOLD, (peer(0), peer(1)), 0.5), Limit(Kind.PAIR, (peer(1), peer(0)), 0.5)
    found = outline((8,), 3, home, pair)
    assert [(each.kind, [who.peer for who in each.who]) for each in found.bottlenecks] == [
        (Kind.HOUSEHOLD, []),
        (Kind.PAIR, [peer(1), peer(0)]),
    ]


def test_it_stays_small_whoever_takes_part() -> None:
    import msgspec

    limits = [upload(i, 1 / 8) for i in range(8)]
    longest = Participant("p" * 30, "m" * 60, peer(0), "auxiliary")
    plan = replace(HEAD, spans=spans(*[1] * 1000))
    known = {(limit.peers[0], "up") for limit in limits}
    found = outline_of(plan, map(peer, range(1000)), limits, named=lambda _: longest, measured=known, began_at=0.0)
    assert len(msgspec.json.encode(found)) < 8_000

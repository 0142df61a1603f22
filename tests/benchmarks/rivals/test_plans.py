"""Rival plans for our own engine differ from the shipped engine only in their shares."""

import pytest

from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.coordinator.round.planning import make_plan
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import NO_LIMITS, Party, solve
from tests.benchmarks.rivals.against import opened
from tests.benchmarks.rivals.plans import best_connected, butterfly, parameter_server, planned_by
from tests.emulation.setups import SETUPS, Setup, peers, setup
from tests.protocol.coordinator.scenes import reducing

BYTES = 80.0
RELAY = PeerId(f"{99:032x}")


def trainer(number: int, upload_bps: float = 10.0, *, may_reduce: bool = True) -> Party:
    return Party(
        peer=PeerId(f"{number:032x}"),
        up_bytes=BYTES,
        receives=True,
        may_reduce=may_reduce,
        is_volunteer=True,
        upload_bps=upload_bps,
        download_bps=10.0,
    )


def relay() -> Party:
    return Party(peer=RELAY, may_reduce=True, upload_bps=100.0, download_bps=100.0)


def test_butterfly_gives_every_trainer_an_equal_share() -> None:
    found = butterfly([trainer(1), trainer(2, 5.0), trainer(3), trainer(4), relay()], BYTES, NO_LIMITS)
    assert dict(zip(found.reducers, found.shares, strict=True)) == {
        **{PeerId(f"{number:032x}"): 0.25 for number in (1, 2, 3, 4)},
        RELAY: 0.0,
    }
    # The peer sends its vector without the quarter that it reduces, and that quarter to three others, at 5 bytes a
    # second.
    assert found.duration_s == pytest.approx((0.75 * BYTES + 3 * 0.25 * BYTES) / 5.0)
    assert [(limit.kind, limit.peers, limit.part) for limit in found.limits] == [("up", (trainer(2).peer,), 1.0)]


def test_butterfly_takes_relays_where_no_trainer_is_reached() -> None:
    found = butterfly([trainer(1, may_reduce=False), relay()], BYTES, NO_LIMITS)
    assert (found.reducers, found.shares) == ((RELAY,), (1.0,))


def test_parameter_server_takes_all_and_is_replaced_while_away() -> None:
    both = [trainer(1), trainer(2), relay()]
    found = parameter_server(RELAY)(both, BYTES, NO_LIMITS)
    assert found.shares == (0.0, 0.0, 1.0)
    assert found.duration_s == pytest.approx(BYTES / 10.0)
    assert parameter_server(RELAY)(both[:2], BYTES, NO_LIMITS).shares == (1.0, 0.0)


@pytest.mark.parametrize("plan", [butterfly, parameter_server(RELAY)])
def test_where_nobody_may_reduce_there_is_no_plan(plan: object) -> None:
    with pytest.raises(ValueError, match="nobody"):
        plan([trainer(1, may_reduce=False)], BYTES, NO_LIMITS)  # type: ignore[operator]


def test_best_connected_prefers_a_relay_then_the_best_link() -> None:
    four, homes = setup("four"), setup("homes")
    assert best_connected(four, four.nominal()) == "trainer-1"
    assert best_connected(homes, homes.nominal()) == "relay-1"
    links = (*peers("one", (1, 300, 20)), *peers("two", (1, 50, 60)), *peers("hidden", (1, 900, 900), reachable=False))
    uneven = Setup("uneven", links, 1, "one-1", 1.0)
    assert best_connected(uneven, uneven.nominal()) == "two-1"
    narrow = Setup("narrow", (*links, *peers("relay", (1, 30, 30), role="relay")), 1, "one-1", 1.0)
    assert best_connected(narrow, narrow.nominal()) == "relay-1"


def test_coordinators_plan_so_within_the_block_alone() -> None:
    with planned_by(butterfly):
        assert vars(planning)["solve"] is butterfly
    assert vars(planning)["solve"] is solve
    stage, _, relays = reducing({}, {}, bps=(3_000_000, 1_000_000))
    with planned_by(butterfly):
        equal = make_plan(stage.state, stage.round, stage.state.reducers())
    assert [sum(s.stop - s.first for s in equal.spans if s.reducer == relay) for relay in relays] == [4, 4]
    with planned_by(None):
        assert vars(planning)["solve"] is solve


def test_opened_homes_can_be_dialled_and_one_relay_keeps_the_log() -> None:
    found = opened(SETUPS["homes"])
    assert all(peer.reachable for peer in found.peers)
    assert [peer.name for peer in found.peers if peer.role == "relay"] == ["relay-1"]
    assert len(found.peers) == len(SETUPS["homes"].peers) - 1

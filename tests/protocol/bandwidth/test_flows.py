"""Flows that were held up, the end that held them up, and the load on one direction of a link."""

import pytest

from peer_agent.protocol.bandwidth.flows import (
    OFTEN_FULL,
    SHORTEST_S,
    Capacity,
    Direction,
    Flow,
    has_room,
    loads_of,
)
from peer_agent.protocol.identifiers import PeerId

ANN, BOB, RELAY = PeerId("ann"), PeerId("bob"), PeerId("relay")


@pytest.mark.parametrize(
    ("took_s", "asked_s", "full_s", "is_held_up"),
    [
        (1.0, 0.0, None, True),  # the flow was as fast as possible, and that took a while
        (SHORTEST_S, 0.0, None, False),  # the flow was too short to show anything
        (4.0, 4.0, None, False),
        (4.5, 4.0, None, False),  # within the tolerance for machines and clocks
        (4.7, 4.0, None, True),
        (8.0, 4.0, 8.0 * OFTEN_FULL, True),
        # another flow of the sender filled its link, and this flow kept step with it
        (8.0, 4.0, 7.9 * OFTEN_FULL, False),
        (4.0, 4.0, 4.0, False),  # the link was full all the time, but the flow was on time
    ],
)
def test_flow_is_held_up_if_late_and_not_for_anothers_sake(
    took_s: float, asked_s: float, full_s: float | None, is_held_up: bool
) -> None:
    assert Flow(ANN, RELAY, 1000, 1.0, 1.0 + took_s, asked_s, True, full_s).is_held_up == is_held_up


def test_what_a_direction_carried_while_a_flow_lasted() -> None:
    """Each flow is treated as having a constant rate, and as lasting at least the shortest measurable time."""
    early, long, late = Flow(ANN, RELAY, 600, 0.0, 2.0), Flow(ANN, BOB, 800, 0.0, 8.0), Flow(ANN, BOB, 50, 8.0, 8.0)
    load = loads_of([early, long, late])[ANN, "up"]
    assert load.bps_during([early, long, late]) == pytest.approx([400, 175, 50 / SHORTEST_S])
    assert load.bps_during([Flow(ANN, BOB, 1, 1.0, 3.0), Flow(ANN, BOB, 1, 0.0, 8.0)]) == pytest.approx([250, 175])
    assert load.bps_during([]).shape == (0,)


def test_direction_load_spans_all_flows_from_first_to_last_byte() -> None:
    first, second = Flow(ANN, RELAY, 300, 1.0, 3.0), Flow(BOB, RELAY, 100, 2.0, 5.0)
    loads = loads_of([first, second])
    load = loads[RELAY, "down"]
    assert (load.received, load.seconds) == (400, 4.0)
    assert load.part_of({first}) == 0.75
    assert set(loads) == {(ANN, "up"), (BOB, "up"), (RELAY, "down")}


def test_what_trickles_in_at_the_end_makes_no_direction_slower() -> None:
    whole = loads_of([Flow(ANN, RELAY, 1000, 0.0, 10.0), Flow(BOB, RELAY, 1000, 0.0, 10.0)])[RELAY, "down"]
    assert whole.bps == pytest.approx(200)
    whole.add(Flow(BOB, RELAY, 20, 10.0, 20.0))
    assert whole.bps == pytest.approx(200, rel=0.01)
    whole.add(Flow(BOB, RELAY, 500, 10.0, 20.0))
    assert whole.bps == pytest.approx(2520 / 20, rel=0.05), "that is no trickle"
    assert loads_of([Flow(ANN, RELAY, 1000, 3.0, 3.0)])[RELAY, "down"].bps == pytest.approx(1000 / SHORTEST_S)


def test_flow_has_room_if_neither_direction_was_full() -> None:
    flow = Flow(ANN, RELAY, 100, 0.0, 1.0)
    known: dict[Direction, Capacity] = {
        (ANN, "up"): Capacity(200.0, is_floor=False, measured_at=0),
        (RELAY, "down"): Capacity(200.0, is_floor=False, measured_at=0),
    }
    assert has_room(known, loads_of([flow]), flow)
    known[RELAY, "down"].bps = 110.0
    assert not has_room(known, loads_of([flow]), flow)
    del known[RELAY, "down"]
    assert not has_room(known, loads_of([flow]), flow), "of what is not known nobody says that there is room"

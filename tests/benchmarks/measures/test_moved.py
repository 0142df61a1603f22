"""The bytes of a plan, counted by hand, and figures made from real counters."""

import numpy as np
import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import Codec
from tests.benchmarks.measures.moved import (
    OF_ROUNDS,
    Moved,
    beside_plans,
    in_parts,
    planned,
    rows_between,
    together,
)
from tests.benchmarks.rig.tally import AVERAGE, CONTROL, GRADIENT, LOG, PROBE, WORDS, Counts
from tests.protocol.identities import RUN

ONE, TWO, RELAY, OTHER = (PeerId(f"{number:032x}") for number in (1, 2, 8, 9))
CHUNK, ELEMENTS = 4096, 3 * 4096 + 100  # four chunks; the last one is short
HALVES, LAST = 2 + 2 * CHUNK, 2 + 2 * 100
WHOLE = 3 * HALVES + LAST


def slot(peer: PeerId, *weights: tuple[int, int, int], codec: Codec = "fp16") -> m.Slot:
    parts = tuple(m.Weight(*weight) for weight in weights or [(0, 4, 8)])
    return m.Slot(peer=peer, weights=parts, root=bytes(32), norm=1.0, codec=codec)


def plan(slots: tuple[m.Slot, ...], *reducers: tuple[int, int, PeerId]) -> m.Plan:
    return m.Plan(
        run=RUN,
        step=0,
        fence=1,
        attempt=1,
        round=1,
        elements=ELEMENTS,
        chunk_elements=CHUNK,
        spans=tuple(
            m.PlannedSpan(span=n, first=first, stop=stop, reducer=peer, attempt=1)
            for n, (first, stop, peer) in enumerate(reducers)
        ),
        contributors=len(slots),
        slots_root=bytes(32),
        codec_down="fp16",
        duration_s=1.0,
        slots=slots,
    )


def test_relays_take_gradients_and_send_averages_to_all() -> None:
    moved = planned(plan((slot(ONE), slot(TWO)), (0, 3, RELAY), (3, 4, OTHER)), {ONE, TWO, RELAY})
    assert moved[ONE] == moved[TWO] == Moved(WHOLE, WHOLE)
    assert moved[RELAY] == Moved(2 * 3 * HALVES, 2 * 3 * HALVES + LAST), "it keeps what the other averages"
    assert moved[OTHER] == Moved(3 * LAST, 2 * LAST)
    assert sum(each.up for each in moved.values()) == sum(each.down for each in moved.values())


def test_what_a_peer_sends_to_itself_moves_nowhere() -> None:
    moved = planned(plan((slot(ONE), slot(TWO)), (0, 4, ONE)), {ONE, TWO})
    assert moved == {ONE: Moved(WHOLE, WHOLE), TWO: Moved(WHOLE, WHOLE)}


def test_moved_bytes_follow_the_weights_and_each_slots_codec() -> None:
    slots = (slot(ONE, (0, 1, 0), (1, 4, 8)), slot(TWO, codec="int8"))
    moved = planned(plan(slots, (0, 4, RELAY)), {ONE})
    assert moved[ONE].up == WHOLE - HALVES
    assert moved[TWO] == Moved(3 * (CHUNK + 4 * 4) + 100 + 4, 0.0)


def counts(**rows: tuple[int, int]) -> Counts:
    numbers = {"gradient": GRADIENT, "average": AVERAGE, "log": LOG, "words": WORDS, "probe": PROBE, "control": CONTROL}
    made = np.zeros((6, 2), np.int64)
    for name, row in rows.items():
        made[numbers[name]] = row
    return made


BEFORE = {"home": counts(gradient=(5, 0)), "relay": counts()}
AFTER = {
    "home": counts(gradient=(1005, 0), average=(0, 1000), words=(10, 0), probe=(505, 505), control=(7, 7)),
    "relay": counts(gradient=(0, 1000), average=(1000, 0), log=(0, 20), words=(0, 10), probe=(505, 505)),
}


def test_probes_and_control_bear_headers_but_belong_to_no_round() -> None:
    plans = [{ONE: Moved(500, 500), RELAY: Moved(500, 500)}] * 2
    found = beside_plans(plans, BEFORE, AFTER, kernel_bytes=1.1 * (2010 + 1010))
    assert (found["planned"], found["payload_and_framing"], found["ratio"]) == (1000, 1005, 1.005)
    assert found["kernel_ratio"] == pytest.approx(1.1 * 1.005)
    assert (found["of_probes"], found["of_control"], found["of_the_log"]) == (505, 3.5, 0)


def test_parts_are_of_the_busiest_peer_and_of_relays_together() -> None:
    moved = rows_between(BEFORE, AFTER, OF_ROUNDS)
    assert moved == {"home": Moved(1010, 1000), "relay": Moved(1000, 1030)}
    assert in_parts(moved, ["home"], 1000) == {"up": 1.01, "down": 1.0}
    assert together(moved, ["home", "relay"], 2000) == {"up": 1.005, "down": 1.015}
    assert in_parts(moved, [], 1000) == together(moved, [], 1000) == {}

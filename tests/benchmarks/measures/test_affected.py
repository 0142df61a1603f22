"""The choice of the peer to disturb, and the comparison of the affected rounds."""

from tests.benchmarks.measures.affected import a_reducer, a_sender, beside_usual

UP = {"wide": 300.0, "middle": 17.0, "narrow": 5.0}


def test_slow_sender_is_chosen_among_those_that_limited_no_peer() -> None:
    assert a_sender(list(UP), UP, wire_bytes=80.0, plan_s=16.0) == "middle"


def test_narrowest_is_chosen_where_a_tenth_is_enough_for_all() -> None:
    assert a_sender(list(UP), UP, wire_bytes=1.0, plan_s=16.0) == "narrow"
    assert a_sender([], UP, wire_bytes=1.0, plan_s=16.0) is None


def test_a_reducer_is_a_trainer_where_one_reduces() -> None:
    assert a_reducer({"relay": 90, "trainer-1": 5, "trainer-2": 7, "trainer-3": 0}, ["trainer-1", "trainer-2"]) == (
        "trainer-2"
    )
    assert a_reducer({"relay-1": 40, "relay-2": 50}, ["trainer-1"]) == "relay-2"
    assert a_reducer({"relay-1": 0}, []) is None


def test_the_worst_round_counts_and_the_first_whatever_it_is() -> None:
    found = beside_usual([10.0, 8.0, 9.0], [9.9, 9.0, 10.8], [6.0])
    assert (found["usual_s"], found["first_s"], found["after_s"]) == (9.0, 9.9, [9.0, 10.8])
    assert (round(found["first_ratio"], 6), round(found["worst_ratio"], 6)) == (1.1, 1.2)
    assert (round(found["first_to_without"], 6), round(found["worst_to_without"], 6)) == (1.65, 1.8)
    assert beside_usual([10.0], [9.0], [])["worst_to_without"] is None

"""A rival's rounds: figures, participants and timeouts."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.rivals import seats
from tests.benchmarks.rivals.against import summary
from tests.benchmarks.rivals.environment import Unavailable
from tests.benchmarks.rivals.rounds import Round, Seat, figures_of, measured
from tests.emulation.namespaces import anywhere, on_loopback
from tests.emulation.setups import Setup, peers, setup

GIVER = """
import json, sys
print(json.dumps({"addresses": []}), flush=True)
for number, line in enumerate(sys.stdin):
    said = {"began": 10.0 * number, "ended": 10.0 * number + 2.0, "group": 2, "right": 1.0}
    print(json.dumps(said), flush=True)
"""
# A process whose child keeps the pipe open on which the benchmark waits, as hivemind's children do.
STUCK = """
import subprocess, sys, time
print("{}", flush=True)
sys.stdin.readline()
print("{}", flush=True)
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""
TWO = Setup("two", peers("trainer", (2, 50, 50)), 1000, "trainer-1", 1.0)


def told(began: float, ended: float, group: int = 2) -> dict[str, Any]:
    return {"began": began, "ended": ended, "group": group}


def test_round_lasts_from_first_start_to_last_contributor() -> None:
    said = {"one": told(11.0, 14.0, 3), "two": told(10.5, 15.0, 3), "helper": told(10.0, 19.0, 3)}
    made = Round(9.0, said, {"one": 1.0, "two": 1.0})
    assert (made.round_s, made.step_s, made.is_whole, made.is_partial) == (5.0, 6.0, True, False)


def test_figures_count_bad_rounds_and_time_those_of_whole_groups() -> None:
    right, less = {"one": 1.0, "two": 1.0}, {"one": 1.0, "two": 0.9}
    good = Round(0.0, {"one": told(1, 3), "two": told(1, 4)}, right, sent_bytes=10**9, cpu_s=6.0, busy=0.5)
    part = Round(0.0, {"one": told(1, 6), "two": told(1, 6)}, less, sent_bytes=10**9, cpu_s=8.0, busy=0.9)
    alone = Round(0.0, {"one": told(1, 9, 1), "two": {"failed": "it"}}, less)
    found = figures_of([good, part, alone], 50.0)
    assert (found["round_s"], found["rounds_s"]) == (4.0, [3.0, 5.0])
    assert (found["rounds"], found["rounds_failed"], found["rounds_partial"], found["least_right"]) == (3, 1, 1, 0.9)
    assert (found["cpu_s_per_gb"], found["peak_mb"], found["is_valid"]) == (7.0, 50.0, False)


def test_without_a_whole_round_there_is_no_time() -> None:
    found = figures_of([Round(0.0, {"one": {"failed": "it"}}, {"one": 0.0})], 1.0)
    assert (found["round_s"], found["rounds_failed"], found["cpu_s_per_gb"]) == (None, 1, None)


def test_the_summary_names_each_and_compares_those_with_a_time() -> None:
    found = {"gloo": {"round_s": 3.0, "peak_mb": 5.0}, "hivemind_best": {"round_s": None, "rounds_failed": 2}}
    assert summary(found, 2.0) == {
        "gloo_s": 3.0,
        "gloo_peak_mb": 5.0,
        "ratio_to_gloo": 1.5,
        "hivemind_best_s": None,
        "hivemind_best_rounds_failed": 2,
    }
    assert "ratio_to_gloo" not in summary(found, None)


def test_homes_are_clients_and_the_keeper_relay_is_dialled_first(tmp_path: Path) -> None:
    found = setup("homes")
    with on_loopback(found) as network:
        seated = seats.hivemind(network, "fp16", Path("python"), found.nominal(), best=True)
    assert [seat.asked["role"] for seat in seated].count("client") == 16
    assert [seat.name for seat in seated if seat.asked["role"] == "auxiliary"] == ["relay-1", "relay-2"]
    assert [seat.name for seat in seated if seat.asked["is_dialled"]] == [seated[0].name] == ["relay-1"]
    contributors = [seat for seat in seated if seat.contributes]
    assert sorted(seat.asked["index"] for seat in contributors) == list(range(16))
    assert {seat.name: seat.asked["bandwidth"] for seat in seated}["home-1"] == pytest.approx(17.0)


def test_gloo_needs_all_to_reach_each_other_and_a_type_of_torch() -> None:
    assert seats.reason_against_gloo(setup("four"), "fp16") == ""
    assert seats.reason_against_gloo(setup("homes"), "fp16")
    assert seats.reason_against_gloo(setup("four"), "int8")


def seat(name: str, code: str) -> Seat:
    return Seat(name, (sys.executable, "-S", "-c", code), {"is_dialled": name == "trainer-1"})


def test_rounds_are_made_and_counted_behind_those_that_warm_up(tmp_path: Path) -> None:
    with anywhere(TWO, shaped=False) as network:
        found = measured(network, [seat("trainer-1", GIVER), seat("trainer-2", GIVER)], tmp_path, (1, 2), 20.0)
        ended = [process.poll() for node in network.nodes.values() for process in node.started]
    assert (found["rounds"], found["rounds_s"], found["rounds_partial"]) == (2, [2.0, 2.0], 0)
    assert None not in ended


def test_who_is_stuck_is_given_up_with_its_children(tmp_path: Path) -> None:
    with anywhere(TWO, shaped=False) as network:
        with pytest.raises(Unavailable, match="ended with -"):
            measured(network, [seat("trainer-1", GIVER), seat("trainer-2", STUCK)], tmp_path, (1, 2), 0.5)
        assert [process.poll() for node in network.nodes.values() for process in node.started].count(None) == 0

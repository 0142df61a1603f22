"""JSON lines become table rows, and the rest of the page stays as it is."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.suite.tables import NOT_MEASURED, TABLES, filled, main, table
from tests.emulation.network import ROOT

RUN: dict[str, Any] = {
    "benchmark": "averaging",
    "setup": "four",
    "scale": 1.0,
    "codec": "fp16",
    "round_s_median": 9.0,
    "floor_s": 8.0,
    "raw_floor_s": 7.5,
    "ratio": 1.125,
    "cpu_busy": 0.25,
    "is_valid": True,
    "learned_bandwidth_error": {"trainer-1 up": 0.02, "trainer-4 down": -0.11},
    "cpu_s_per_gb": 9.5,
    "peak_mb": {"trainer-1": 300.0, "trainer-2": 400.0, "relay-1": 90.0},
    "against": {
        "hivemind_best_s": 15.3,
        "ratio_to_hivemind_best": 1.7,
        "hivemind_best_rounds_partial": 1,
        "hivemind_best_cpu_s_per_gb": 23.1,
        "hivemind_best_peak_mb": 1100.0,
        "left_out": {"gloo": "all have to reach each other"},
    },
}


def rows(name: str, *runs: dict[str, Any]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table(name, list(runs)).splitlines()][2:]


def test_round_times_stand_beside_both_floors() -> None:
    assert rows("round-times", RUN) == [["four", "1", "fp16", "9", "8", "1.12", "1.2", "0.25", "True"]]


def test_what_households_keep_has_a_table_of_its_own() -> None:
    run = RUN | {"reserve_percent": 20, "uplink_peak": 0.801}
    assert rows("household", RUN, run) == [["four", "20", "0.801", "9", "8", "1.12", "True"]]
    assert rows("round-times", run) == []


def test_the_largest_error_is_shown_whatever_its_sign() -> None:
    assert rows("bandwidths", RUN) == [["four", "2", "-0.11", "trainer-4 down"]]


def test_rivals_that_were_left_out_say_why() -> None:
    found = {row[2]: row[3:] for row in rows("rivals", RUN)}
    assert found["hivemind 1.1.12, tuned"] == ["15.3", "1.7", "1"]
    assert found["gloo"] == ["–", "–", "all have to reach each other"]
    assert found["equal butterfly"] == ["–", "–", NOT_MEASURED]


def test_costs_are_of_the_largest_of_each_kind_and_of_each_rival() -> None:
    assert rows("costs", RUN) == [
        ["four", "Manyhands, relay", "9.5", "90"],
        ["four", "Manyhands, trainer", "9.5", "400"],
        ["four", "hivemind 1.1.12, tuned", "23.1", "1100"],
    ]


def test_who_forwards_stands_beside_us_or_why_not() -> None:
    ours = {"cpu_s_per_gb": 3.0, "peak_mb": 50.0, "mb_per_s": 100.0}
    run = {"benchmark": "forwarding", "forwarders": {"ours": ours}, "left_out": {"haproxy": "it is not installed"}}
    assert rows("forwarding", run) == [
        ["Manyhands, behind a TLS proxy", "3", "50", "100"],
        ["haproxy", "it is not installed", "–", "–"],
    ]


FREE = RUN | {
    "codec": "plan",
    "round_s_median": 2.5,
    "codecs_up": {"int4": 17, "int8": 1},
    "codecs_down": {"int4": 5},
    "left_out": {"trainer-4": 2},
    "error_rms": 0.1234,
    "against": {"ratio_to_hivemind_best": 6.1},
}


def test_the_plans_freedom_has_a_table_of_its_own() -> None:
    (row,) = rows("freedom", RUN, FREE)
    assert row[:1] + row[4:] == ["four", "int4 17, int8 1", "int4 5", "trainer-4 2", "0.123", "6.1", "–", "True"]
    for name in ("round-times", "bandwidths", "rivals", "costs"):
        assert rows(name, RUN, FREE) == rows(name, RUN)


def test_losses_are_those_of_the_worst_seed() -> None:
    run = {"steps": 200, "of_fp16": {"fp16": [1.0, 1.0], "int4": [1.0021, 1.00661, 0.9987]}}
    assert rows("held-out-losses", run) == [["fp16", "1.0000"], ["int4", "1.0066"]]


def test_overlap_row_shows_absences_and_the_furthest_behind() -> None:
    everybody = {
        "samples_per_s": 6.5,
        "absent": {"3": ["trainer-1"], "4": [], "5": ["trainer-1", "trainer-2"]},
        "round_s_with_all": 4.0,
        "round_s_without_some": None,
        "behind": {"trainer-1": 0, "trainer-2": 1},
        "behind_later": {},
        "is_valid": True,
    }
    faster = {"samples_per_s": 5.0, "is_valid": False}
    run = {"benchmark": "overlap", "setup": "albert", "contributors": "all", "fp16_floor_s": 14.2}
    run |= {"everybody": everybody, "faster": faster, "ratio": 1.3}
    expected = ["albert", "all", "14.2", "6.5", "5", "1.3", "3", "4", "–", "1", "–", "False"]
    assert rows("overlap", run, {"benchmark": "overlap", "left_out": "no root"}) == [expected]


def test_plan_times_are_by_the_number_of_peers() -> None:
    run = {"benchmark": "plan", "closed_form_ms": {"16": 0.5, "64": 0.6}, "all_pairs_ms": {"16": 25.0}, "choose_ms": {}}
    assert rows("plan-times", run) == [["16", "0.5", "25", "–"], ["64", "0.6", "–", "–"]]


def test_delayed_setups_have_a_table_of_their_own() -> None:
    assert rows("round-trips", RUN) == []
    assert rows("round-trips", RUN | {"setup": "homes-rtt"})[0][0] == "homes-rtt"


MANY = RUN | {
    "setup": "homes",
    "is_many": True,
    "rounds_s": [3.0] * 50,
    "rounds_ok": 49,
    "rounds_void": 1,
    "in_and_holding": 0.9987,
    "bytes": {
        "ratio": 1.0041,
        "kernel_ratio": 1.0512,
        "who_reduces_nothing_in_p": {"up": 1.01, "down": 1.02},
        "relays_in_np": {"up": 1.0, "down": 1.03},
    },
}


def test_many_short_rounds_fill_the_bytes_table_alone() -> None:
    assert rows("bytes", RUN, MANY) == [
        ["homes", "49 of 50", "1", "0.999", "1.004", "1.051", "1.01 / 1.02", "1 / 1.03"],
    ]
    others = [name for name in TABLES if name != "bytes" and rows(name, MANY)]
    assert others == []
    assert rows("bytes", MANY | {"bytes": MANY["bytes"] | {"relays_in_np": {}}})[0][-1] == "– / –"


TROUBLE: dict[str, Any] = {
    "benchmark": "trouble",
    "setup": "four",
    "scale": 1.0,
    "trouble": "slow",
    "part": "sender",
    "who": "trainer-4",
    "usual_s": 9.0,
    "without_s": None,
    "first_s": 9.9,
    "first_ratio": 1.1,
    "worst_ratio": 1.2,
    "first_to_without": None,
    "worst_to_without": None,
    "dropped": [["trainer-4"], [], ["trainer-3"], ["trainer-3", "trainer-4"], []],
    "left_out": [[], ["trainer-4"], [], [], []],
    "digests_equal": True,
    "behind": 0,
    "is_valid": True,
}


def test_troubles_row_shows_usual_rounds_and_counts_drops() -> None:
    about = ["four", "1", "slow", "sender", "trainer-4"]
    assert rows("troubles", TROUBLE) == [
        [*about, "9", "–", "9.9", "1.1", "1.2", "–", "–", "2", "equal", "0", "True"],
    ]
    left_out = {name: TROUBLE[name] for name in ("benchmark", "setup", "trouble", "part")} | {"left_out": "no root"}
    (row,) = rows("troubles", left_out)
    assert row[-3] == "no root"
    assert len(row) == len(rows("troubles", TROUBLE)[0])


def test_memory_is_by_what_a_process_does() -> None:
    found = {"peak_mb": 90.0, "grown_mb": 0.5, "mb_per_100_rounds": 0.125}
    run = {"benchmark": "memory.averaging", "rounds": 500, "rounds_void": 166, "allowed_mb": 206.0}
    assert rows("memory", run | {"memory": {"relay": found}}) == [["relay", "500", "166", "90", "206", "0.125"]]


def test_presets_and_the_inner_loop_are_a_line_each() -> None:
    preset = {"preset": "BERT", "parameters": 109, "parameters_told_ratio": 0.999, "memory_mb": 9.5}
    told = {"memory_told_mb": 10.5, "memory_told_ratio": 1.105}
    found = rows("presets", {"benchmark": "presets"} | preset | told)
    assert found == [["BERT", "109", "0.999", "10.5", "9.5", "1.1"]]
    loop = {"device": "CPU", "threads": 1, "precision": "fp32", "parameters": 20, "ours_samples_per_s": 3.5}
    found = rows("inner-loop", {"benchmark": "inner_loop", "plain_samples_per_s": 3.6, "ratio": 0.97} | loop)
    assert found == [["CPU", "1", "fp32", "20", "3.5", "3.6", "0.97"]]


def test_attention_is_a_line_for_each_model() -> None:
    speeds = {"fp32_samples_per_s": 239.3, "bf16_samples_per_s": 255.5, "wide_samples_per_s": 368.9}
    ratios = {"beside_fp32": 1.533, "beside_bf16": 1.317}
    found = rows("attention", {"benchmark": "attention", "model": "small"} | speeds | ratios)
    assert found == [["small", "239", "256", "369", "1.53", "1.32"]]


def test_lighthouses_marks_are_of_the_run_with_most_members() -> None:
    marks = {"performance": 99.0, "accessibility": 100, "best-practices": 100, "seo": 100}
    page = {"phone /runs/run-0/": marks | {"layout_shift": 0.00066, "largest_paint_ms": 1611.4}}
    few, many = ({"benchmark": "lighthouse", "members": members, "pages": page} for members in (50, 500))
    found = rows("lighthouse", many, few | {"pages": {"phone /": next(iter(page.values()))}})
    assert found == [["phone", "`/runs/run-0/`", "99", "100", "100", "100", "0.00066", "1611"]]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_figures_says_so(name: str) -> None:
    left_out = {"benchmark": "averaging", "setup": "four", "left_out": "no root"}
    assert table(name, [left_out]) == f"{NOT_MEASURED}\n"


def test_a_page_keeps_its_words_and_no_figure_of_before(tmp_path: Path) -> None:
    page = "Words.\n<!-- round-times -->\nold\n<!-- end -->\nMore.\n<!-- bandwidths -->\n<!-- end -->\n"
    new = filled(page, [RUN])
    assert "old" not in new
    assert new.startswith("Words.\n<!-- round-times -->\n| set-up |")
    assert "<!-- end -->\nMore.\n<!-- bandwidths -->\n| set-up |" in new
    assert filled(new, [RUN]) == new
    (tmp_path / "page.md").write_text(page)
    (tmp_path / "runs.jsonl").write_text(f"words\n{json.dumps(RUN)}\n")
    assert main([str(tmp_path / "runs.jsonl"), "--write", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == new


def test_the_page_of_benchmarks_has_every_table() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [name for name in TABLES if f"<!-- {name} -->" not in page] == []


def test_the_page_shows_the_lines_that_are_kept_beside_it() -> None:
    page, kept = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.jsonl"
    runs = [json.loads(line) for line in kept.read_text().splitlines()]
    assert filled(page.read_text(), runs) == page.read_text(), "written by suite.tables, and never by hand"

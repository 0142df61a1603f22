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


def test_what_households_keep_has_a_table_of_its_own() -> None:
    run = RUN | {"reserve_percent": 20, "uplink_peak": 0.801}
    assert rows("household", RUN, run) == [["four", "20", "0.801", "9", "8", "1.12", "True"]]
    assert rows("round-times", run) == []


def test_rivals_that_were_left_out_say_why() -> None:
    found = {row[2]: row[3:] for row in rows("rivals", RUN)}
    assert found["hivemind 1.1.12, tuned"] == ["15.3", "1.7", "1"]
    assert found["gloo"] == ["–", "–", "all have to reach each other"]
    assert found["equal butterfly"] == ["–", "–", NOT_MEASURED]


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

"""Turns the figures of benchmark runs into table rows: `python -m tests.benchmarks.suite.tables FILE... [--write
docs/benchmarks.md]`.

The page has a line `<!-- NAME -->` before each table and `<!-- end -->` after it. The text between these lines is
rewritten. If a table has no figures, a note replaces its old text.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
Cells = list[str]
Table = tuple[Cells, Callable[[list[Figures]], Iterable[Cells]]]  # (headings, a function that makes rows from the runs)

NOT_MEASURED = "not measured yet"
MARKED = re.compile(r"(<!-- (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RIVALS = {
    "hivemind_default": "hivemind 1.1.12, default",
    "hivemind_best": "hivemind 1.1.12, tuned",
    "gloo": "gloo",
    "butterfly": "equal butterfly",
    "parameter_server": "one parameter server",
}

FORWARDERS = {
    "ours": "Manyhands, behind a TLS proxy",
    "ours_tls": "Manyhands, with its own TLS",
    "haproxy": "HAProxy",
    "haproxy_tls": "HAProxy, with its own TLS",
}


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)


def cells(run: Figures, *names: str) -> Cells:
    return [shown(run.get(name)) for name in names]


def averaging(runs: Iterable[Figures], *, is_free: bool = False) -> list[Figures]:
    """Return the timed rounds of the `averaging` benchmark: in a stated codec, or in codecs that the plan chose
    (`is_free`).
    """
    timed = [run for run in made(runs) if not run.get("is_many") and not run.get("reserve_percent")]
    return [run for run in timed if (run["codec"] == "plan") == is_free]


def made(runs: Iterable[Figures]) -> list[Figures]:
    return [run for run in runs if run.get("benchmark") == "averaging" and "round_s_median" in run]


def time_rows(runs: list[Figures]) -> Iterable[Cells]:
    for run in averaging(runs):
        raw = run["round_s_median"] / run["raw_floor_s"]
        names = ("setup", "scale", "codec", "round_s_median", "floor_s", "ratio")
        yield [*cells(run, *names), shown(raw), *cells(run, "cpu_busy", "is_valid")]


def reserve_rows(runs: list[Figures]) -> Iterable[Cells]:
    """Yield a row for each run in which households keep a share of their uplinks. The floor time uses the remaining
    rates.
    """
    for run in (run for run in made(runs) if run.get("reserve_percent")):
        names = ("setup", "reserve_percent", "uplink_peak", "round_s_median", "floor_s", "ratio", "is_valid")
        yield cells(run, *names)


def bandwidth_rows(runs: list[Figures]) -> Iterable[Cells]:
    for run in averaging(runs):
        if errors := run["learned_bandwidth_error"]:
            worst = max(errors, key=lambda name: abs(errors[name]))
            yield [run["setup"], str(len(errors)), shown(float(errors[worst])), worst]


def rival_rows(runs: list[Figures]) -> Iterable[Cells]:
    for run in averaging(runs):
        if "against" in run:
            ours = shown(run["round_s_median"])
            for name, called in RIVALS.items():
                yield [run["setup"], ours, called, *rival_cells(run["against"], name)]


def rival_cells(against: Figures, name: str) -> Cells:
    """Return seconds, ratio and partial rounds, or the reason why the rival was not measured."""
    if (seconds := against.get(f"{name}_s")) is None:
        return ["–", "–", against.get("left_out", {}).get(name, NOT_MEASURED)]
    partial = against.get(f"{name}_rounds_partial")
    return [shown(seconds), shown(against.get(f"ratio_to_{name}")), shown(partial)]


def freedom_rows(runs: list[Figures]) -> Iterable[Cells]:
    for run in averaging(runs, is_free=True):
        against = run.get("against", {})
        ratios = [shown(against.get(f"ratio_to_{name}")) for name in ("hivemind_best", "gloo")]
        counts = [counted(run[name]) for name in ("codecs_up", "codecs_down", "left_out")]
        names = ("setup", "round_s_median", "floor_s", "ratio")
        yield [*cells(run, *names), *counts, shown(run["error_rms"]), *ratios, shown(run["is_valid"])]


def counted(times: dict[str, int]) -> str:
    """Return counts such as `int4 20, int8 5`, or a dash if there are none."""
    return ", ".join(f"{name} {count}" for name, count in sorted(times.items())) or shown(None)


def loss_rows(runs: list[Figures]) -> Iterable[Cells]:
    """Yield each codec's loss as a multiple of the fp16 loss, for the worst seed."""
    for run in (run for run in runs if "of_fp16" in run):
        for codec, ratios in run["of_fp16"].items():
            yield [codec, f"{max(ratios):.4f}"]


def overlap_rows(runs: list[Figures]) -> Iterable[Cells]:
    for run in (run for run in runs if run.get("benchmark") == "overlap" and "ratio" in run):
        everybody, faster = run["everybody"], run["faster"]
        rates = [shown(each["samples_per_s"]) for each in (everybody, faster)]
        rounds = cells(everybody, "round_s_with_all", "round_s_without_some")
        out = sum(map(len, everybody["absent"].values()))
        behind = [shown(max(everybody[name].values(), default=None)) for name in ("behind", "behind_later")]
        is_valid = everybody["is_valid"] and faster["is_valid"]
        names = ("setup", "contributors", "fp16_floor_s")
        yield [*cells(run, *names), *rates, shown(run["ratio"]), str(out), *rounds, *behind, shown(is_valid)]


def cost_rows(runs: list[Figures]) -> Iterable[Cells]:
    for run in averaging(runs):
        kinds = {name.rpartition("-")[0] for name in run["peak_mb"]}  # a peer's name is its kind and a number
        for kind in sorted(kinds):
            peak = max(peak for name, peak in run["peak_mb"].items() if name.startswith(f"{kind}-"))
            yield [run["setup"], f"Manyhands, {kind}", shown(run["cpu_s_per_gb"]), shown(peak)]
        against = run.get("against", {})
        for name, called in RIVALS.items():
            if f"{name}_cpu_s_per_gb" in against:
                yield [run["setup"], called, *cells(against, f"{name}_cpu_s_per_gb", f"{name}_peak_mb")]


def plan_rows(runs: list[Figures]) -> Iterable[Cells]:
    for run in (run for run in runs if run.get("benchmark") == "plan" and "closed_form_ms" in run):
        for count in run["closed_form_ms"]:
            yield [count, *(shown(run[name].get(count)) for name in ("closed_form_ms", "all_pairs_ms", "choose_ms"))]


def bytes_rows(runs: list[Figures]) -> Iterable[Cells]:
    """Yield a row for each run of many rounds: its rounds, its peers, and the bytes beyond the planned ones."""
    for run in (run for run in made(runs) if run.get("is_many")):
        found, ok = run["bytes"], f"{run['rounds_ok']} of {len(run['rounds_s'])}"
        parts = (found["who_reduces_nothing_in_p"], found["relays_in_np"])
        moved = [" / ".join(cells(part, "up", "down")) for part in parts]
        yield [run["setup"], ok, *cells(run, "rounds_void", "in_and_holding"), *exact(found), *moved]


def exact(found: Figures) -> Cells:
    return [f"{found[name]:.3f}" for name in ("ratio", "kernel_ratio")]


def trouble_rows(runs: list[Figures]) -> Iterable[Cells]:
    """Yield rows that compare rounds with one peer in trouble to normal rounds and rounds without that peer. If none
    ran, give the reason.
    """
    for run in (run for run in runs if run.get("benchmark") == "trouble" and "trouble" in run):
        about = cells(run, "setup", "scale", "trouble", "part", "who")
        # a text is the reason; otherwise this is a list of peers without a part
        if isinstance(run.get("left_out"), str):
            yield [*about, *["–"] * 8, run["left_out"], "–", "–"]
            continue
        ratios = ("first_ratio", "worst_ratio", "first_to_without", "worst_to_without")
        dropped = sum(run["who"] in names for names in run["dropped"])
        digests = "equal" if run["digests_equal"] else "differ"
        times = cells(run, "usual_s", "without_s", "first_s", *ratios)
        yield [*about, *times, str(dropped), digests, *cells(run, "behind", "is_valid")]


def memory_rows(runs: list[Figures]) -> Iterable[Cells]:
    for run in (run for run in runs if run.get("benchmark") == "memory.averaging" and "memory" in run):
        for who, found in run["memory"].items():
            grown = cells(found, "mb_per_100_rounds")
            yield [
                who,
                *cells(run, "rounds", "rounds_void"),
                shown(found["peak_mb"]),
                *cells(run, "allowed_mb"),
                *grown,
            ]


def forwarding_rows(runs: list[Figures]) -> Iterable[Cells]:
    """Yield our forwarders, then the rivals. A rival that could not run is shown with the reason."""
    for run in (run for run in runs if run.get("benchmark") == "forwarding" and "forwarders" in run):
        for name, called in FORWARDERS.items():
            if name in run["forwarders"]:
                yield [called, *cells(run["forwarders"][name], "cpu_s_per_gb", "peak_mb", "mb_per_s")]
        yield from ([name, reason, "–", "–"] for name, reason in run.get("left_out", {}).items())


def delayed_rows(runs: list[Figures]) -> Iterable[Cells]:
    return time_rows([run for run in runs if str(run.get("setup", "")).endswith("-rtt")])


def preset_rows(runs: list[Figures]) -> Iterable[Cells]:
    names = ("preset", "parameters", "parameters_told_ratio", "memory_told_mb", "memory_mb", "memory_told_ratio")
    for run in runs:
        if run.get("benchmark") == "presets":
            yield cells(run, *names)


def step_rows(runs: list[Figures]) -> Iterable[Cells]:
    """Yield a step's stated bytes and seconds, compared with rounds over links of the stated speed."""
    names = (
        "up_told_mb",
        "up_told_ratio",
        "down_told_ratio",
        "round_told_s",
        "round_s",
        "round_told_ratio",
        "is_valid",
    )
    for run in runs:
        if run.get("benchmark") == "steps" and "preset" in run:
            yield cells(run, "preset", "uplink_mbit", *names)


def loop_rows(runs: list[Figures]) -> Iterable[Cells]:
    names = ("device", "threads", "precision", "parameters", "ours_samples_per_s", "plain_samples_per_s", "ratio")
    for run in runs:
        if run.get("benchmark") == "inner_loop":
            yield cells(run, *names)


def attention_rows(runs: list[Figures]) -> Iterable[Cells]:
    names = ("model", "fp32_samples_per_s", "bf16_samples_per_s", "wide_samples_per_s", "beside_fp32", "beside_bf16")
    for run in runs:
        if run.get("benchmark") == "attention":
            yield cells(run, *names)


def page_rows(runs: list[Figures]) -> Iterable[Cells]:
    looked = [run for run in runs if run.get("benchmark") == "pages" and "pages" in run]
    for run in sorted(looked, key=lambda run: run["ledger_rows"])[-1:]:
        for path, page in run["pages"].items():
            yield [f"`{path}`", *cells(page, "queries", "cpu_ms", "median_ms", "p95_ms", "kb", "sent_kb")]


def mark_rows(runs: list[Figures]) -> Iterable[Cells]:
    looked = [run for run in runs if run.get("benchmark") == "lighthouse" and "pages" in run]
    for run in sorted(looked, key=lambda run: run["members"])[-1:]:
        for page, found in run["pages"].items():
            form, path = page.split(" ")
            marks = cells(found, "performance", "accessibility", "best-practices", "seo", "layout_shift")
            yield [form, f"`{path}`", *marks, *cells(found, "largest_paint_ms")]


SENDERS, RELAYS = "busiest non-reducer, up / down (P)", "all relays, up / down (nP)"
TIMES = ["set-up", "scale", "codec", "round, s", "floor, s", "ratio", "ratio at nominal rates", "cpu_busy", "valid"]
FREEDOM = ["set-up", "round, s", "floor, s", "ratio", "codecs up", "codecs down", "left out", "error"]
OVERLAP = ["set-up", "contributors", "fp16 floor, s", "samples/s", "samples/s without the slowest", "ratio", "absent"]
BEHIND = ["round with all, s", "round without some, s", "steps behind at the end", "ten rounds later", "valid"]
TABLES: dict[str, Table] = {
    "round-times": (TIMES, time_rows),
    "household": (
        [
            "set-up",
            "reserve, %",
            "peak second",
            "round, s",
            "floor, s",
            "ratio",
            "valid",
        ],
        reserve_rows,
    ),
    "bandwidths": (["set-up", "links", "largest error", "on link"], bandwidth_rows),
    "rivals": (
        ["set-up", "ours, s", "compared with", "time, s", "ratio to ours", "rounds partly averaged"],
        rival_rows,
    ),
    "freedom": ([*FREEDOM, "tuned hivemind, ratio to ours", "gloo, ratio to ours", "valid"], freedom_rows),
    "held-out-losses": (["codec", "held-out loss relative to fp16"], loss_rows),
    "overlap": ([*OVERLAP, *BEHIND], overlap_rows),
    "costs": (["set-up", "software", "CPU s per GB sent", "peak memory of a peer, MB"], cost_rows),
    "bytes": (
        ["set-up", "rounds ok", "void", "complete", "payload and framing", "kernel", SENDERS, RELAYS],
        bytes_rows,
    ),
    "troubles": (
        [
            *("set-up", "scale", "trouble", "role", "peer", "usual, s", "without it, s", "first, s", "first / usual"),
            *(
                "worst / usual",
                "first / without",
                "worst / without",
                "times dropped",
                "digests",
                "steps behind",
                "valid",
            ),
        ],
        trouble_rows,
    ),
    "memory": (["process", "rounds", "void", "peak, MB", "limit, MB", "growth per 100 rounds, MB"], memory_rows),
    "forwarding": (["forwarder", "CPU s per GB", "peak memory, MB", "MB/s"], forwarding_rows),
    "plan-times": (["peers", "closed form, ms", "limit on every pair, ms", "choosing contributors, ms"], plan_rows),
    "round-trips": (TIMES, delayed_rows),
    "presets": (
        ["preset", "parameters", "predicted / actual", "memory predicted, MB", "memory used, MB", "predicted / used"],
        preset_rows,
    ),
    "preset-steps": (
        [
            "preset",
            "uplink, Mb/s",
            "predicted each way, MB",
            "predicted / sent",
            "predicted / received",
            "averaging predicted, s",
            "averaging measured, s",
            "predicted / measured",
            "valid",
        ],
        step_rows,
    ),
    "pages": (["page", "queries", "CPU, ms", "median, ms", "p95, ms", "kB", "kB sent (compressed)"], page_rows),
    "lighthouse": (
        [
            "device",
            "page",
            "performance",
            "accessibility",
            "best practices",
            "SEO",
            "layout shift",
            "largest paint, ms",
        ],
        mark_rows,
    ),
    "inner-loop": (
        ["device", "threads", "precision", "parameters", "ours, samples/s", "plain, samples/s", "ratio"],
        loop_rows,
    ),
    "attention": (
        ["model", "fp32, samples/s", "bf16, samples/s", "bf16 with fp32 attention", "ratio to fp32", "ratio to bf16"],
        attention_rows,
    ),
}


def table(name: str, runs: list[Figures]) -> str:
    headings, rows_of = TABLES[name]
    found = list(rows_of(runs))
    if not found:
        return f"{NOT_MEASURED}\n"
    lines = [headings, ["---"] * len(headings), *found]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(page: str, runs: list[Figures]) -> str:
    """Return the page with its tables rewritten. Raise KeyError for an unknown table."""
    return MARKED.sub(lambda found: found[1] + table(found["name"], runs) + found[3], page)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.suite.tables", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="lines of JSON, as benchmarks print them")
    parser.add_argument("--write", type=Path, help="the page whose tables are written anew")
    asked = parser.parse_args(arguments)
    lines = (line for file in asked.files for line in file.read_text().splitlines())
    runs = [json.loads(line) for line in lines if line.startswith("{")]
    if asked.write is None:
        print("\n".join(f"{name}\n\n{table(name, runs)}" for name in TABLES))
    else:
        asked.write.write_text(filled(asked.write.read_text(), runs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

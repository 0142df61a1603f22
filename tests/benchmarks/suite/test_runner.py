"""Benchmarks as processes: their output is saved, and none exceeds its time budget."""

import json
import sys

from tests.benchmarks.suite.runner import lines_of
from tests.benchmarks.suite.sizes import Job

PRINTS = 'print("words"); print(\'{"benchmark": "one"}\', flush=True)'


def lines(code: str, budget_s: int = 30) -> tuple[list[dict[str, object]], bool]:
    said, is_done = lines_of(Job("one", budget_s), (sys.executable, "-S", "-c", code))
    return [json.loads(line) for line in said], is_done


def test_objects_are_kept_and_words_are_not() -> None:
    assert lines(PRINTS) == ([{"benchmark": "one"}], True)


def test_one_that_fails_says_so_after_what_it_had() -> None:
    assert lines(f"{PRINTS}; raise SystemExit(3)") == (
        [{"benchmark": "one"}, {"benchmark": "one", "left_out": "ended with 3"}],
        False,
    )


def test_one_that_takes_too_long_is_ended_and_keeps_what_it_had() -> None:
    found, is_done = lines(f"{PRINTS}; import signal; signal.pause()", budget_s=1)
    assert not is_done
    assert [line.get("left_out") for line in found] == [None, "took longer than its budget of 1 s"]

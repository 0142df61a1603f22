"""Medians, and the JSON object that a benchmark prints at its end."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

Figures = dict[str, Any]


def publish(name: str, measure: Callable[[], Figures | list[Figures]]) -> int:
    """Measure, and print each result as a JSON object, together with the machine's one-minute load before and after."""
    began, before = time.monotonic(), os.getloadavg()[0]
    measured = measure()
    about = {
        "benchmark": name,
        "seconds": time.monotonic() - began,
        "cpus": os.cpu_count(),
        "load_before": before,
        "load_after": os.getloadavg()[0],
    }
    for figures in measured if isinstance(measured, list) else [measured]:
        print(json.dumps(_rounded(about | figures)), flush=True)
    return 0


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def say(line: str) -> None:
    """Print progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def _rounded(value: Any) -> Any:
    """Round numbers to four significant digits. No figure is more accurate than that."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: _rounded(part) for key, part in value.items()}
        case list() | tuple():
            return [_rounded(part) for part in value]
    return value

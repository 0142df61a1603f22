"""Log records as JSON lines."""

import asyncio
import json
import logging
import sys
from typing import Any

from config.logs import JsonFormatter, add_log_facts, formatter


def line(message: str, *values: object, **more: Any) -> dict[str, Any]:
    record = logging.LogRecord("hosts", logging.WARNING, __file__, 1, message, values, more.get("error"))
    found: dict[str, Any] = json.loads(text := JsonFormatter().format(record))
    assert "\n" not in text
    return found


def test_a_line_has_time_level_logger_and_message() -> None:
    found = line("run %s:\nlost", "প্রবাদ")
    assert found.pop("time").endswith("+00:00")
    assert found == {"level": "warning", "logger": "hosts", "message": "run প্রবাদ:\nlost"}


async def test_facts_belong_to_the_task_and_what_it_starts() -> None:
    async def host(run: str) -> list[dict[str, Any]]:
        add_log_facts(run=run, step=0)
        add_log_facts(step=7)
        beside = await asyncio.to_thread(line, "beside")
        return [line("mine"), beside]

    found = await asyncio.gather(host("one"), host("two"))
    assert [[(each["run"], each["step"]) for each in lines] for lines in found] == [[("one", 7)] * 2, [("two", 7)] * 2]
    assert "run" not in line("another's")


def test_an_error_has_its_traceback() -> None:
    try:
        int("no")
    except ValueError:
        found = line("failed", error=sys.exc_info())
    assert found["traceback"].endswith("ValueError: invalid literal for int() with base 10: 'no'")


def test_text_is_for_people() -> None:
    assert "format" in formatter("text")
    assert formatter("json") == {"()": "config.logs.JsonFormatter"}

"""Log records as JSON objects, one per line, for log collectors (MANYHANDS_LOG=json)."""

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime

_facts: ContextVar[dict[str, object]] = ContextVar("log_facts", default={})  # noqa: B039 (never changed in place)
LINE = {"format": "{asctime} {levelname:7} {name}: {message}", "style": "{"}
LONGEST = 20_000  # characters in a message or traceback


def add_log_facts(**facts: object) -> None:
    """Add facts to all later log records of this task or thread, and of those that it starts.

    An empty string removes a fact.
    """
    known = _facts.get()
    if any(known.get(name) != value for name, value in facts.items()):
        _facts.set({**known, **facts})


class JsonFormatter(logging.Formatter):
    """Formats records as JSON lines: `time` (UTC), `level`, `logger`, `message`, facts, and an error's `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:LONGEST],
            **{name: value for name, value in _facts.get().items() if value != ""},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-LONGEST:]
        return json.dumps(line, ensure_ascii=False, default=str)


def formatter(kind: str) -> dict[str, str]:
    """Return the formatter's configuration for Django: `text` for people, `json` for programs."""
    return {"()": "config.logs.JsonFormatter"} if kind == "json" else LINE

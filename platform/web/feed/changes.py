"""Changes between two pictures of a run: computed, applied, and encoded as messages. Pure functions.

`frontend/src/changes.ts` does the same. A change contains only what differs:
- `values`: fields by name, with their new values
- `points`: `{from, add}`; the curve keeps its first `from` points, and `add` follows them
- `lists`: by name `{set, order}`; new or different rows, and the order of keys if it has changed
"""

import json
from typing import Any

from web.run_picture.picture import Picture

Change = dict[str, Any]
Row = dict[str, Any]

POINTS = "points"
LISTS = ("bars", "leaderboard", "week", "day", "activity", "heldout")


def changes(before: Picture, after: Picture) -> Change:
    """Return the change from one picture to another. It is empty if they are equal."""
    parts = {
        "values": {name: value for name, value in after.items() if _is_value(name) and before[name] != value},
        POINTS: _points_changed(before[POINTS], after[POINTS]),
        "lists": {name: part for name in LISTS if (part := _rows_changed(before[name], after[name]))},
    }
    return {name: part for name, part in parts.items() if part}


def apply(picture: Picture, change: Change) -> Picture:
    """Return the picture with a change applied. The original is not modified."""
    after = {**picture, **change.get("values", {})}
    if POINTS in change:
        kept = picture[POINTS][: change[POINTS]["from"]]
        after[POINTS] = [*kept, *change[POINTS]["add"]]
    for name, part in change.get("lists", {}).items():
        after[name] = _rows_after(picture[name], part)
    return after


def _is_value(name: str) -> bool:
    return name != POINTS and name not in LISTS


def _points_changed(before: list[Any], after: list[Any]) -> Change:
    if before == after:
        return {}
    pairs = enumerate(zip(before, after, strict=False))
    same = next((place for place, (old, new) in pairs if old != new), min(len(before), len(after)))
    return {"from": same, "add": after[same:]}


def _rows_changed(before: list[Row], after: list[Row]) -> Change:
    known = {row["key"]: row for row in before}
    different = [row for row in after if known.get(row["key"]) != row]
    order = [row["key"] for row in after]
    part: Change = {"set": different} if different else {}
    return part if order == list(known) else {**part, "order": order}


def _rows_after(before: list[Row], part: Change) -> list[Row]:
    rows = {row["key"]: row for row in [*before, *part.get("set", [])]}
    return [rows[key] for key in part.get("order", [row["key"] for row in before])]


AGAIN = "again"  # the only message that a watcher sends: a request for the whole picture


def picture_message(seq: int, picture: Picture) -> str:
    """Return the whole picture as a message. The next change will have the number after `seq`."""
    return _text({"type": "picture", "seq": seq, "run": picture})


def change_message(seq: int, change: Change) -> str:
    return _text({"type": "change", "seq": seq, "change": change})


def _text(message: dict[str, object]) -> str:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

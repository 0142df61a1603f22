"""The two messages of the feed, as text. They are made once and go to every socket as they are."""

import json

from web.feed.changes import Change
from web.run_picture.picture import Picture

AGAIN = "again"  # all that a watcher may say: send me the whole picture


def picture_message(seq: int, picture: Picture) -> str:
    """The whole picture; the next change has the number behind `seq`."""
    return _text({"type": "picture", "seq": seq, "run": picture})


def change_message(seq: int, change: Change) -> str:
    """One change."""
    return _text({"type": "change", "seq": seq, "change": change})


def _text(message: dict[str, object]) -> str:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

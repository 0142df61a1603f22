"""The content of a run's live feed: the page's parts as HTML, and its chart as numbers.

The template that renders a part of the page also renders it for the feed, once for all readers of a language. The feed
leaves out what only one reader may see; pages request such parts (`web.pages.runs.run.own_parts`).

A message is a JSON object, read by `frontend/src/feed.ts`:
- `whole`: true for everything, false for what differs from the message before
- `seq`: the number of the message; those that follow a whole message count up by one
- `parts`: HTML by name of the part; the name's element of the page is `#part-NAME`
- `chart`: `unigram`, `heldout`, and the curve, which keeps its first `from` points and continues with `add`
- `standing`: a text; when it changes, the page requests its parts that are not in the feed

Between messages, the site sends `.` every few seconds.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.template.loader import render_to_string
from django.utils.translation import override

from runs.access import BESIDE
from runs.models import Run
from web.run_picture.loading import ENGLISH, seen_of
from web.run_picture.picture import Picture, board_facts, picture_of, standing_of

PARTS = ("head", "loss", "step", "leaderboard", "boards", "written", "samples", "activity", "averaging")
INDENTED = re.compile(r"\s*\n\s*")
BEAT = "."  # sent while nothing changes, because a page reconnects if its socket falls silent
AGAIN = "again"  # the only message that a watcher sends, requesting a whole message


class Live(NamedTuple):
    """A run's page at one moment, for all readers of one language."""

    picture: Picture
    parts: Mapping[str, str]
    chart: Mapping[str, Any]
    standing: str

    @property
    def step(self) -> int:
        return int(self.picture["step"])

    @property
    def visibility(self) -> str:
        return str(self.picture["visibility"])


def look(run_id: UUID, language: str = ENGLISH, before: Live | None = None) -> Live | None:
    """Return a run's live page, `before` itself if nothing has changed since, or None if the run is gone."""
    run = Run.objects.select_related(*BESIDE).filter(pk=run_id).first()
    return live_page(run, language, before) if run else None


def prepare_looks() -> None:
    """Load one run when the site starts, so that Django prepares its queries before the first reader arrives."""
    run = Run.objects.filter(state=Run.State.OPEN).order_by("-pk").first()
    if run is not None:
        look(run.pk)


def live_page(run: Run, language: str = ENGLISH, before: Live | None = None) -> Live:
    with override(language):
        seen = seen_of(run)
        picture = picture_of(seen)
        if before is not None and before.picture == picture:
            return before
        facts = {"run": run, "picture": seen.run, "live": picture, "in_feed": True, **board_facts(picture)}
        parts = {name: _rendered(name, facts) for name in PARTS}
    return Live(picture, parts, chart_of(picture), standing_of(picture))


def _rendered(part: str, facts: Mapping[str, Any]) -> str:
    """Return a part's HTML without indentation, which would account for a fifth of the bytes sent."""
    return INDENTED.sub("\n", render_to_string(f"web/runs/run_parts/{part}.html", dict(facts))).strip()


def chart_of(picture: Picture) -> dict[str, Any]:
    """Return the charts' numbers. A held-out loss consists of its step, Unix time in seconds, and nats per token."""
    heldout = [[point["step"], point["at"], point["loss"]] for point in picture["heldout"]]
    return {"points": picture["points"], "heldout": heldout, "unigram": picture["unigram"]}


def whole_message(seq: int, live: Live) -> str:
    """Return the whole page as a message numbered `seq`. The next message must have the next number."""
    return _text(seq, live.parts, _curve([], live.chart), live.standing, whole=True)


def change_message(seq: int, before: Live, after: Live) -> str:
    parts = {name: html for name, html in after.parts.items() if before.parts[name] != html}
    same = before.chart["unigram"] == after.chart["unigram"] and before.chart["heldout"] == after.chart["heldout"]
    is_same = same and before.chart["points"] == after.chart["points"]
    chart = None if is_same else _curve(before.chart["points"], after.chart)
    return _text(seq, parts, chart, after.standing, whole=False)


def _curve(known: Sequence[Any], chart: Mapping[str, Any]) -> dict[str, Any]:
    points = chart["points"]
    pairs = enumerate(zip(known, points, strict=False))
    same = next((place for place, (old, new) in pairs if old != new), min(len(known), len(points)))
    return {"from": same, "add": points[same:], "heldout": chart["heldout"], "unigram": chart["unigram"]}


def _text(seq: int, parts: Mapping[str, str], chart: Mapping[str, Any] | None, standing: str, *, whole: bool) -> str:
    message = {"whole": whole, "seq": seq, "parts": parts, "chart": chart, "standing": standing}
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

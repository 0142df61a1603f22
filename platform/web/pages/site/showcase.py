"""Facts for the front page: the busiest run, and models trained here.

All facts are about runs that everyone may see, so they are the same for every reader.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from accounts.selectors import names_with_page
from coordination.presence import OnlinePeer
from runs import selectors
from runs.ledger.standings import Given, given_in
from runs.models import Release, Run
from runs.releases import trials
from web import strokes
from web.run_picture import counts
from web.run_picture.curves import summary
from web.run_picture.loading import head_of
from web.run_picture.picture import status_of, tint_of
from web.run_picture.status_sentence import RUNNING, training_in
from web.words import in_bytes, loss_unit_of_page, tidied

MADE = 3  # models shown
CHIPS = 12  # people named
SHARES = 48  # most people whose strokes have their own tint; a stroke is about a hundredth of the work
LINE = 180  # most characters of a model's text
ENDS = re.compile(r"[.!?।…][”\"'’»)]*(?=\s|$)")

Online = Mapping[UUID, Sequence[OnlinePeer]]


class Line(NamedTuple):
    """The beginning of a text that a model wrote: the prompt, and the model's continuation of it."""

    prompt: str
    text: str


class Chip(NamedTuple):
    name: str
    tint: int
    has_page: bool


class Hero(NamedTuple):
    """The run at the top of the front page.

    `chips` has the people who are training or, if there are none, the largest contributors.
    """

    run: Run
    word: str
    sentence: str
    drawing: str
    line: Line | None
    line_step: int
    chips: list[Chip]
    more: int  # number of people not among the chips
    is_live: bool
    step: int
    target_steps: int

    @property
    def is_half_shown(self) -> bool:
        """True if the drawing ends at twice the current step, so that this step is in its middle."""
        return 2 * self.step < self.target_steps


class Made(NamedTuple):
    """A model that anyone can download."""

    run: Run
    line: Line | None
    drawing: str
    by: str
    size: str
    archive: str
    can_be_tried: bool


def showcase(open_runs: Sequence[Run], here: Online) -> dict[str, Any]:
    """Return the run for the top of the page and the latest models, in a handful of queries.

    `open_runs` has the newest run first.
    """
    run, releases = _busiest(open_runs, here), selectors.newest_releases(most=MADE + 1)
    shown = [*([run] if run else []), *(release.run for release in releases[:MADE])]
    given = given_in(shown, most=SHARES) if shown else {}
    return {
        "hero": _hero(run, given.get(run.pk)) if run else None,
        "made": [_made(release, given.get(release.run_id)) for release in releases[:MADE]],
        "more_made": len(releases) > MADE,
    }


def _busiest(open_runs: Sequence[Run], here: Online) -> Run | None:
    """Return the run that the most machines are training now or, if none is being trained, the newest one."""
    if not open_runs:
        return None
    busiest = max(open_runs, key=lambda run: len(training_in(run, here.get(run.pk, ()))))
    return Run.objects.select_related("head", "dataset", "release").filter(pk=busiest.pk).first()


def _hero(run: Run, given: Given | None) -> Hero:
    seen = head_of(run)
    picture, trainers, status = seen.run, training_in(run, seen.peers), status_of(seen)
    points = [point for point in picture.points if math.isfinite(point.loss)]
    unit = loss_unit_of_page(run.parsed_recipe)[0]
    newest = selectors.newest_written(run) if run.parsed_recipe.writes else None
    names = list(dict.fromkeys(peer.name for peer in trainers)) or list(given.by_name if given else ())
    with_page = names_with_page(set(names[:CHIPS]))
    return Hero(
        run=run,
        word=status.word,
        sentence=status.sentence,
        drawing=strokes.hero(
            [(point.step, point.loss) for point in points],
            picture.target_steps,
            parts_of(given),
            summary(points, None, unit=unit),
            state="running" if picture.step else "waiting",
        ),
        line=first_line(newest.written) if newest else None,
        line_step=newest.step if newest else 0,
        chips=[Chip(name, tint_of(name), name in with_page) for name in names[:CHIPS]],
        more=max(0, (len(names) if trainers else picture.people) - CHIPS),
        is_live=status.word == RUNNING,
        step=picture.step,
        target_steps=picture.target_steps,
    )


def _made(release: Any, given: Given | None) -> Made:
    """Return the facts to show about a release returned by `selectors.newest_releases`."""
    run, size = release.run, _archive_size(release)
    parameters = ngettext("%(number)s parameter", "%(number)s parameters", run.elements)
    sizes = [counts.with_number(parameters, run.elements) if run.elements else "", in_bytes(size) if size else ""]
    return Made(
        run=run,
        line=first_line(release.written or [["", release.sample]]),
        drawing=strokes.strip(parts_of(given), 0, _("Who trained it: each stroke is about one percent of the work")),
        by=_by(given.people if given else 0, run.opened_at, run.finished_at),
        size=", ".join(filter(None, sizes)),
        archive=release.archive,
        can_be_tried=trials.is_allowed(run),
    )


def _archive_size(release: Release) -> int:
    return next((int(file["size"]) for file in release.files if file["name"] == release.archive), 0)


def _by(people: int, begun: datetime | None, ended: datetime | None) -> str:
    """Return text such as “31 people in 5 h 20 min”."""
    if not (begun and ended and ended > begun):
        return counts.people(people)
    return _("%(people)s in %(duration)s") % {
        "people": counts.people(people),
        "duration": counts.duration((ended - begun).total_seconds()),
    }


def parts_of(given: Given | None) -> list[strokes.Part]:
    """Return the samples by tint. Everyone except the largest contributors shares the tint “rest”."""
    if given is None:
        return []
    by_tint: dict[int | str, float] = {}
    for name, samples in given.by_name.items():
        by_tint[tint_of(name)] = by_tint.get(tint_of(name), 0) + samples
    rest = given.samples - sum(given.by_name.values())
    return [*sorted(by_tint.items()), *([("rest", rest)] if rest > 0 else [])]


def first_line(written: Sequence[Sequence[str]]) -> Line | None:
    """Return the beginning of the first text that is not blank."""
    shown = [(prompt, tidied(text)) for prompt, text in written]
    return next((_cut(" ".join(prompt.split()), text) for prompt, text in shown if text.strip()), None)


def _cut(prompt: str, written: str) -> Line:
    """Return text on one line, cut after a sentence or, if none ends early enough, after a word."""
    text = (" " if written[0].isspace() else "") + " ".join(written.split())
    room = max(LINE - len(prompt), LINE // 3)
    if len(text) <= room:
        return Line(prompt, text)
    ends = [found.end() for found in ENDS.finditer(text[:room])]
    if ends and ends[-1] > room // 4:
        return Line(prompt, text[: ends[-1]])
    words = text[:room].rpartition(" ")[0].rstrip(",;: ")
    return Line(prompt, (words or text[:room]) + "…")

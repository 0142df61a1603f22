"""A run's activity, as a page and as RSS. Also the managers' page that lists what people did in their roles."""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.feedgenerator import Rss201rev2Feed
from django.utils.translation import gettext as _
from django.utils.translation import pgettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts.models import FORMER, Person
from accounts.selectors import names_with_page
from runs import selectors
from runs.access import access_managed_run, access_run
from runs.departure import NOBODY
from runs.models import ActivityLine, Run
from runs.timeline import AN_OPERATOR, STEP, activity_of, trail_of
from web import strokes
from web.http.parts import BEFORE, Older, rows_before
from web.http.requester import run_or_404
from web.pages.runs.milestones import KINDS, Milestone, milestones_of
from web.run_picture import card_sentences

PAGE, FEED = 100, 50  # most lines on a page and in the feed
MILESTONE, MILESTONES = "milestone", "milestones"  # the kind of the milestones' lines, and the filter that shows them
NAMES = {
    "": pgettext_lazy("activity", "All"),
    MILESTONES: pgettext_lazy("activity", "Milestones"),
    "steps": pgettext_lazy("activity", "Steps"),
    "people": pgettext_lazy("activity", "People"),
    "problems": pgettext_lazy("activity", "Problems"),
    "organizer": pgettext_lazy("activity", "Organizer"),
}
# Characters that XML does not allow
UNPRINTED = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
TRAIL_PAGE = 50  # in lines
STEP_OF = re.compile(r"step ([\d,]+):")  # how lines about steps begin


class Told(NamedTuple):
    """A line on the page. If it is about one or more steps, `steps` has their lines, latest first."""

    at: datetime
    kind: str
    text: str
    name: str = ""  # the person whose name begins the line; `text` has the rest
    names: tuple[str, ...] = ()  # the people named after the text
    more: str = ""
    steps: Sequence[ActivityLine] = ()


@require_safe
def activity_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a run's timeline, or only the kind of lines that `?show=` names. The full timeline includes milestones."""
    run = run_or_404(access_run, request, slug)
    asked = request.GET.get("show", "")
    show = asked if asked in NAMES else ""
    rows = activity_of(run).filter(kind__in=KINDS) if show == MILESTONES else activity_of(run, show)
    found = rows_before(rows, request, PAGE)
    reached = milestones_of(run)
    milestones = _on_page(reached, run, request, found) if show in ("", MILESTONES) else []
    told = _told(found.rows, milestones, folds=not show)
    facts = {
        "run": run,
        "lines": told,
        "with_page": names_with_page({name for line in told for name in (line.name, *line.names) if name}),
        "show": show,
        "names": [(name, title, name == show) for name, title in NAMES.items()],
        "older": found.older,
        "drawing": _drawing(run, {each.step for each in reached}),
        "progress": card_sentences.step_of(run, run.head.step, run.parsed_recipe.target_steps),
        "nothing": card_sentences.NOTHING,
    }
    return render(request, "web/runs/activity.html", facts)


def _on_page(reached: Sequence[Milestone], run: Run, request: HttpRequest, found: Older) -> list[Milestone]:
    """Return the milestones in the period that the shown part of the timeline covers.

    The oldest part also has all earlier milestones.
    """
    said = request.GET.get("before", "")
    newer = run.activity.filter(pk=int(said)).values_list("at", flat=True).first() if BEFORE.fullmatch(said) else None
    if not found.rows and said:
        return []
    return [
        each
        for each in reached
        if (newer is None or each.at < newer) and (not found.older or each.at >= found.rows[-1].at)
    ]


def _drawing(run: Run, steps: Collection[int]) -> str:
    """Draw the run so far, with the strokes of these steps marked. Return an empty string before the first step."""
    points, last = [(float(point.step), point.loss) for point in selectors.loss_points(run)], run.head.step
    if not points:
        return ""
    names: list[int | str] = ["rest"] * strokes.BAND
    for step in steps:
        names[min(strokes.BAND - 1, strokes.BAND * max(0, step - 1) // last)] = "marked"
    return strokes.band(names, points, _("The run so far; its milestones are marked"))


def _told(lines: Iterable[ActivityLine], milestones: Iterable[Milestone], *, folds: bool) -> list[Told]:
    """Merge lines and milestones, latest first. With `folds`, show consecutive steps of a day as one line."""
    told, waiting = list[Told](), list(milestones)
    for line in lines:
        while waiting and waiting[0].at >= line.at:
            told.append(_milestone(waiting.pop(0)))
        told.append(_line(line))
    told += [_milestone(each) for each in waiting]
    return _folded(told) if folds else told


def _milestone(each: Milestone) -> Told:
    return Told(each.at, MILESTONE, each.text, names=each.names, more=each.more)


def _line(line: ActivityLine) -> Told:
    kind = MILESTONE if line.kind in KINDS else line.kind
    name = next((name for name in line.names.split() if line.text.startswith(f"{name} ")), "")
    if name and line.kind in ("joined", "left"):
        return Told(line.at, kind, line.text[len(name) :], name=name)
    return Told(line.at, kind, line.text, steps=(line,) if line.kind == STEP else ())


def _folded(told: Sequence[Told]) -> list[Told]:
    found = list[Told]()
    for _key, group in groupby(enumerate(told), key=lambda each: each[1].at.date() if each[1].steps else each[0]):
        lines = [line for _place, line in group]
        steps = [step for line in lines for step in line.steps]
        found += [lines[0]._replace(text=_steps(steps), steps=steps)] if len(steps) > 1 else lines
    return found


def _steps(lines: Sequence[ActivityLine]) -> str:
    """Return text such as “Steps 380 to 412”."""
    last, first = (STEP_OF.match(line.text) for line in (lines[0], lines[-1]))
    if not first or not last:
        return _("Several steps")
    return _("Steps %(first)s to %(last)s") % {"first": first[1], "last": last[1]}


@require_safe
def activity_feed(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the run's activity as RSS, without the lines about individual steps."""
    run = run_or_404(access_run, request, slug)
    address = request.build_absolute_uri(f"/runs/{run.slug}/")
    title = _printed(run.title)
    feed = Rss201rev2Feed(title=f"{title} · Manyhands", link=address, description=f"Activity in {title}", language="en")
    for line in activity_of(run).exclude(kind=STEP).order_by("-pk")[:FEED]:
        feed.add_item(
            title=_printed(line.text),
            link=f"{address}activity/",
            description="",
            pubdate=line.at,
            unique_id=f"{run.id.hex}-{line.pk}",
            unique_id_is_permalink=False,
        )
    answer = HttpResponse(content_type="application/rss+xml; charset=utf-8", headers={"Cache-Control": "max-age=60"})
    feed.write(answer, "utf-8")
    return answer


def _printed(text: str) -> str:
    return UNPRINTED.sub("", text)


class Line(NamedTuple):
    """A line about something that a person did in their role.

    With `is_subject`, the sentence is `who` followed by `what`; otherwise, just `what`.
    """

    at: datetime
    who: str
    role: str
    what: str
    is_subject: bool


@never_cache
@login_required
@require_safe
def trail_page(request: HttpRequest, slug: str) -> HttpResponse:
    run = run_or_404(access_managed_run, request, slug)
    found = rows_before(trail_of(run), request, TRAIL_PAGE)
    lines = [line_of(each) for each in found.rows]
    facts = {"run": run, "lines": lines, "is_older": found.is_older, "older": found.older}
    return render(request, "web/runs/manage_parts/trail.html", facts)


def line_of(action: ActivityLine) -> Line:
    """Return the line about an action on the managers' page. Unlike the public timeline, it names operators."""
    who, role = _name_of(action.by), action.get_by_role_display()
    for name in (who, AN_OPERATOR):
        if action.text.lower().startswith(f"{name.lower()} "):
            return Line(action.at, who, role, action.text[len(name) + 1 :], is_subject=True)
    return Line(action.at, who, role, action.text, is_subject=False)


def _name_of(person: Person | None) -> str:
    if person is None:
        return ""
    return NOBODY if person.username.startswith(FORMER) else person.username

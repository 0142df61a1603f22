"""A run's activity by kind, as a page and as RSS. Also the trail of actions that people took in their roles."""

import re
from datetime import datetime
from typing import NamedTuple

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.feedgenerator import Rss201rev2Feed
from django.utils.translation import pgettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts.models import FORMER, Person
from runs.access import access_managed_run, access_run
from runs.departure import NOBODY
from runs.models import ActivityLine
from runs.timeline import AN_OPERATOR, GROUPS, STEP, activity_of, trail_of
from web.http.parts import rows_before
from web.http.requester import run_or_404
from web.run_picture import card_sentences

PAGE, FEED = 100, 50  # lines
NAMES = {
    "": pgettext_lazy("activity", "All"),
    "steps": pgettext_lazy("activity", "Steps"),
    "people": pgettext_lazy("activity", "People"),
    "problems": pgettext_lazy("activity", "Problems"),
    "organizer": pgettext_lazy("activity", "Organizer"),
}
# Characters that XML does not allow.
UNPRINTED = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
TRAIL_PAGE = 50  # lines


@require_safe
def activity_page(request: HttpRequest, slug: str) -> HttpResponse:
    run = run_or_404(access_run, request, slug)
    asked = request.GET.get("show", "")
    show = asked if asked in GROUPS else ""
    found = rows_before(activity_of(run, show), request, PAGE)
    facts = {
        "run": run,
        "lines": found.rows,
        "show": show,
        "names": [(name, title, name == show) for name, title in NAMES.items()],
        "older": found.older,
        "nothing": card_sentences.NOTHING,
    }
    return render(request, "web/runs/activity.html", facts)


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
    at: datetime
    who: str
    role: str
    what: str
    whom: str


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
    """Return an action as a line of the trail, without the name at its start, which has its own column."""
    who = _name_of(action.by)
    what = action.text
    for name in (who, AN_OPERATOR):
        if what.lower().startswith(f"{name.lower()} "):
            what = what[len(name) + 1 :]
    return Line(action.at, who, action.get_by_role_display(), what[:1].upper() + what[1:], _name_of(action.on))


def _name_of(person: Person | None) -> str:
    if person is None:
        return ""
    return NOBODY if person.username.startswith(FORMER) else person.username

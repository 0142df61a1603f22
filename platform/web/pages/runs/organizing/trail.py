"""What was done to a run by those who manage it. For them alone: it names people of whom nobody else is told."""

import re
from datetime import datetime
from typing import NamedTuple

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts.models import FORMER, Person
from runs.access import access_managed_run
from runs.departure import NOBODY
from runs.models import ActivityLine
from runs.timeline import AN_OPERATOR, trail_of
from web.http.requester import run_or_404

PAGE = 50  # lines
BEFORE = re.compile(r"[0-9]{1,18}")


class Line(NamedTuple):
    """One action, in words."""

    at: datetime
    who: str
    role: str
    what: str
    whom: str


@never_cache
@login_required
@require_safe
def trail_page(request: HttpRequest, slug: str) -> HttpResponse:
    """The newest actions, or those before one."""
    run, before = run_or_404(access_managed_run, request, slug), request.GET.get("before", "")
    lines = trail_of(run)
    is_older = bool(BEFORE.fullmatch(before))
    if is_older:
        lines = lines.filter(pk__lt=int(before))
    found = list(lines[: PAGE + 1])
    facts = {
        "run": run,
        "lines": [line_of(each) for each in found[:PAGE]],
        "is_older": is_older,
        "older": found[PAGE - 1].pk if len(found) > PAGE else None,
    }
    return render(request, "web/runs/manage_parts/trail.html", facts)


def line_of(action: ActivityLine) -> Line:
    """An action without the name it begins with, which stands beside it."""
    who = _name_of(action.by)
    what = action.text
    for name in (who, AN_OPERATOR):
        if what.lower().startswith(f"{name.lower()} "):
            what = what[len(name) + 1 :]
    return Line(action.at, who, action.get_by_role_display(), what[:1].upper() + what[1:], _name_of(action.on))


def _name_of(person: Person | None) -> str:
    """Empty for nobody; an account that was deleted has no name any more."""
    if person is None:
        return ""
    return NOBODY if person.username.startswith(FORMER) else person.username

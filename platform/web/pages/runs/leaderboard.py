"""The page with the full leaderboard of a run."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from accounts.days import day_of
from accounts.selectors import names_with_page
from runs.access import access_run, outranks, role_of
from runs.ledger import standings
from runs.ledger.standings import LeaderboardLine, MachineLine, Period, PeriodLine, TeamLine, team_board
from runs.lifecycle import membership
from runs.models import Run
from web.http.requester import run_or_404
from web.pages.runs.manage import just_removed
from web.run_picture import card_sentences
from web.run_picture.own import Own, own_words
from web.run_picture.picture import tint_of

Row = LeaderboardLine | MachineLine | PeriodLine | TeamLine
PAGE = 100  # rows
NO_TEAM = gettext_lazy("No team has any samples yet.")
BOARDS: dict[str, Callable[..., Sequence[Row]]] = {
    "people": standings.leaderboard,
    "machines": standings.machine_board,
    "teams": team_board,
}
MOST_PAGES = 1_000_000


@require_safe
def standings_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Rank people, machines or teams, or the people of a period. A reader who is not listed gets an extra line."""
    run = run_or_404(access_run, request, slug)
    of, period = _of(request), _period(request)
    page = _page_number(request)
    rows = _rows(run, of, period, offset=(page - 1) * PAGE)
    totals = standings.totals(run)
    facts = {
        "run": run,
        "of": of,
        **_removal(request, run, of, {row.name for row in rows[:PAGE]}),
        "period": "" if period == Period.ALL else period,
        "note": card_sentences.PERIOD_NOTES.get(period, ""),
        "choices": _choices(of, period),
        "asked": f"of={of}&period={period}",
        "rows": [
            {
                **row._asdict(),
                "tint": tint_of(row.name),
                "share": card_sentences.percent(row.samples / max(totals.samples, 1)),
            }
            for row in rows[:PAGE]
        ],
        "with_page": names_with_page({row.name for row in rows[:PAGE]}),
        "given": card_sentences.given(totals.people, totals.machines, totals.samples),
        "nobody": NO_TEAM if of == "teams" else card_sentences.NOBODY_IN.get(period, card_sentences.NOBODY),
        "you": own_words(Own(run, request.user), [row.name for row in rows[:PAGE]]) if period == Period.ALL else "",
        "before": page - 1,
        "after": page + 1 if len(rows) > PAGE else 0,
    }
    return render(request, "web/runs/leaderboard.html", facts)


def _removal(request: HttpRequest, run: Run, of: str, names: Collection[str]) -> dict[str, Any]:
    """Return whether the reader may remove people here, which names are protected, and who was just removed."""
    role = role_of(run, request.user)
    if of != "people" or run.state == Run.State.FINISHED or role is None:
        return {"removes": False}
    held = run.roles.exclude(accepted_at=None).values_list("person__username", "role")
    kept = {name for name, other in held if not outranks(role, Run.Role(other))}
    kept |= {each.person.username for each in membership.removed_from(run).filter(person__username__in=names)}
    return {
        "removes": True,
        "kept": kept | {run.organizer.username, request.user.get_username()},
        "just_removed": just_removed(request, run),
        "back": "leaderboard",
    }


def _rows(run: Run, of: str, period: Period, *, offset: int) -> Sequence[Row]:
    if period != Period.ALL:
        return standings.period_board(run, period, timezone.now(), offset=offset, limit=PAGE + 1)
    days = {"today": day_of(timezone.now())} if of == "people" else {}
    return BOARDS[of](run, offset=offset, limit=PAGE + 1, **days)


def _of(request: HttpRequest) -> str:
    said = request.GET.get("of", "")
    return said if said in BOARDS else "people"


def _period(request: HttpRequest) -> Period:
    said = request.GET.get("period", "")
    is_known = said in set(Period) and _of(request) == "people"
    return Period(said) if is_known else Period.ALL


def _choices(of: str, period: Period) -> list[tuple[str, str, bool]]:
    named = [(each, str(name)) for each, name in card_sentences.PERIOD_NAMES.items()]
    people = [(f"?of=people&period={each}", name, each == period and of == "people") for each, name in named]
    return [*people, ("?of=machines", _("Machines"), of == "machines"), ("?of=teams", _("Teams"), of == "teams")]


def _page_number(request: HttpRequest) -> int:
    said = request.GET.get("page", "")
    return min(MOST_PAGES, max(1, int(said))) if said.isascii() and said.isdigit() and len(said) < 9 else 1

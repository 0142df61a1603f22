"""The page with a run's full leaderboard."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_safe

from accounts.days import day_of
from accounts.models import Machine, TeamMember
from accounts.selectors import names_with_page
from accounts.teams import team_of
from coordination.presence import OnlinePeer
from runs.access import access_run, outranks, person_of, role_of
from runs.ledger import standings
from runs.ledger.standings import LeaderboardLine, MachineLine, Period, PeriodLine, TeamLine, team_board
from runs.lifecycle import membership
from runs.models import Run
from runs.states import LIVE
from web import strokes
from web.http.requester import run_or_404
from web.pages.runs.manage import just_removed
from web.run_picture import card_sentences, counts
from web.run_picture.loading import head_of
from web.run_picture.own import Own, own_words
from web.run_picture.picture import TALLEST, status_of, tint_of
from web.run_picture.status_sentence import STUCK, training_in

Row = LeaderboardLine | MachineLine | PeriodLine | TeamLine
PAGE = 100  # in rows
NO_TEAM = gettext_lazy("No team has any samples yet.")
BOARDS: dict[str, Callable[..., Sequence[Row]]] = {
    "people": standings.leaderboard,
    "machines": standings.machine_board,
    "teams": team_board,
}
MOST_PAGES = 1_000_000


@require_safe
def standings_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a ranking of people, machines or teams, or of people in a period.

    Unless a period is chosen, readers who are not listed on the page see their place in an extra line.
    """
    run = run_or_404(access_run, request, slug)
    of, period = _of(request), _period(request)
    page = _page_number(request)
    found = _rows(run, of, period, offset=(page - 1) * PAGE)
    rows, seen = found[:PAGE], head_of(run)
    totals = seen.run
    trainers = training_in(run, seen.peers) if status_of(seen).word != STUCK else []
    is_whole = period == Period.ALL  # a period has no shares of all samples: the weekly board weights them by age
    facts = {
        "run": run,
        "is_live": run.state in LIVE,
        "of": of,
        **_removal(request, run, of, {row.name for row in rows}),
        "period": "" if period == Period.ALL else period,
        "note": card_sentences.PERIOD_NOTES.get(period, ""),
        "choices": _choices(of, period),
        "asked": f"of={of}&period={period}",
        "shares": _shares(rows, totals.samples if is_whole else 0) if page == 1 else "",
        "others": is_whole and totals.samples > sum(row.samples for row in rows),
        **_lines(request, run, rows, totals.samples, trainers),
        "with_page": names_with_page({row.name for row in rows}),
        "given": card_sentences.given(totals.people, totals.machines, totals.samples) if totals.samples else "",
        "training": _training(trainers),
        "nobody": NO_TEAM if of == "teams" else card_sentences.NOBODY_IN.get(period) or card_sentences.nobody(run),
        "you": own_words(Own(run, request.user), [row.name for row in rows]) if period == Period.ALL else "",
        "before": page - 1,
        "after": page + 1 if len(found) > PAGE else 0,
    }
    return render(request, "web/runs/leaderboard.html", facts)


def _lines(
    request: HttpRequest, run: Run, rows: Sequence[Row], whole: int, trainers: Sequence[OnlinePeer]
) -> dict[str, Any]:
    """Return the rows for the template. A person's row also has the heights of the bars that show their recent work."""
    here, own = _here(rows, trainers), _own(request, rows)
    names = [row.name for row in rows if isinstance(row, LeaderboardLine | PeriodLine)]
    recent = standings.recent(run, names) if names else standings.Recent(0, {})
    tallest = max((part for parts in recent.given.values() for part in parts), default=0)
    lines = [
        {
            **row._asdict(),
            "key": _key(row),
            "is_own": row.name == own,
            "now": _key(row) in here,
            "share": card_sentences.percent(row.samples / max(whole, 1)),
            "confirmed": _confirmed(row),
            "recent": sum(recent.given.get(row.name, ())),
            "heights": [-(-TALLEST * part // tallest) if part else 0 for part in recent.given.get(row.name, ())],
        }
        for row in rows
    ]
    return {"rows": lines, "recent_steps": recent.steps, "checks": any(line["confirmed"] for line in lines)}


def _confirmed(row: Row) -> str:
    """Return the percentage of a person's samples that other people's machines have checked, or "" if it is 0."""
    checked = row.checked if isinstance(row, LeaderboardLine) else 0
    return card_sentences.percent(checked / row.samples) if checked else ""


def _key(row: Row) -> str:
    """Return a key that distinguishes a row from all others on its board."""
    return f"{row.name}/{row.machine}" if isinstance(row, MachineLine) else row.name


def _here(rows: Sequence[Row], trainers: Sequence[OnlinePeer]) -> set[str]:
    """Return the keys (see `_key`) of the people, machines or teams that are training now, in at most one query."""
    people = {peer.name for peer in trainers}
    if not rows or not people or not isinstance(rows[0], MachineLine | TeamLine):
        return people
    if isinstance(rows[0], TeamLine):
        members = TeamMember.objects.filter(left_day=None, person__username__in=people)
        return set(members.values_list("team__name", flat=True))
    machines = Machine.objects.filter(pk__in=[UUID(peer.peer) for peer in trainers])
    return {f"{name}/{machine}" for name, machine in machines.values_list("person__username", "name")}


def _own(request: HttpRequest, rows: Sequence[Row]) -> str:
    """Return the reader's name or, on the team board, the name of their team. Return "" if they have none."""
    person = person_of(request.user)
    if person is None:
        return ""
    if not rows or not isinstance(rows[0], TeamLine):
        return person.username
    team = team_of(person)
    return team.name if team else ""


def _training(trainers: Sequence[OnlinePeer]) -> str:
    """Return a sentence such as “12 people are training now.”, or "" if no one is training."""
    number = len({peer.name for peer in trainers})
    message = ngettext("%(people)s is training now.", "%(people)s are training now.", number)
    return message % {"people": counts.people(number)} if number else ""


def _shares(rows: Sequence[Row], whole: int) -> str:
    """Draw the samples as strokes of one percent each, in the order of the rows.

    If `whole` exceeds the rows' samples, the rest comes last, in grey.
    """
    by_name: Counter[str] = Counter()
    for row in rows:
        by_name[row.name] += row.samples
    if not by_name.total():
        return ""
    parts: list[strokes.Part] = [(tint_of(name), samples) for name, samples in by_name.items()]
    rest = max(0, whole - by_name.total())
    return strokes.shares([*parts, ("rest", rest)], _("Shares of the samples, a stroke for each percent"))


def _removal(request: HttpRequest, run: Run, of: str, names: Collection[str]) -> dict[str, Any]:
    """Return facts about removing people from the run.

    These say whether the reader may do so, which names they may not remove, and which member was just removed.
    """
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

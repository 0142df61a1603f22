"""What teams gave: each day's samples of whoever was in them on that day."""

from typing import NamedTuple

from django.db.models import Count, F, Q, QuerySet, Sum

from accounts.models import Team
from runs.models import DailyTotal, Run

IN_IT = Q(person__in_teams__joined_day__lte=F("day")) & (
    Q(person__in_teams__left_day=None) | Q(person__in_teams__left_day__gt=F("day"))
)


class TeamLine(NamedTuple):
    """A team's row in a run."""

    rank: int
    name: str
    slug: str
    samples: int
    people: int  # who gave something


def team_board(run: Run, *, offset: int = 0, limit: int = 10) -> list[TeamLine]:
    """Teams by samples."""
    sums = DailyTotal.objects.filter(IN_IT, run=run).order_by().values("person__in_teams__team")
    ranked = sums.annotate(given=Sum("samples"), people=Count("person", distinct=True))
    rows = ranked.order_by("-given", "person__in_teams__team__name").values_list(
        "person__in_teams__team__name", "person__in_teams__team__slug", "given", "people"
    )
    return [TeamLine(offset + place, *row) for place, row in enumerate(rows[offset : offset + limit], 1)]


def given_by_member(team: Team, runs: QuerySet[Run]) -> dict[str, int]:
    """Samples for the team by name, of whoever was ever in it."""
    rows = DailyTotal.objects.filter(IN_IT, run__in=runs, person__in_teams__team=team).order_by()
    return dict(rows.values("person__username").annotate(given=Sum("samples")).values_list("person__username", "given"))


def given_by_run(team: Team, runs: QuerySet[Run]) -> list[tuple[str, str, int]]:
    """Title, slug and the team's samples of each run, most first."""
    rows = DailyTotal.objects.filter(IN_IT, run__in=runs, person__in_teams__team=team).order_by()
    sums = rows.values("run__title", "run__slug").annotate(given=Sum("samples")).order_by("-given", "run__slug")
    return list(sums.values_list("run__title", "run__slug", "given"))

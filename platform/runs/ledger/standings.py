"""Leaderboards of people, machines and teams, read from totals that each commit updates (`runs.ledger.totals`).

A long run's ledger has millions of rows, and pages refresh every second. Queries therefore read only the latest ledger
rows, for charts of recent work.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import (
    BigIntegerField,
    Count,
    F,
    FloatField,
    Func,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    Window,
)
from django.db.models.functions import Cast, Coalesce, Power, Rank, RowNumber

from accounts.days import day_of
from accounts.models import Person, Team
from runs.models import IN_MODEL, DailyTotal, LedgerEntry, MachineTotal, Run

# Half-life of samples on the weekly board, and the oldest day counted, whose samples weigh under 0.1 %.
HALF_LIFE_DAYS, OLDEST_DAYS = 7.0, 70
BOARD = ("rank", "person__username", "given", "read", "made", "machines", "confirmed")
MOVED = ("rank_before", "given_before")  # rank and samples at the start of the day
STRETCHES = 24  # stretches of the latest steps
BARS, BAR_STEPS = 12, 5  # the chart of recent work: most bars, and steps per bar
IN_IT = Q(person__in_teams__joined_day__lte=F("day")) & (
    Q(person__in_teams__left_day=None) | Q(person__in_teams__left_day__gt=F("day"))
)


class LeaderboardLine(NamedTuple):
    """A person's row on the leaderboard. People with equally many samples share a rank.

    `checked` is how many of the samples other people's machines have confirmed. `moved` is the number of ranks gained
    since midnight (UTC), or 0 for someone new.
    """

    rank: int
    name: str
    samples: int
    tokens: int
    rounds: int
    machines: int
    checked: int = 0
    moved: int = 0


class MachineLine(NamedTuple):
    rank: int
    name: str
    machine: str
    samples: int
    tokens: int
    rounds: int


class Period(StrEnum):
    DAY = "day"  # the current UTC day
    WEEK = "week"  # weights halve every seven days
    ALL = "all"


class PeriodLine(NamedTuple):
    """A person's row on the daily or weekly leaderboard. On the weekly one, `samples` are weighted by age."""

    rank: int
    name: str
    samples: int


class Totals(NamedTuple):
    people: int
    machines: int
    samples: int
    tokens: int


class Given(NamedTuple):
    """Contributions to a run. `by_name` has the samples of the largest contributors, largest first."""

    people: int
    samples: int
    by_name: dict[str, int]


class Place(NamedTuple):
    """A person's rank. `short` is how many samples they need to reach `next_rank`, or None at the top."""

    rank: int
    next_rank: int
    short: int | None


class Recent(NamedTuple):
    """Samples in the last `steps` steps. `given` has each person's sums over equal stretches of steps, oldest first."""

    steps: int
    given: dict[str, list[int]]


class Shares(NamedTuple):
    """Samples contributed in the last `steps` steps: their sum, and the largest contributors by name.

    `stretches` has the samples by name in up to `STRETCHES` equal stretches of these steps, oldest first.
    """

    steps: int
    samples: int
    given: dict[str, int]
    stretches: list[dict[str, int]]


def totals(run: Run) -> Totals:
    return totals_of(run.totals.all())


def totals_of(rows: QuerySet[MachineTotal]) -> Totals:
    found = rows.aggregate(
        people=Count("person", distinct=True),
        machines=Count("pk"),
        samples_given=Sum("samples", default=0),
        tokens_read=Sum("tokens", default=0),
    )
    return Totals(found["people"], found["machines"], found["samples_given"], found["tokens_read"])


def given_in(runs: Collection[Run], *, most: int) -> dict[UUID, Given]:
    """Return each run's total contributions and its top `most` contributors, using one query."""
    rows = MachineTotal.objects.filter(run__in=runs).order_by().values("run", "person").annotate(given=Sum("samples"))
    run = [F("run")]
    ranked = rows.annotate(
        place=Window(RowNumber(), partition_by=run, order_by=[F("given").desc(), F("person")]),
        people_of_all=Window(Count("*"), partition_by=run),
        given_of_all=Window(_SumOf(F("given")), partition_by=run),
    )
    names = ("run", "people_of_all", "given_of_all", "person__username", "given")
    found: dict[UUID, Given] = {}
    for key, people, whole, name, given in ranked.filter(place__lte=most).order_by("place").values_list(*names):
        found.setdefault(key, Given(people, int(whole), {})).by_name[name] = given
    return found


def leaderboard(run: Run, *, offset: int = 0, limit: int = 10, today: int | None = None) -> list[LeaderboardLine]:
    """Return people ordered by samples; in a tie, the earliest contributor is first. Without `today`, `moved` is 0."""
    names = BOARD if today is None else (*BOARD, *MOVED)
    return [_line(row) for row in _board(run, today).values_list(*names)[offset : offset + limit]]


def board_and_totals(run: Run, *, limit: int = 10, today: int | None = None) -> tuple[list[LeaderboardLine], Totals]:
    """Return the top rows of the leaderboard and the sums over all of its rows, using one query."""
    everybody = {
        "people_of_all": Window(Count("*")),
        **{f"{name}_of_all": Window(_SumOf(F(name))) for name in ("machines", "given", "read")},
    }
    names = BOARD if today is None else (*BOARD, *MOVED)
    rows = list(_board(run, today).annotate(**everybody).values_list(*names, *everybody)[:limit])
    of_all = Totals(*(int(value) for value in rows[0][len(names) :])) if rows else Totals(0, 0, 0, 0)
    return [_line(row[: len(names)]) for row in rows], of_all


def period_board(run: Run, period: Period, now: datetime, *, offset: int = 0, limit: int = 10) -> list[PeriodLine]:
    """Return the daily or weekly leaderboard. On the weekly one, the weight of samples halves every seven days."""
    today = day_of(now)
    if period == Period.DAY:
        rows, weighed = run.daily.filter(day=today), F("samples") * Value(1.0)
    else:
        age = Cast(Value(today) - F("day"), FloatField()) / Cast(Value(HALF_LIFE_DAYS), FloatField())
        weight = Power(Cast(Value(0.5), FloatField()), age)  # PostgreSQL's numeric type is slow
        rows, weighed = run.daily.filter(day__gt=today - OLDEST_DAYS), F("samples") * weight
    sums = rows.order_by().values("person__username").annotate(weight=Sum(weighed, output_field=FloatField()))
    lines = sums.order_by("-weight", "person__username").values_list("person__username", "weight")
    shown = [(name, round(weight)) for name, weight in lines[offset : offset + limit]]
    return [PeriodLine(offset + place, name, samples) for place, (name, samples) in enumerate(shown, 1)]


def machine_board(run: Run, *, offset: int = 0, limit: int = 10) -> list[MachineLine]:
    """Return machines ordered by samples. In a tie, the earliest contributor comes first."""
    ranked = run.totals.annotate(rank=Window(Rank(), order_by=F("samples").desc())).order_by("-samples", "pk")
    rows = ranked.values_list("rank", "person__username", "machine__name", "samples", "tokens", "rounds")
    return [MachineLine(*row) for row in rows[offset : offset + limit]]


def place_of(run: Run, person: Person) -> Place | None:
    own = run.totals.filter(person=person).aggregate(given=Sum("samples"))["given"]
    return place_with(run, own) if own is not None else None


def place_with(run: Run, samples: int) -> Place:
    """Return the rank that a person with this many samples has, and the distance to the next rank."""
    ranked = _people(run).annotate(rank=Window(Rank(), order_by=F("given").desc()), people=Window(Count("*")))
    above = ranked.filter(given__gt=samples).order_by("given").values_list("people", "rank", "given").first()
    if above is None:
        return Place(1, 1, None)
    people, next_rank, given = above
    return Place(people + 1, next_rank, given - samples)


def recent(run: Run, names: Collection[str]) -> Recent:
    """Return the named people's samples in equal stretches of about the last sixty steps."""
    last = run.head.step
    stretch = max(1, -(-min(last, BARS * BAR_STEPS) // BARS))
    newest = (last - 1) // stretch
    oldest = max(0, newest - BARS + 1)
    given = {name: [0] * (newest - oldest + 1) for name in names}
    people = Person.objects.filter(username__in=names)
    recent = run.ledger.filter(person__in=people, step__gt=oldest * stretch, step__lte=last).order_by()
    if run.head.index != last:  # after a rollback, undone steps and new ones may share numbers
        recent = recent.filter(entry__is_undone=False)
    recent = recent.exclude(entry__in=run.log.filter(index__lt=0))  # and so may lost ones
    parts = recent.annotate(part=(F("step") - 1) / stretch).values_list("person__username", "part")
    for name, part, samples in parts.annotate(given=Sum("samples")):
        given[name][part - oldest] = samples
    return Recent(last - oldest * stretch, given)


def shares(run: Run, *, steps: int, limit: int) -> Shares:
    """Return the samples contributed to the last `steps` steps, by person (largest first) and by stretch."""
    last, given = run.head.step, Counter[str]()
    steps = min(steps, last)
    length = max(1, -(-steps // STRETCHES))
    stretches: list[dict[str, int]] = [{} for _ in range(-(-steps // length))]
    entries = run.log.filter(IN_MODEL, step__gt=last - steps, step__lte=last).order_by().values("pk")
    # Uses the index by entry.
    rows = LedgerEntry.objects.filter(entry__in=entries).order_by().annotate(ago=(last - F("step")) / length)
    for ago, name, samples in rows.values_list("ago", "person__username").annotate(given=Sum("samples")):
        given[name] += samples
        stretches[-1 - ago][name] = samples
    largest = sorted(given.items(), key=lambda each: (-each[1], each[0]))
    return Shares(steps, given.total(), dict(largest[:limit]), stretches)


def _board(run: Run, today: int | None = None) -> Any:
    """Return one row per person in leaderboard order, with the columns `BOARD`, and `MOVED` if `today` is given."""
    ranked = _people(run).annotate(rank=Window(Rank(), order_by=F("given").desc()), machines=Count("pk"))
    sums = ranked.annotate(read=Sum("tokens"), made=Sum("person_rounds"), confirmed=Sum("checked"), first=Min("pk"))
    if today is not None:
        own = run.daily.filter(person=OuterRef("person"), day=today).order_by().values("samples")
        before = sums.annotate(
            given_before=F("given") - Coalesce(Subquery(own), Value(0), output_field=BigIntegerField())
        )
        sums = before.annotate(rank_before=Window(Rank(), order_by=F("given_before").desc()))
    return sums.order_by("-given", "first")


def _line(row: Sequence[Any]) -> LeaderboardLine:
    line, (rank_before, given_before) = LeaderboardLine(*row[: len(BOARD)]), row[len(BOARD) :] or (0, 0)
    return line._replace(moved=rank_before - line.rank) if given_before > 0 else line


class _SumOf(Func):
    """A window function that adds up the sums of grouped rows, which Django's own `Sum` refuses to do."""

    function = "SUM"
    window_compatible = True
    output_field = BigIntegerField()


def _people(run: Run) -> Any:
    """Return one row per person, with samples as `given`. The type is Any, since annotated columns are untyped."""
    return run.totals.order_by().values("person").annotate(given=Sum("samples"))


# Teams


class TeamLine(NamedTuple):
    rank: int
    name: str
    slug: str
    samples: int
    people: int  # people who have contributed


def team_board(run: Run, *, offset: int = 0, limit: int = 10) -> list[TeamLine]:
    sums = DailyTotal.objects.filter(IN_IT, run=run).order_by().values("person__in_teams__team")
    ranked = sums.annotate(given=Sum("samples"), people=Count("person", distinct=True))
    rows = ranked.order_by("-given", "person__in_teams__team__name").values_list(
        "person__in_teams__team__name", "person__in_teams__team__slug", "given", "people"
    )
    return [TeamLine(offset + place, *row) for place, row in enumerate(rows[offset : offset + limit], 1)]


def given_by_member(team: Team, runs: QuerySet[Run]) -> dict[str, int]:
    """Return the samples contributed for the team, by name of current and past members."""
    rows = DailyTotal.objects.filter(IN_IT, run__in=runs, person__in_teams__team=team).order_by()
    return dict(rows.values("person__username").annotate(given=Sum("samples")).values_list("person__username", "given"))


def given_by_run(team: Team, runs: QuerySet[Run]) -> list[tuple[str, str, int]]:
    """Return each run's title, slug and samples from the team, most samples first."""
    rows = DailyTotal.objects.filter(IN_IT, run__in=runs, person__in_teams__team=team).order_by()
    sums = rows.values("run__title", "run__slug").annotate(given=Sum("samples")).order_by("-given", "run__slug")
    return list(sums.values_list("run__title", "run__slug", "given"))


def given_by_day(team: Team, runs: QuerySet[Run]) -> dict[int, int]:
    """Return the samples contributed for the team, by day since 1970."""
    rows = DailyTotal.objects.filter(IN_IT, run__in=runs, person__in_teams__team=team).order_by()
    return dict(rows.values("day").annotate(given=Sum("samples")).values_list("day", "given"))

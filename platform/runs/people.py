"""A person's milestones, and their contributions to the runs that a viewer may see: by run, by day and by step."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet, Sum
from django.utils.translation import gettext as _

from accounts.days import day_of
from accounts.models import Person
from runs.access import Viewer, listed_runs, visible_runs
from runs.models import AveragedTotal, DailyTotal, LedgerEntry, MachineTotal, Run

SAMPLES = (1, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
DAYS = (7, 30, 100, 365)  # number of days with a contribution
GIGABYTES = (1, 100, 1_000, 10_000)  # gigabytes averaged for others
FINISHED = (1, 3, 10)  # number of finished runs contributed to


# Milestones, as pure functions


class Milestone(NamedTuple):
    """A milestone. `day` is when it was reached, in days since 1970, or None if that is unknown."""

    name: str
    day: int | None = None


class Reached(NamedTuple):
    """The highest milestone reached of each kind, and text about the next one, empty after the last milestone."""

    milestones: list[Milestone]
    next_one: str


def reached(by_day: Mapping[int, int], *, bytes_averaged: int, finished: Sequence[int]) -> Reached:
    """Return the milestones reached.

    `by_day` maps each day (a UTC day number, counted from 1970-01-01) to the samples contributed that day. `finished`
    has the days on which runs with the person's contributions finished, in order.
    """
    days = sorted(by_day)
    found, so_far, passed = list[Milestone](), 0, dict[int, int]()
    for day in days:
        so_far += by_day[day]
        passed |= {goal: day for goal in SAMPLES if goal <= so_far and goal not in passed}
    if passed:
        top = max(passed)
        found.append(
            Milestone(_("First sample") if top == 1 else _("%(number)s samples") % {"number": f"{top:,}"}, passed[top])
        )
    if active := [goal for goal in DAYS if goal <= len(days)]:
        found.append(Milestone(_("%(number)s days") % {"number": active[-1]}, days[active[-1] - 1]))
    if done := [goal for goal in FINISHED if goal <= len(finished)]:
        name = _("A finished run") if done[-1] == 1 else _("%(number)s finished runs") % {"number": done[-1]}
        found.append(Milestone(name, finished[done[-1] - 1]))
    if sent := [goal for goal in GIGABYTES if goal * 10**9 <= bytes_averaged]:
        found.append(Milestone(_("%(number)s GB averaged") % {"number": f"{sent[-1]:,}"}))
    ahead = next((goal for goal in SAMPLES if goal > so_far), None)
    if not ahead or not so_far:
        return Reached(found, "")
    return Reached(
        found, _("%(goal)s samples (%(missing)s to go)") % {"missing": f"{ahead - so_far:,}", "goal": f"{ahead:,}"}
    )


class Given(NamedTuple):
    """A person's contribution to one run. `part` is the fraction of all of the run's samples.

    `checked`: how many of the samples other people's machines have confirmed.
    """

    run: Run
    samples: int
    steps: int
    bytes_averaged: int
    part: float
    checked: int = 0

    @property
    def provisional(self) -> int:
        """Samples that no check has covered yet. A members-only run has no checks."""
        return 0 if self.run.members_only else self.samples - self.checked


class Contributions(NamedTuple):
    """All of a person's contributions.

    `by_day` maps each day (a UTC day number, counted from 1970-01-01) to the samples contributed that day.
    """

    runs: list[Given]
    samples: int
    bytes_averaged: int
    by_day: dict[int, int]
    reached: Reached


def contributions(person: Person, viewer: Viewer) -> Contributions:
    """Return the person's contributions to the runs that the viewer may see, most samples first."""
    seen = runs_shown(person, viewer)
    sums = MachineTotal.objects.filter(person=person, run__in=seen).order_by().values("run")
    sums_of = {"given": Sum("samples"), "made": Sum("person_rounds"), "confirmed": Sum("checked")}
    rows = {row["run"]: row for row in sums.annotate(**sums_of)}
    averaged = AveragedTotal.objects.filter(person=person, run__in=seen).order_by().values("run")
    sent = dict(averaged.annotate(given=Sum("bytes_averaged")).values_list("run", "given"))
    of_all = MachineTotal.objects.filter(run__in=list(rows)).order_by().values("run")
    whole = dict(of_all.annotate(given=Sum("samples")).values_list("run", "given"))
    found = [_given(run, rows.get(run.pk), sent.get(run.pk, 0), whole) for run in seen.filter(pk__in={*rows, *sent})]
    days = DailyTotal.objects.filter(person=person, run__in=seen).order_by("day").values("day")
    by_day = dict(days.annotate(given=Sum("samples")).values_list("day", "given"))
    bytes_averaged = sum(sent.values())
    finished = sorted(day_of(each.run.finished_at) for each in found if each.run.finished_at)
    return Contributions(
        sorted(found, key=lambda each: (-each.samples, -each.bytes_averaged, each.run.slug)),
        sum(each.samples for each in found),
        bytes_averaged,
        by_day,
        reached(by_day, bytes_averaged=bytes_averaged, finished=finished),
    )


def given_to(person: Person, run: Run) -> Given:
    """Return the person's contribution to one run, not counting bytes averaged by their machines."""
    sums = run.totals.filter(person=person).aggregate(
        given=Sum("samples", default=0),
        made=Sum("person_rounds", default=0),
        confirmed=Sum("checked", default=0),
    )
    whole = run.totals.aggregate(given=Sum("samples", default=0))["given"]
    return _given(run, sums, 0, {run.pk: whole})


def runs_shown(person: Person, viewer: Viewer) -> QuerySet[Run]:
    """Return the runs on a person's page: all visible ones for the person themselves, only listed ones for others."""
    return visible_runs(viewer) if viewer == person else listed_runs(viewer)


def ledger_of(person: Person, run: Run) -> QuerySet[LedgerEntry]:
    return run.ledger.filter(person=person).select_related("entry", "machine").order_by("-pk")


def _given(run: Run, row: Mapping[str, Any] | None, sent: int, whole: Mapping[UUID, int]) -> Given:
    if row is None:
        return Given(run, 0, 0, sent, 0.0)
    part = row["given"] / whole[run.pk] if whole[run.pk] else 0.0
    return Given(run, row["given"], row["made"], sent, part, row["confirmed"])

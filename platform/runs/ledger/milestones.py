"""What somebody has reached: samples, days and bytes, and what comes next. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from django.utils.translation import gettext as _

SAMPLES = (1, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
DAYS = (7, 30, 100, 365)  # on which something was given
GIGABYTES = (1, 100, 1_000, 10_000)  # averaged for others
FINISHED = (1, 3, 10)  # runs that were finished with something of theirs


class Milestone(NamedTuple):
    """One that was reached. `day` since 1970, where it is known."""

    name: str
    day: int | None = None


class Reached(NamedTuple):
    """The highest of each kind that was reached, and what is missing to the next one of samples; empty at the end."""

    milestones: list[Milestone]
    next_one: str


def reached(by_day: Mapping[int, int], *, bytes_averaged: int, finished: int) -> Reached:
    """`by_day`: samples by the day (UTC, since 1970) on which they were given."""
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
    if done := [goal for goal in FINISHED if goal <= finished]:
        found.append(
            Milestone(_("A finished run") if done[-1] == 1 else _("%(number)s finished runs") % {"number": done[-1]})
        )
    if sent := [goal for goal in GIGABYTES if goal * 10**9 <= bytes_averaged]:
        found.append(Milestone(_("%(number)s GB averaged") % {"number": f"{sent[-1]:,}"}))
    ahead = next((goal for goal in SAMPLES if goal > so_far), None)
    if not ahead or not so_far:
        return Reached(found, "")
    return Reached(
        found, _("%(missing)s to %(goal)s samples") % {"missing": f"{ahead - so_far:,}", "goal": f"{ahead:,}"}
    )

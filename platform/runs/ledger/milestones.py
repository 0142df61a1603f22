"""What somebody has reached: samples, days and bytes, and what comes next. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

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
        found.append(Milestone("First sample" if top == 1 else f"{top:,} samples", passed[top]))
    if active := [goal for goal in DAYS if goal <= len(days)]:
        found.append(Milestone(f"{active[-1]} days", days[active[-1] - 1]))
    if done := [goal for goal in FINISHED if goal <= finished]:
        found.append(Milestone("A finished run" if done[-1] == 1 else f"{done[-1]} finished runs"))
    if sent := [goal for goal in GIGABYTES if goal * 10**9 <= bytes_averaged]:
        found.append(Milestone(f"{sent[-1]:,} GB averaged"))
    ahead = next((goal for goal in SAMPLES if goal > so_far), None)
    return Reached(found, f"{ahead - so_far:,} to {ahead:,} samples" if ahead and so_far else "")

"""Half a year of days as squares, darker where more was given. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from django.utils.formats import date_format
from django.utils.translation import gettext as _

from accounts.days import date_of
from web.run_picture import counts

WEEKS = 26
LEVELS = 4


class Square(NamedTuple):
    """A day. `column` and `row`: its week, and its weekday from Monday; `level` 0 (nothing) to 4."""

    column: int
    row: int
    level: int
    words: str


def squares(by_day: Mapping[int, int], today: int) -> list[Square]:
    """The days of the last weeks, oldest first. `by_day`: samples by the day since 1970."""
    first = first_day(today)
    most = max((by_day.get(day, 0) for day in range(first, today + 1)), default=0)
    return [
        Square((day - first) // 7, (day - first) % 7, _level(by_day.get(day, 0), most), _words(by_day.get(day, 0), day))
        for day in range(first, today + 1)
    ]


def first_day(today: int) -> int:
    """The Monday with which the drawing begins."""
    return today - date_of(today).weekday() - 7 * (WEEKS - 1)


def summary(by_day: Mapping[int, int], today: int) -> str:
    """“Active on 31 of the last 180 days”, which are those of the drawing."""
    first = first_day(today)
    active = sum(1 for day, samples in by_day.items() if samples and first <= day <= today)
    return _("Active on %(active)s of the last %(days)s days (UTC).") % {"active": active, "days": today - first + 1}


def _level(samples: int, most: int) -> int:
    return -(-LEVELS * samples // most) if samples else 0


def _words(samples: int, day: int) -> str:
    return _("%(date)s: %(samples)s") % {
        "date": date_format(date_of(day), "j F Y"),
        "samples": counts.samples(samples),
    }

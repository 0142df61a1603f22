"""UTC days as integers, counted from 1 January 1970, so that every database stores them in the same way."""

from datetime import date, datetime, timedelta

DAY_S = 86_400
EPOCH = date(1970, 1, 1)


def day_of(at: datetime) -> int:
    return int(at.timestamp() // DAY_S)


def date_of(day: int) -> date:
    return EPOCH + timedelta(days=day)

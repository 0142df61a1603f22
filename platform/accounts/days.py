"""Days of UTC as numbers since 1970. Numbers mean the same in every database."""

from datetime import date, datetime, timedelta

DAY_S = 86_400
EPOCH = date(1970, 1, 1)


def day_of(at: datetime) -> int:
    return int(at.timestamp() // DAY_S)


def date_of(day: int) -> date:
    return EPOCH + timedelta(days=day)

"""Rows that time has made useless: sessions that ran out, and codes that nobody remembers any more."""

from datetime import datetime

from django.contrib.sessions.models import Session

from accounts.devices import forget_dead


def clear_expired(now: datetime) -> None:
    """Delete them. Whoever has such a session is logged out already."""
    Session.objects.filter(expire_date__lt=now).delete()
    forget_dead(now)

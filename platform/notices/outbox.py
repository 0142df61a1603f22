"""The outbox: notices stored as rows in the same transaction as the event. Other modules send them."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q, QuerySet
from django.utils import timezone

from accounts.days import day_of
from jobs import queue
from jobs.queue import Kind
from notices.models import LONGEST_NAME, LONGEST_TITLE, Choice, Event, Notice, Way

MOST_A_DAY = 50  # daily maximum per person, event and channel; any more are dropped
KEPT = timedelta(days=7)  # notices are deleted after this time, sent or not
FRESH = timedelta(hours=1)  # browsers show no older notices
MOST_SHOWN = 10  # most notices shown by a browser at once
AT_ONCE = 500  # rows per SQL statement


def note(
    event: Event,
    people: Collection[int] | QuerySet[Any, Any],
    *,
    about: str,
    title: str = "",
    machine: str = "",
    path: str,
    after: timedelta = timedelta(0),
    now: datetime | None = None,
) -> int:
    """Store a notice for each person and each channel on which the person chose to hear of the event.

    Each channel notifies a person of the same subject at most once a day. The returned number also counts such repeats,
    which are not stored. `after` delays sending; until then, a notice can be withdrawn.
    """
    now = now or timezone.now()
    day = day_of(now)
    usable = (
        Q(way=Way.BROWSER)
        | Q(way=Way.EMAIL, person__mailbox__confirmed_at__isnull=False)
        | Q(way=Way.WEBHOOK, person__webhook__isnull=False, person__webhook__off_at=None)
    )
    wanted = Choice.objects.filter(usable, event=event, person__in=people, person__is_active=True)
    chosen = list(wanted.values_list("person", "way"))
    if not chosen:
        return 0
    told = Notice.objects.filter(event=event, day=day, person__in={person for person, _ in chosen})
    counts = dict(_counted(told))
    rows = [
        _row(event, person, Way(way), about=about, title=title, machine=machine, path=path, now=now, after=after)
        for person, way in chosen
        if counts.get((person, way), 0) < MOST_A_DAY
    ]
    Notice.objects.bulk_create(rows, batch_size=AT_ONCE, ignore_conflicts=True)
    if any(row.way != Way.BROWSER for row in rows):
        queue.put(Kind.DELIVER_NOTICES, after_s=after.total_seconds())
    return len(rows)


def _counted(told: QuerySet[Notice]) -> list[tuple[tuple[int, str], int]]:
    sums = told.order_by().values_list("person", "way").annotate(number=Count("pk"))
    return [((person, way), number) for person, way, number in sums]


def note_directly(event: Event, person_id: int, way: Way, *, about: str, title: str = "", path: str) -> None:
    """Store a notice to one person through one channel, whatever the person has chosen."""
    row = _row(event, person_id, way, about=about, title=title, path=path, now=timezone.now())
    Notice.objects.bulk_create([row], ignore_conflicts=True)
    if way != Way.BROWSER:
        queue.put(Kind.DELIVER_NOTICES)


def _row(
    event: Event,
    person_id: int,
    way: Way,
    *,
    about: str,
    title: str,
    machine: str = "",
    path: str,
    now: datetime,
    after: timedelta = timedelta(0),
) -> Notice:
    return Notice(
        person_id=person_id,
        event=event,
        way=way,
        about=about,
        day=day_of(now),
        title=title[:LONGEST_TITLE],
        machine=machine[:LONGEST_NAME],
        path=path,
        at=now,
        due_at=now + after,
    )


def withdraw(event: Event, abouts: Collection[str], *, now: datetime | None = None) -> None:
    """Delete notices about these subjects that no longer apply, unless they are due already."""
    later = Notice.objects.filter(state=Notice.State.WAITING, tries=0, due_at__gt=now or timezone.now())
    later.filter(event=event, about__in=abouts).delete()


def withdraw_all(run: str) -> None:
    """Delete all notices about a finished run and its machines that are not due yet."""
    later = Notice.objects.filter(state=Notice.State.WAITING, tries=0, due_at__gt=timezone.now())
    later.filter(event__in=(Event.NEEDED, Event.STOPPED, Event.REQUEST), about__startswith=run).delete()


def due(now: datetime) -> QuerySet[Notice]:
    return _waiting().filter(due_at__lte=now).order_by("due_at", "pk")


def next_due() -> datetime | None:
    """Return the time at which the next notice must be sent, or None if none is waiting."""
    first: datetime | None = _waiting().aggregate(first=Min("due_at"))["first"]
    return first


def _waiting() -> QuerySet[Notice]:
    """Return unsent notices for e-mail or webhooks; open pages fetch the rest themselves."""
    return Notice.objects.filter(state=Notice.State.WAITING).exclude(way=Way.BROWSER)


def for_browser(person_id: int, now: datetime) -> list[Notice]:
    """Return the notices to show on the person's open pages, oldest first. Each page remembers which it has shown."""
    fresh = Notice.objects.filter(person=person_id, way=Way.BROWSER, due_at__lte=now, due_at__gt=now - FRESH)
    return list(fresh.order_by("-due_at", "-pk")[:MOST_SHOWN])[::-1]


def forget_old(now: datetime) -> None:
    Notice.objects.filter(at__lt=now - KEPT).delete()

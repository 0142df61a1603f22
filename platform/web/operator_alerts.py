"""Alerts to operators when a check of the site fails or passes again, on the channels that each operator has chosen.

A job runs the checks every minute. If the worker is dead, no alert is sent, so a monitor should query `/readyz` too.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from accounts.models import Person
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import Later, Outcome, does
from notices import outbox
from notices.models import Event, Trouble
from web import health
from web.health import State

EVERY_S = 60.0
SELDOM, SELDOM_S = ("clock", "mail"), 600.0  # these query the Hub and the mail server, which might object to more
LASTS = timedelta(seconds=EVERY_S)  # operators are told of a check once it has failed this long
REST = timedelta(hours=1)  # between alerts about the same check


@does(Kind.WATCH_CHECKS)
def watch_checks(_: Job) -> Outcome:
    """Run all checks and tell operators what has changed. Repeat in a minute."""
    for is_seldom, kept_s in ((False, EVERY_S / 2), (True, SELDOM_S)):
        checks = [check for check in health.CHECKS if (check.name in SELDOM) is is_seldom]
        note_changes(health.look(checks, kept_s=kept_s, patience_s=health.LIMIT_S), timezone.now())
    return Later(EVERY_S)


@transaction.atomic
def note_changes(found: Iterable[health.Checked], now: datetime) -> None:
    """Tell operators about checks that have failed for `LASTS`, and later about their recovery.

    If a check fails again within `REST` of the last alert, the next alert waits until `REST` is over. It is sent only
    if the check still fails.
    """
    known = {row.check_name: row for row in Trouble.objects.select_for_update()}
    for name, title, finding in found:
        trouble = known.get(name) or Trouble(check_name=name)
        if finding.state == State.PENDING or (finding.state != State.LOOK and trouble.since is None):
            continue
        is_failing, was_told = finding.state == State.LOOK, trouble.is_told
        trouble.since = (trouble.since or now) if is_failing else None
        if trouble.since is not None and not was_told:
            is_rested = trouble.told_at is None or now - trouble.told_at >= REST
            trouble.is_told = now - trouble.since >= LASTS and is_rested
            trouble.told_at = now if trouble.is_told else trouble.told_at
        elif trouble.since is None:
            trouble.is_told = False
        trouble.save()
        if trouble.is_told != was_told:
            _tell(name, str(title), finding.said if is_failing else "", now)


def _tell(name: str, title: str, text: str, now: datetime) -> None:
    operators = Person.objects.filter(is_superuser=True)
    about = f"{name} {now:%H:%M} {bool(text)}"  # notices go out once a day per subject, and this may recur
    path = reverse("web:checklist")
    outbox.note(Event.TROUBLE, operators, about=about, title=text, machine=title, path=path, now=now)

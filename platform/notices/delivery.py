"""Delivery of due notices by e-mail and webhook, at least once.

One job sends all of the site's notices, and marks each as sent afterwards. If the worker dies before that, or the
receiver's response is lost, the site sends the notice again. Receivers can recognize a repeat by its id.

The wait before a retry equals the time for which sending has been failing, but at least a minute and at most half an
hour.
After a day of failures, the site abandons an e-mail, or switches a webhook off and tells its owner.
"""

import logging
import smtplib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from accounts.keys import Unreadable, unseal
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import Later, Outcome, does
from notices import addresses, mail, outbox, posting
from notices.models import LONGEST_PROBLEM, Choice, Event, Notice, Way, Webhook
from notices.services import settings_path
from notices.words import Facts, payload, words_of

log = logging.getLogger(__name__)

BATCH = 32  # rows taken together
AT_ONCE = 8  # rows sent at the same time
BUDGET_S = 60.0  # a call stops after this time and leaves the rest to the next
FIRST_RETRY, LONGEST_RETRY = timedelta(minutes=1), timedelta(minutes=30)
GIVE_UP = timedelta(days=1)
NEW = 2 * LONGEST_RETRY  # a failure this long after the last attempt starts a new series of failures


class Undelivered(Exception):
    """Raised if a notice did not arrive. The message says why. `retry_after` is the wait requested by the receiver."""

    def __init__(self, reason: str, retry_after: timedelta = timedelta(0)) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


Send = Callable[[], None]


@does(Kind.DELIVER_NOTICES)
def deliver(_: Job) -> Outcome:
    """Send all due notices. Queue the job again for the time when the next notice is due."""
    deliver_due()
    first = outbox.next_due()
    return Later(max((first - timezone.now()).total_seconds(), 0.0)) if first is not None else None


def deliver_due(clock: Callable[[], datetime] = timezone.now) -> int:
    """Send due notices, for about `BUDGET_S` at most. Return how many arrived."""
    arrived, end = 0, time.monotonic() + BUDGET_S
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="notices") as threads:
        while time.monotonic() < end and (batch := take(clock())):
            waiting = [(notice, threads.submit(send)) for notice, send in prepared(batch, clock())]
            for notice, future in waiting:
                try:
                    future.result()
                except Undelivered as problem:
                    failed(notice, problem, clock())
                except Exception as error:
                    log.exception("notice %s", notice.pk)
                    failed(notice, Undelivered(f"Something went wrong: {type(error).__name__}."), clock())
                else:
                    sent(notice, clock())
                    arrived += 1
    return arrived


def take(now: datetime) -> list[Notice]:
    """Return the next due notices, and count an attempt for each.

    There is at most one notice per webhook, so that each webhook's notices arrive in order.
    """
    taken: list[Notice] = []
    hooks: set[int] = set()
    for notice in outbox.due(now).select_related("person__mailbox", "person__webhook")[:BATCH]:
        if notice.way == Way.WEBHOOK:
            if notice.person_id in hooks:
                continue
            hooks.add(notice.person_id)
        taken.append(notice)
    Notice.objects.filter(pk__in=[notice.pk for notice in taken]).update(tries=F("tries") + 1)
    return taken


def prepared(taken: list[Notice], now: datetime) -> list[tuple[Notice, Send]]:
    """Pair each notice with a function that sends it without the database. Mark notices no longer wanted as failed."""
    found = [(notice, sender(notice, now)) for notice in taken]
    for notice, send in found:
        if send is None:
            _end(notice, "Not wanted any more.")
    return [(notice, send) for notice, send in found if send is not None]


def sender(notice: Notice, now: datetime) -> Send | None:
    """Return a function that sends the notice, or None if the person has left or no longer uses that channel."""
    if not notice.person.is_active:
        return None
    address = settings.PUBLIC_URL + notice.path
    if notice.way == Way.EMAIL:
        return _mailer(notice, address)
    hook: Webhook | None = getattr(notice.person, "webhook", None)
    return None if hook is None or hook.off_at else partial(_post, notice, hook, address, now)


def _mailer(notice: Notice, address: str) -> Send | None:
    mailbox = getattr(notice.person, "mailbox", None)
    if mailbox is None or not mail.is_offered():
        return None
    if mailbox.confirmed_at is None and notice.event != Event.CONFIRM:
        return None
    words = words_of(notice.event, title=notice.title, machine=notice.machine)
    return partial(_mail, partial(mail.message, notice, words, mailbox, address))


def _mail(message: Callable[[], EmailMessage]) -> None:
    try:
        message().send()
    except smtplib.SMTPException as error:
        raise Undelivered(f"The mail server refused it: {type(error).__name__}.") from error
    except OSError as error:
        raise Undelivered("The mail server cannot be reached.") from error


def _post(notice: Notice, hook: Webhook, address: str, now: datetime) -> None:
    facts = Facts(notice.pk, notice.event, notice.title, notice.machine, address, notice.at)
    words = words_of(notice.event, title=notice.title, machine=notice.machine)
    try:
        target, secret = addresses.parse(unseal(hook.sealed_address)), unseal(hook.sealed_secret)
        body, headers = payload(hook.service, words, facts, secret=secret, now=now)
        answer = posting.post(target, body, headers)
    except Unreadable as error:
        raise Undelivered("Its address cannot be read: the secret of this site has changed. Save it again.") from error
    except (addresses.Refused, posting.Unreached) as error:
        raise Undelivered(str(error)) from error
    if not answer.is_good:
        more = " Redirects are not followed." if 300 <= answer.status < 400 else ""
        raise Undelivered(f"It answered {answer.status}.{more}", timedelta(seconds=answer.retry_after_s))


# Outcomes


@transaction.atomic
def sent(notice: Notice, now: datetime) -> None:
    facts = {"state": Notice.State.SENT, "sent_at": now, "problem": ""}
    Notice.objects.filter(pk=notice.pk).update(**facts)
    if notice.way == Way.WEBHOOK:
        Webhook.objects.filter(person=notice.person_id).update(tried_at=now, failing_since=None, problem="")


@transaction.atomic
def failed(notice: Notice, problem: Undelivered, now: datetime) -> None:
    reason = str(problem)[:LONGEST_PROBLEM]
    since = _hook_failing_since(notice, reason, now) if notice.way == Way.WEBHOOK else notice.at
    if since is None:
        return
    if now - since >= GIVE_UP:
        _end(notice, reason)
        if notice.way == Way.WEBHOOK:
            _switch_off(notice.person_id, reason, now)
        return
    again = now + max(retry_in(now - since), min(problem.retry_after, LONGEST_RETRY))
    Notice.objects.filter(pk=notice.pk).update(due_at=again, problem=reason)
    if notice.way == Way.WEBHOOK:
        waiting = Notice.objects.filter(person=notice.person_id, way=Way.WEBHOOK, state=Notice.State.WAITING)
        waiting.filter(due_at__lt=again).update(due_at=again)


def retry_in(failing: timedelta) -> timedelta:
    """Return the wait before the next attempt: the time `failing`, within `FIRST_RETRY` and `LONGEST_RETRY`."""
    return min(max(failing, FIRST_RETRY), LONGEST_RETRY)


def _hook_failing_since(notice: Notice, reason: str, now: datetime) -> datetime | None:
    """Record a webhook's failure. Return when its failures began, or None if its owner has since replaced it."""
    hook = Webhook.objects.select_for_update().filter(person=notice.person_id).first()
    tried = getattr(notice.person, "webhook", None)
    if hook is None or tried is None or hook.saved_at != tried.saved_at:
        return None
    if hook.failing_since is None or hook.tried_at is None or now - hook.tried_at > NEW:
        hook.failing_since = now
    hook.tried_at, hook.problem = now, reason
    hook.save(update_fields=["failing_since", "tried_at", "problem"])
    return hook.failing_since


def _end(notice: Notice, reason: str) -> None:
    Notice.objects.filter(pk=notice.pk).update(state=Notice.State.FAILED, problem=reason)


def _switch_off(person_id: int, reason: str, now: datetime) -> None:
    """Switch the webhook off, and tell its owner through any other channels in use."""
    Webhook.objects.filter(person=person_id).update(off_at=now)
    waiting = Notice.objects.filter(person=person_id, way=Way.WEBHOOK, state=Notice.State.WAITING)
    waiting.update(state=Notice.State.FAILED, problem=reason)
    used = Choice.objects.filter(person=person_id).exclude(way=Way.WEBHOOK).values_list("way", flat=True).distinct()
    for way in list(used):
        outbox.note_directly(
            Event.SWITCHED_OFF, person_id, Way(way), about="webhook", title=reason, path=settings_path()
        )

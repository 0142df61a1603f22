"""Visitors' trials of a released model. A child process continues one prompt at a time, oldest first."""

import secrets
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac

from accounts.models import Person
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.errors import Fault
from runs import storage
from runs.models import Release, Run, Trial
from runs.processes import faults_to, run_child
from runs.timeline import add_action

LONGEST_PROMPT = 500  # characters
MOST_TOKENS, LONGEST_TEXT = 64, 2000  # most tokens written, and most characters of them stored
# Seconds for writing, and for the whole child process, which loads torch and the model
WRITING_S, TIMEOUT_S = 20.0, 90.0
MOST_WAITING = 20  # most trials waiting across the whole site
KEPT = timedelta(minutes=30)
SMALL = 50_000_000  # parameters; visitors may try smaller models by default
# Memory of a child process in bytes, plus bytes per parameter of the model
BYTES_BESIDE, BYTES_EACH = 2_000_000_000, 12
MOST_SEED = 2**31

IS_ASKING = "One text at a time: your last prompt, or one from your address, is still waiting."
IS_FULL = "The queue is full: no more than {most} texts can wait at a time. Try again in a few minutes."
WAS_FASTER = "Somebody was faster. Try again."


class NotNow(Exception):
    """Raised if a trial cannot be accepted at the moment. The message says why."""


def is_allowed(run: Run) -> bool:
    """Return True if visitors may try the model, given its size, the site's limit and the organizer's choice."""
    if not may_be_allowed(run):
        return False
    return size_of(run) <= SMALL if run.can_be_tried is None else run.can_be_tried


def may_be_allowed(run: Run) -> bool:
    """Return True if the organizer may allow trials: the model writes text, and is within the site's size limit."""
    return run.parsed_recipe.writes and size_of(run) <= settings.TRY_PARAMETERS


def size_of(run: Run) -> int:
    """Return the model's approximate number of parameters, including frozen ones."""
    recipe = run.parsed_recipe
    return recipe.parameters() + recipe.fixed_parameters()


@transaction.atomic
def set_allowed(*, run: Run, allowed: bool, by: Person | None = None) -> None:
    Run.objects.filter(pk=run.pk).update(can_be_tried=allowed)
    action = "let visitors try the model." if allowed else "let nobody try the model any more."
    add_action(run=run, kind="trial", action=action, by=by, is_internal=True)


def release_to_try(run: Run) -> Release | None:
    return Release.objects.filter(run=run, state=Release.State.READY).first() if is_allowed(run) else None


def asker_digest(who: str) -> str:
    """Return a keyed digest of a person or an address, to be stored with a trial in place of either."""
    return salted_hmac("runs.trials", who, algorithm="sha256").hexdigest()


def waiting() -> QuerySet[Trial]:
    return Trial.objects.filter(slot__isnull=False).order_by("asked_at", "pk")


def before(trial: Trial) -> int:
    return waiting().filter(asked_at__lt=trial.asked_at).count()


@transaction.atomic
def ask(*, run: Run, asker: str, prompt: str) -> Trial:
    """Queue a prompt for the run's model.

    Raises NotNow if the asker's last prompt is still waiting, if the queue is full, or if another visitor just took
    the same place in it.
    """
    forget_old(timezone.now())
    taken = dict(waiting().values_list("slot", "asker"))
    if asker in taken.values():
        raise NotNow(IS_ASKING)
    free = [slot for slot in range(MOST_WAITING) if slot not in taken]
    if not free:
        raise NotNow(IS_FULL.format(most=MOST_WAITING))
    try:
        with transaction.atomic():  # a concurrent insert violates a constraint
            trial = Trial.objects.create(run=run, asker=asker, prompt=prompt, slot=secrets.choice(free))
    except IntegrityError as error:
        raise NotNow(WAS_FASTER) from error
    queue.put(Kind.WRITE_TRIAL, trial.pk)
    return trial


def forget_old(now: datetime) -> None:
    Trial.objects.filter(asked_at__lt=now - KEPT).delete()


def write(trial_id: UUID) -> None:
    """Have the model write the text for a trial. Do nothing if the trial is no longer waiting."""
    trial = waiting().select_related("run").filter(pk=trial_id).first()
    if trial is None:
        return
    with faults_to(lambda fault: _end(trial, fault=str(fault)), "E327"):
        release = release_to_try(trial.run)
        if release is None:
            _end(trial, fault=str(Fault.of("E315", state="no longer one whose model can be tried")))
            return
        made = run_child(
            [
                "write",
                str(storage.local(storage.root() / release.folder)),
                f"--tokens={MOST_TOKENS}",
                f"--seconds={WRITING_S}",
                f"--seed={secrets.randbelow(MOST_SEED)}",
                f"--memory={BYTES_BESIDE + BYTES_EACH * size_of(trial.run)}",
            ],
            timeout_s=TIMEOUT_S,
            secret=trial.prompt,
            more={"OMP_NUM_THREADS": "1"},
        )
        text = made["text"].replace("\0", "\ufffd")[:LONGEST_TEXT]  # PostgreSQL cannot store NUL
        _end(trial, text=text, is_whole=made["is_whole"])


def _end(trial: Trial, **values: str | bool) -> None:
    Trial.objects.filter(pk=trial.pk).update(slot=None, **values)

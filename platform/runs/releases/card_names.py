"""Who agreed to be named on the card of a run's model. Everybody else is counted there, and not named."""

from django.db import transaction

from accounts.models import Person
from runs import queue
from runs.models import NamedVolunteer, Release, Run
from runs.queue import TaskName

REMAKE_S = 20  # so that whoever changes their mind at once causes no work


@transaction.atomic
def set_named(*, run: Run, person: Person, agreed: bool) -> None:
    """Agree, or take it back: a card that would name them is made anew. Saying it twice does it once."""
    if agreed:
        NamedVolunteer.objects.get_or_create(run=run, person=person)
    else:
        NamedVolunteer.objects.filter(run=run, person=person).delete()
    if has_given(run, person) and Release.objects.filter(run=run, state=Release.State.READY).exists():
        queue.enqueue_on_commit(TaskName.REMAKE_RELEASE, run.pk, after_s=REMAKE_S)


def has_given(run: Run, person: Person) -> bool:
    """Whether there is something of theirs in the run."""
    return run.totals.filter(person=person).exists()

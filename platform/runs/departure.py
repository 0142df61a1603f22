"""Somebody leaves for good: what is theirs alone goes, what they gave stays counted under no name."""

import re
from uuid import UUID

from django.db import transaction

from accounts import deactivation
from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs.lifecycle.drafts import delete_draft
from runs.models import ActivityLine, HubAccount, Member, NamedVolunteer, Run, Upload
from runs.releases.card_names import set_named

NOBODY = "a former volunteer"  # in place of their name, in what happened
SETTLED = (Run.State.DRAFT, Run.State.FINISHED)


@transaction.atomic
def delete_account(*, person: Person) -> None:
    """Delete an account, its drafts, its place on cards and its name in timelines. Raises Problem E329.

    Whoever was removed from a run stays removed: rows that say so name nobody.
    """
    _require_not_needed(person)
    name, runs = person.username, _runs_of(person)
    for draft in person.runs.filter(state=Run.State.DRAFT):
        delete_draft(run=draft)
    for named in NamedVolunteer.objects.filter(person=person).select_related("run"):
        set_named(run=named.run, person=person, agreed=False)
    HubAccount.objects.filter(person=person).delete()
    Upload.objects.filter(person=person).delete()
    Member.objects.filter(person=person, removed_at=None).delete()
    deactivation.forget_person(person=person)
    for line in ActivityLine.objects.filter(run__in=runs, text__contains=name).iterator():
        ActivityLine.objects.filter(pk=line.pk).update(text=without_name(line.text, name)[:300])


def without_name(text: str, name: str) -> str:
    """The text with another word for somebody; not where the name is a part of a longer word."""
    whole = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)")
    replaced = whole.sub(NOBODY, text)
    return replaced[:1].upper() + replaced[1:] if replaced != text else text


def _require_not_needed(person: Person) -> None:
    going = person.runs.exclude(state__in=SETTLED).count()
    if going:
        runs = "a run that is" if going == 1 else f"{going} runs that are"
        raise Problem.of("E329", reason=f"you organize {runs} not finished")
    operators = Person.objects.filter(is_superuser=True, is_active=True)
    if person.is_superuser and not operators.exclude(pk=person.pk).exists():
        raise Problem.of("E329", reason="you are the only operator of this site")


def _runs_of(person: Person) -> list[UUID]:
    """Where their name may stand: runs they organized, gave something to, or were let into."""
    found: set[UUID] = set(person.runs.values_list("pk", flat=True))
    for related in (person.totals, person.averaged, person.memberships):
        found.update(related.values_list("run", flat=True))
    return list(found)

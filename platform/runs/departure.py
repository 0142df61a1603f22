"""Deletion of an account. Data that belong only to the person are deleted; contributions stay, without a name."""

import re
from functools import partial

from django.db import transaction
from django.db.models import Q

from accounts import deactivation
from accounts.models import Person
from notices import services as notices
from peer_agent.protocol.errors import Problem
from runs import queue, quotas
from runs.datasets.uploads import forget_upload
from runs.lifecycle import roles
from runs.lifecycle.drafts import delete_draft
from runs.models import ActivityLine, HubAccount, JoinRequest, Member, NamedVolunteer, Release, Run
from runs.queue import TaskName

NOBODY = "a former volunteer"  # replaces the name on timelines
SETTLED = (Run.State.DRAFT, Run.State.FINISHED)
# Verbs that follow a person's name on timelines (runs.timeline, peer_agent.protocol.coordinator). Elsewhere, the same
# letters may be a plain word.
ACTIONS = (
    "accepted|added|announced|brought|changed|chose|created|declined|extended|gave|invited|is|joined|left|let|mixes|"
    "organizes|paused|published|removed|reported|resumed|returned|revoked|set|took|turned|wants|withdrew"
)
PLACES = (  # text before the name, and text after it
    ("^", rf" (?:{ACTIONS})\b| \("),
    (r"\bof ", r"'s samples|$| is| joined| left"),
    (r" (?:added|removed|let) ", r"\.$| back in\.$| as (?:co-organizer|moderator)\.$"),
    (r" (?:accepted|declined) ", r"'s request to join\.$"),
    (r" (?:invited|withdrew) ", r" to be a (?:co-organizer|moderator)\.$|'s invitation as "),
)


@transaction.atomic
def delete_account(*, person: Person) -> str:
    """Delete an account, its drafts, and its name on cards and timelines. Return the name. Raises Problem E329.

    A run with co-organizers, even a draft, passes to the longest-standing one. Removals from runs stay in force,
    because their rows contain no name. Hosts may write the name for a few more seconds, so call `forget_lines` again
    afterwards.
    """
    quotas.held(person)
    for heir in roles.successors(person):
        roles.hand_over(to=heir)
    _require_not_needed(person)
    name = person.username
    for held in roles.roles_of(person):
        roles.give_up(offered=held, why=" with their account")
    for draft in person.runs.filter(state=Run.State.DRAFT):
        delete_draft(run=draft)
    _remake_cards(person)
    NamedVolunteer.objects.filter(person=person).delete()
    HubAccount.objects.filter(person=person).delete()
    for upload in person.uploads.all():
        transaction.on_commit(partial(forget_upload, upload))
    Member.objects.filter(person=person, removed_at=None).delete()
    JoinRequest.objects.filter(person=person).delete()
    notices.forget_person(person=person)
    deactivation.forget_person(person=person)
    forget_lines(name)
    return name


def forget_lines(name: str) -> None:
    for line in ActivityLine.objects.filter(text__contains=name).iterator():
        if (text := without_name(line.text, name)) != line.text:
            ActivityLine.objects.filter(pk=line.pk).update(text=text[:300])


def without_name(text: str, name: str) -> str:
    """Replace a person's name in a line of a timeline with “a former volunteer”."""
    replaced = text
    for before, after in PLACES:
        replaced = re.sub(f"({before}){re.escape(name)}(?={after})", rf"\1{NOBODY}", replaced)
    return replaced[:1].upper() + replaced[1:] if replaced != text else text


def _require_not_needed(person: Person) -> None:
    going = person.runs.exclude(state__in=SETTLED).count()
    if going:
        runs = "a run that is" if going == 1 else f"{going} runs that are"
        raise Problem.of("E329", reason=f"you organize {runs} not finished")
    operators = Person.objects.select_for_update().filter(is_superuser=True, is_active=True)
    if person.is_superuser and set(operators.values_list("pk", flat=True)) <= {person.pk}:
        raise Problem.of("E329", reason="you are the only operator of this site")


def _remake_cards(person: Person) -> None:
    """Remake model cards that name the person, as a volunteer or as the one who said that a text may be shared."""
    vouched = Q(run__dataset__vouched_by=person) | Q(run__dataset__further__vouched_by=person)
    named = vouched | Q(run__dataset__base__vouched_by=person) | Q(run__named__person=person)
    for release in Release.objects.filter(named, state=Release.State.READY).distinct():
        # An added name that no one has, so that the card counts as stale.
        Release.objects.filter(pk=release.pk).update(named=[*release.named, ""])
        queue.enqueue_on_commit(TaskName.REMAKE_RELEASE, release.run_id)

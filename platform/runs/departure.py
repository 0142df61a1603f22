"""Account deletion. Data that belongs only to the person is deleted; contributions stay, without a name."""

import re
from functools import partial

from django.db import transaction
from django.db.models import Q

from accounts import deactivation
from accounts.models import Person
from accounts.names import is_mark
from jobs import queue
from jobs.queue import Kind
from notices import services as notices
from peer_agent.protocol.errors import Problem
from runs import quotas
from runs.datasets.uploads import forget_upload
from runs.lifecycle import roles
from runs.lifecycle.drafts import delete_draft
from runs.models import ActivityLine, HubAccount, JoinRequest, Member, NamedVolunteer, Release, Run

NOBODY = "a former volunteer"  # replaces the name in timelines
WORD = r"(?<![\w.-]){}(?!-?\w|\.\w)"  # matches whole names only; names may contain dots and dashes
SETTLED = (Run.State.DRAFT, Run.State.FINISHED)
HOSTS_KNOW_S = 60.0  # seconds until every host has noticed that the machines are revoked


@transaction.atomic
def delete_account(*, person: Person) -> str:
    """Delete an account and its drafts. Remove the person's name from cards and timelines. Return the name.

    A run with co-organizers, even a draft, passes to the longest-standing one. Removals from runs stay in force; their
    rows contain no name. Runs' hosts may still write the name for a few seconds, so a job erases it again later.
    Raises Problem E329 if the person still organizes a run that is under way, or is the site's only operator.
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
    queue.put(Kind.FORGET_NAME, name, after_s=HOSTS_KNOW_S)
    return name


def forget_lines(name: str) -> None:
    """Replace a person's name in every timeline line that mentions it."""
    for line in ActivityLine.objects.filter(names__contains=name).iterator():
        if name in (names := line.names.split()):
            others = " ".join(other for other in names if other != name)
            ActivityLine.objects.filter(pk=line.pk).update(text=without_name(line.text, name)[:300], names=others)


def without_name(text: str, name: str) -> str:
    """Replace a name in a line that mentions it with “a former volunteer”. Quotations are left as they are."""
    replaced = re.sub(rf"“\u2068.*?\u2069”|{WORD.format(re.escape(name))}", _nobody, text)
    return replaced[:1].upper() + replaced[1:] if replaced != text else text


def _nobody(found: re.Match[str]) -> str:
    """Return what replaces a match: a quotation, or a part of a longer name, stays as it is."""
    beside = found.string[found.start() - 1 : found.start()] + found.string[found.end() : found.end() + 1]
    is_part = any(is_mark(each) for each in beside)  # \w knows letters, but no vowel signs
    return found[0] if is_part or found[0].startswith("“") else NOBODY


def _require_not_needed(person: Person) -> None:
    going = person.runs.exclude(state__in=SETTLED).count()
    if going:
        runs = "a run that is" if going == 1 else f"{going} runs that are"
        raise Problem.of("E329", reason=f"you organize {runs} not finished")
    operators = Person.objects.select_for_update().filter(is_superuser=True, is_active=True)
    if person.is_superuser and set(operators.values_list("pk", flat=True)) <= {person.pk}:
        raise Problem.of("E329", reason="you are the only operator of this site")


def _remake_cards(person: Person) -> None:
    """Remake model cards that name the person, as a volunteer or for having confirmed that a text may be shared."""
    vouched = Q(run__dataset__vouched_by=person) | Q(run__dataset__further__vouched_by=person)
    named = vouched | Q(run__dataset__base__vouched_by=person) | Q(run__named__person=person)
    for release in Release.objects.filter(named, state=Release.State.READY).distinct():
        # An extra name that belongs to no one, so that the card counts as stale.
        Release.objects.filter(pk=release.pk).update(named=[*release.named, ""])
        queue.put(Kind.REMAKE_RELEASE, release.run_id)

"""What an organizer decides about the Hugging Face Hub: which token this site holds, and where a release goes."""

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from accounts.encryption import seal
from accounts.models import Person
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.publishing.hub_client import check_name
from runs import queue, storage
from runs.hub_access import account_of, hub_environment
from runs.models import HubAccount, Publication, Run
from runs.processes.child import run_child
from runs.queue import TaskName
from runs.timeline import add_action, quoted

CHECK_S = 60.0  # a Hub that takes longer to say whose token it is counts as away


def save_token(*, person: Person, token: str) -> HubAccount:
    """Keep a token that may write, in place of the one before. Raises Problem E343, E346, E347."""
    with storage.workspace() as home:
        said = run_child(
            ["hub-check", "--endpoint", settings.HUB_ENDPOINT],
            timeout_s=CHECK_S,
            secret=token,
            more=hub_environment(home),
        )
    facts = {"name": said["name"], "namespaces": said["namespaces"], "saved_at": timezone.now()}
    account, _ = HubAccount.objects.update_or_create(person=person, defaults={**facts, "sealed_token": seal(token)})
    return account


@transaction.atomic
def remove_token(*, person: Person) -> None:
    """Forget it. What waits for it is not sent; what is on the Hub stays there."""
    HubAccount.objects.filter(person=person).delete()
    asked = Q(asked_by=person) | Q(asked_by=None, run__organizer=person)
    Publication.objects.filter(asked, state=Publication.State.WAITING).update(
        state=Publication.State.FAILED, fault=str(Fault.of("E351"))
    )


@transaction.atomic
def ask_to_publish(
    *,
    run: Run,
    repository: str,
    private: bool,
    replace: bool,
    checkpoint_every: int = 0,
    in_branches: bool = False,
    by: Person | None = None,
) -> None:
    """Send the release there, now or as soon as it is made, and checkpoints before it. Raises Problem E348, E351.

    `by`: by whose token, where it is not the organizer's.
    """
    check_name(repository)
    who = by or run.organizer
    if account_of(who) is None:
        raise Problem.of("E351")
    before = Publication.objects.filter(run=run).first()
    is_elsewhere = before is not None and before.repository != repository
    facts = {"private": private, "replace": replace, "state": Publication.State.WAITING, "fault": ""}
    schedule = {"checkpoint_every": checkpoint_every, "in_branches": in_branches}
    anew = {"failing_since": None, "checkpoint_fault": "", "checkpoint_retry_at": None}
    nowhere = {"commit": "", "url": "", "published_at": None, "checkpoint_step": 0, "checkpoint_url": ""}
    moved = nowhere if is_elsewhere else {}
    Publication.objects.update_or_create(
        run=run,
        defaults={
            "repository": repository,
            "asked_at": timezone.now(),
            "asked_by": who,
            **facts,
            **schedule,
            **anew,
            **moved,
        },
    )
    often = f", with a checkpoint every {checkpoint_every:,} steps" if checkpoint_every else ""
    deed = f"wants the model on the Hub as {quoted(repository)}{' (private)' if private else ''}{often}."
    add_action(run=run, kind="publishing", deed=deed, by=who, is_internal=True)
    queue.enqueue_on_commit(TaskName.PUBLISH_RELEASE, run.pk)
    if checkpoint_every:
        queue.enqueue_on_commit(TaskName.PUBLISH_CHECKPOINT, run.pk)

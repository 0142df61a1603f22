"""Functions that publish a run's release on the Hugging Face Hub: token, repository and progress."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from accounts.keys import seal
from accounts.models import Person
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.publishing.hub_client import check_name
from runs import storage
from runs.access import MANAGING
from runs.hub_access import account_of, hub_environment, token_of
from runs.models import HubAccount, Publication, Release, Run
from runs.processes import faults_to, run_child
from runs.timeline import add_action, add_line, add_line_once, quoted

PUSH_S = 6 * 3600.0
LONG = timedelta(hours=1)  # pushes have failed for this long when the timeline reports it
GIVE_UP = timedelta(days=1)
UNSENT = (Publication.State.WAITING, Publication.State.SENDING)
CHECK_S = 60.0  # timeout for checking a token with the Hub


def waiting() -> QuerySet[Publication]:
    """Return unsent publications whose release is ready."""
    return Publication.objects.filter(state__in=UNSENT, run__release__state=Release.State.READY)


def progress_of(run: Run) -> dict[str, Any] | None:
    """Return the progress of a run's push to the Hub, or None if it has not begun.

    The result has the `stage` in words, and `done` and `total` in bytes.
    """
    try:
        return msgspec.json.decode(_progress_path(run).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None


def push_release(run_id: UUID) -> Fault | None:
    """Send a run's release to the Hub. Files that are already there unchanged are skipped.

    If the Hub cannot be reached, return the error for a retry.
    """
    publication = waiting().filter(run=run_id).select_related("run__organizer", "run__release", "asked_by").first()
    if publication is None:
        return None
    Publication.objects.filter(pk=publication.pk).update(state=Publication.State.SENDING)
    faults: list[Fault] = []
    with faults_to(faults.append, "E327"):
        _published(publication, _push(publication))
    return _failed(publication, faults[0]) if faults else None


def token_for(publication: Publication) -> str:
    """Return the Hub token of the person who asked to publish, or else the organizer's.

    Raises Problem E351 if that person has no token or no longer manages the run, or E352 if the token cannot be
    decrypted.
    """
    who = publication.asked_by or publication.run.organizer
    if publication.run.role_of(who) not in MANAGING:
        raise Problem.of("E351")
    return token_of(who)


def _push(publication: Publication) -> dict[str, Any]:
    run = publication.run
    token = token_for(publication)
    with storage.workspace() as home:
        return run_child(
            _command(publication, run.release),
            timeout_s=PUSH_S,
            secret=token,
            more=hub_environment(home),
        )


def _command(publication: Publication, release: Release) -> list[str]:
    run = publication.run
    names = [file["name"] for file in release.files if file["name"] != release.archive]
    where = ["--endpoint", settings.HUB_ENDPOINT, "--repository", publication.repository]
    flags = [f"--{name}" for name in ("private", "replace") if getattr(publication, name)]
    known = [f"--known={publication.commit}"] if publication.commit else []
    step = run.head.step if release.step is None else release.step
    told = [f"--message=Manyhands: {run.slug}, step {step}", "--progress", str(_progress_path(run))]
    files = [f"--name={name}" for name in names]
    folder = storage.local(storage.root() / release.folder)
    return ["hub-push", str(folder), *where, *flags, *known, *told, *files]


@transaction.atomic
def _published(publication: Publication, made: dict[str, Any]) -> None:
    there = Publication.objects.filter(pk=publication.pk, repository=publication.repository)
    there.update(commit=made["commit"], url=made["url"], published_at=timezone.now(), failing_since=None)
    if _settle(publication, Publication.State.PUBLISHED):
        where = "in a repository that its owner alone sees" if publication.private else made["repository"]
        add_line(run=publication.run, kind="published", text=f"The model is on the Hub: {where}.")


def _failed(publication: Publication, fault: Fault) -> Fault | None:
    note_failing(publication)
    is_worth_it = fault.code == codes.HUB_AWAY and not _is_given_up(publication)
    state = Publication.State.WAITING if is_worth_it else Publication.State.FAILED
    is_settled = _settle(publication, state, fault=str(fault))
    return fault if is_worth_it and is_settled else None


def _is_given_up(publication: Publication) -> bool:
    """Return True if pushes of the release have failed for a day. The time before the release was made is ignored."""
    since = max(publication.failing_since or timezone.now(), publication.run.release.created_at)
    return timezone.now() - since >= GIVE_UP


def note_failing(publication: Publication) -> None:
    """Record that a push to the Hub failed. After an hour of failures, add a line to the run's timeline."""
    now = timezone.now()
    Publication.objects.filter(pk=publication.pk, failing_since=None).update(failing_since=now)
    publication.refresh_from_db(fields=["failing_since"])
    since = publication.failing_since or now
    if now - since >= LONG:
        text = f"Nothing of this run has reached the Hub since {since:%H:%M} on {since:%d %b} (UTC)."
        add_line_once(run=publication.run, kind="unpublished", text=text)


def _settle(publication: Publication, state: Publication.State, *, fault: str = "") -> bool:
    """Record the outcome of a push, unless the organizer has changed the request. Return True if it was recorded."""
    sent = Publication.objects.filter(
        pk=publication.pk, repository=publication.repository, state=Publication.State.SENDING
    )
    return bool(sent.update(state=state, fault=fault))


def _progress_path(run: Run) -> Path:
    return storage.root() / "runs" / run.id.hex / "publishing.json"


def send_again(run_id: UUID) -> bool:
    """Mark a remade release to be sent to the Hub again. Return False if the earlier one was never sent there."""
    told = (Publication.State.PUBLISHED, Publication.State.SENDING)
    published = Publication.objects.filter(run=run_id, state__in=told)
    return bool(published.update(state=Publication.State.WAITING, fault=""))


# An organizer's choices for the Hub


def save_token(*, person: Person, token: str) -> HubAccount:
    """Check a person's Hub token with the Hub and store it, replacing any previous one.

    Raises Problem E343 if the Hub does not accept the token for writing, E346 if the Hub cannot be reached, or E347 if
    the Hub's response is unexpected.
    """
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
    """Delete a person's Hub token, and mark publications that were waiting to use it as failed.

    Files that are already on the Hub stay there.
    """
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
    """Request that a run's release be published on the Hub once it is made, and checkpoints until then.

    The site uses the token of `by`, who defaults to the organizer. Raises Problem E348 if the repository's name is
    invalid, or E351 if that person has no token.
    """
    check_name(repository)
    who = by or run.organizer
    if account_of(who) is None:
        raise Problem.of("E351")
    before = Publication.objects.filter(run=run).first()
    is_elsewhere = before is not None and before.repository != repository
    facts = {"private": private, "replace": replace, "state": Publication.State.WAITING, "fault": ""}
    schedule = {"checkpoint_every": checkpoint_every, "in_branches": in_branches}
    anew = {"failing_since": None, "checkpoint_fault": ""}
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
    action = f"wants the model on the Hub as {quoted(repository)}{' (private)' if private else ''}{often}."
    add_action(run=run, kind="publishing", action=action, by=who, is_internal=True)
    queue.try_again(Kind.PUBLISH_RELEASE, run.pk)
    if checkpoint_every:
        queue.try_again(Kind.PUBLISH_CHECKPOINT, run.pk)

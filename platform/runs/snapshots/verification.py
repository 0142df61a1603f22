"""Verification of snapshots: the site replays the log from a verified snapshot to the next one and compares hashes.

A job replays one stretch of a run's log at a time, so a restart of the site repeats at most one stretch per run. A
majority of people can only admit a snapshot. The site releases only snapshots that it has verified. The one exception
is a snapshot that can no longer be verified because averages are lost (see `verify_next`).
"""

from enum import StrEnum
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from msgspec import Struct

from peer_agent.protocol import reasons
from peer_agent.protocol.errors import Fault, codes
from runs import storage
from runs.models import LogEntry, RefusedSnapshot, Release, ReplayRequest, Run, Snapshot, Verification
from runs.processes import ChildStopped, faults_to
from runs.snapshots import replay
from runs.snapshots.replay import Made
from runs.timeline import add_line, add_line_once

MADE = "No copy of the model was taken from a volunteer, so it was made from the log."
BRIDGE_AFTER = 4  # failures in a row before the site stops waiting for a relay (75 s)
BRIDGED = (
    "Steps {first:,} to {last:,} can no longer be checked, because no relay has their averages. From step {last:,} on, "
    "the site relies on the copy of the model that most people reported."
)
REFUSED = (
    "The copy of the model that was handed in at step {step:,} is not what the log gives; it was deleted, and the "
    "site's own copy stands in its place."
)


class Outcome(StrEnum):
    DONE = "done"  # nothing left to do now
    MORE = "more"  # a snapshot was verified, and another may be waiting
    FAILED = "failed"  # the run's Verification row has the reason


class Goal(Struct, frozen=True):
    """A replay to do, from a verified snapshot up to a log entry.

    `snapshot` is the admitted snapshot at that entry. It is None if only the coordinator has requested the state there.
    """

    start: Snapshot
    index: int
    step: int
    snapshot: Snapshot | None


# --- Queries


def newest_verified(run: Run) -> Snapshot | None:
    """Return a run's latest verified snapshot that is stored, from which a replay can start, or None for a draft."""
    return _trusted(run).first()


def verified_up_to(run: Run) -> int:
    """Return the log index of the latest verified snapshot, or 0 if there is none."""
    last: int | None = _trusted(run).values_list("index", flat=True).first()
    return last or 0


def _trusted(run: Run) -> QuerySet[Snapshot]:
    return run.snapshots.filter(state=Snapshot.State.VERIFIED, is_stored=True).order_by("-index")


def next_goal(run: Run) -> Goal | None:
    """Return the next replay to do, or None. Replays follow log order: each starts where the last one ended."""
    start = newest_verified(run)
    if start is None:
        return None
    admitted = _waiting(run).filter(index__gt=start.index).order_by("index").first()
    asked = run.replays.filter(index__gt=start.index, state_digest="").order_by("index").first()
    if admitted is not None and (asked is None or admitted.index <= asked.index):
        return Goal(start, admitted.index, admitted.step, admitted)
    return Goal(start, asked.index, asked.step, None) if asked is not None else None


def _waiting(run: Run) -> QuerySet[Snapshot]:
    return run.snapshots.filter(state=Snapshot.State.ADMITTED, is_stored=True)


def unverified() -> QuerySet[Run]:
    """Return the runs that have a state waiting to be verified."""
    trusted = Snapshot.objects.filter(
        run=OuterRef("run"), state=Snapshot.State.VERIFIED, is_stored=True, index__gt=OuterRef("index")
    )
    waiting = Snapshot.objects.filter(run=OuterRef("pk"), state=Snapshot.State.ADMITTED, is_stored=True)
    asked = ReplayRequest.objects.filter(run=OuterRef("pk"), state_digest="")
    return Run.objects.filter(Q(Exists(waiting.filter(~Exists(trusted)))) | Q(Exists(asked)))


def is_release_ready(run_id: UUID) -> bool:
    """Return True if a release is waiting and its snapshot has been verified."""
    newest = Snapshot.objects.filter(run=run_id).order_by("-index").first()
    waits = Release.objects.filter(run=run_id).exclude(state=Release.State.READY).exists()
    return waits and newest is not None and newest.state == Snapshot.State.VERIFIED


# --- Requests


def ask_the_log(run: Run, *, index: int, step: int) -> None:
    """Request a replay of a run's log up to an entry. If the state there is already verified, answer at once."""
    ReplayRequest.objects.get_or_create(run=run, index=index, defaults={"step": step})
    for known in run.snapshots.filter(index=index, state=Snapshot.State.VERIFIED):
        _answer(run, known)
    # The coordinator no longer needs votes on states older than a verified one.
    run.replays.filter(index__lt=verified_up_to(run), state_digest="").delete()


# --- The work


def verify_next(run_id: UUID, *, failures: int = 0) -> Outcome:
    """Replay up to the next snapshot awaiting verification, or up to a requested entry.

    `failures` counts failures in a row so far. After `BRIDGE_AFTER` of them, missing averages count as lost for good.
    The site then trusts the majority that admitted the next snapshot, and says so on the timeline. Otherwise, the run
    could never be released.
    """
    run = Run.objects.select_related("head").filter(pk=run_id).first()
    goal = next_goal(run) if run is not None else None
    if run is None or goal is None:
        return Outcome.DONE
    steps = {"first_step": goal.start.step, "step": goal.start.step, "last_step": goal.step}
    Verification.objects.update_or_create(run=run, defaults=steps)
    expected = goal.snapshot.file if goal.snapshot is not None else ""
    faults: list[Fault] = []
    with faults_to(faults.append, "E312"), storage.workspace() as work:
        _touch(run, goal.start.step)
        try:
            tell = partial(_touch, run)
            made = replay.replay_to(run, goal.start, goal.index, work, expected=expected, tell=tell)
        except ChildStopped:
            return Outcome.DONE  # the site is shutting down and will repeat this at its next start
        if made.file != expected:
            storage.put(work / "out" / f"{made.file}.safetensors", storage.snapshot_path(run, made.file))
        _keep(run, goal, made)
        Verification.objects.filter(run=run).update(fault="")
        _say(run, "" if next_goal(run) is None else _progress(run, goal.step))
        return Outcome.MORE
    if not faults:
        return Outcome.DONE  # the site is shutting down
    _failed(run, faults[0])
    later = goal.snapshot or _waiting(run).filter(index__gt=goal.index).order_by("index").first()
    if faults[0].code == codes.NO_AVERAGES and later is not None and failures >= BRIDGE_AFTER:
        _bridge(run, goal.start, later)
        return Outcome.MORE
    return Outcome.FAILED


def _touch(run: Run, step: int) -> None:
    Verification.objects.filter(run=run).update(step=step)
    _say(run, _progress(run, step))


def _progress(run: Run, step: int) -> str:
    """Return a text on how many of all the run's steps are checked. A single replay covers only part of them."""
    return reasons.CHECKED.format(done=f"{step:,}", whole=f"{run.head.step:,}")


def _say(run: Run, text: str) -> None:
    """Show a message on the page of a run that is finishing; do nothing for other runs."""
    Run.objects.filter(pk=run.pk, state=Run.State.FINISHING).update(waiting_for=text)


@transaction.atomic
def _keep(run: Run, goal: Goal, made: Made) -> None:
    entry = LogEntry.objects.get(run=run, index=goal.index)
    facts = {"step": made.step, "digest": entry.digest, "state_digest": made.state_digest, "size": made.size}
    verified = {"state": Snapshot.State.VERIFIED, "verified_at": timezone.now(), "file": made.file, "is_stored": True}
    verified |= {"is_undone": entry.is_undone}
    before = run.snapshots.select_for_update().filter(index=goal.index).first()
    snapshot, _ = Snapshot.objects.update_or_create(run=run, index=goal.index, defaults={**facts, **verified})
    LogEntry.objects.filter(pk=entry.pk).update(state_digest=made.state_digest)
    if before is not None and before.file != made.file:
        _refuse(run, before)
    elif before is None and goal.index == run.head.index:
        add_line_once(run=run, kind="replayed", text=MADE)
    _answer(run, snapshot)


@transaction.atomic
def _bridge(run: Run, start: Snapshot, snapshot: Snapshot) -> None:
    """Trust a snapshot that can no longer be verified, so that the log after it can be verified again."""
    trusted = {"state": Snapshot.State.VERIFIED, "is_bridged": True, "verified_at": timezone.now()}
    Snapshot.objects.filter(pk=snapshot.pk).update(**trusted)
    Verification.objects.filter(run=run).update(fault="")
    _answer(run, snapshot)
    add_line(run=run, kind="bridged", text=BRIDGED.format(first=start.step + 1, last=snapshot.step))


def _refuse(run: Run, before: Snapshot) -> None:
    """Delete an admitted snapshot that differs from the replayed state, and report this on the run's timeline."""
    RefusedSnapshot.objects.get_or_create(
        run=run, file=before.file, defaults={"index": before.index, "step": before.step}
    )
    Snapshot.objects.filter(pk=before.pk).update(heldout_loss=None)
    # The coordinator learns from the answer to this request that the snapshot was wrong.
    ReplayRequest.objects.get_or_create(run=run, index=before.index, defaults={"step": before.step})
    transaction.on_commit(partial(storage.discard, storage.snapshot_path(run, before.file)))
    add_line(run=run, kind="refused", text=REFUSED.format(step=before.step))


def _answer(run: Run, snapshot: Snapshot) -> None:
    asked = run.replays.filter(index=snapshot.index)
    asked.update(state_digest=snapshot.state_digest, answered_at=timezone.now())


def _failed(run: Run, fault: Fault) -> None:
    Verification.objects.filter(run=run).update(fault=str(fault))
    _say(run, str(fault))
    add_line_once(run=run, kind="failed", text=str(fault))


def fault_of(run_id: UUID) -> str:
    """Return why the run's last replay failed, as text, or an empty string if it succeeded."""
    return Verification.objects.filter(run=run_id).values_list("fault", flat=True).first() or ""

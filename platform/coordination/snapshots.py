"""Snapshots from keepers: which machine may upload one, and which hash the site admits (rule 17).

A run's coordinator decides both. Its host passes the commands `Elected`, `Admitted` and `Replay` to `carry_out`, and
each relay's hello to `note_listener`. The host also polls `news_of` every second and turns the result into events:
`SnapshotStored` for a new snapshot, `Verified` for a higher `verified`, and `Replayed` for the result of a replay.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Min
from django.utils import timezone

from coordination.models import Admission, Election, PendingSnapshot
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Admitted, Archived, Elected, Replay, Replayed
from peer_agent.protocol.identifiers import PeerId
from runs.models import Head, LogEntry, RefusedSnapshot, RelayAddress, ReplayRequest, Run, Snapshot
from runs.snapshots.retention import ASKED_FOR_S
from runs.snapshots.verification import ask_the_log, verified_up_to

ELECTED = timedelta(minutes=10)  # an elected keeper must begin its upload within this time
PENDING = timedelta(minutes=10)  # how long a file waits for its hash to be admitted
ARCHIVE_S = 5.0  # seconds from a new entry until a job archives its averages, and those of any later entries
ANSWERS_KEPT = 16  # in log entries; the coordinator has forgotten the votes on older ones


class News(NamedTuple):
    """The state of a run's snapshots, as a host's poll finds it.

    `snapshot` is the latest one, or None if the run is a draft again. `verified` is the log index of the latest
    verified snapshot. `archived` says how far the site's archive reaches. `replays` has the results of recent replay
    requests.
    """

    snapshot: m.Snapshot | None = None
    verified: int = 0
    archived: Archived | None = None
    replays: tuple[Replayed, ...] = ()


# --- The coordinator's commands


def carry_out(run: Run, command: Elected | Admitted | Replay) -> None:
    match command:
        case Elected():
            elect_keeper(run, peer=command.peer, index=command.index, step=command.step)
        case Admitted():
            place = {"index": command.index, "step": command.step}
            admit_hash(run, **place, sha256=command.sha256, size=command.size)
        case Replay():
            request_replay(run, index=command.index, step=command.step)


def elect_keeper(run: Run, *, peer: PeerId, index: int, step: int) -> None:
    """Allow only this machine to upload the state at this log entry."""
    expire_pending()
    now = timezone.now()
    Election.objects.filter(run=run, until__lt=now).delete()
    Election.objects.update_or_create(
        run=run, index=index, defaults={"step": step, "peer": peer, "until": now + ELECTED}
    )


def admit_hash(run: Run, *, index: int, step: int, sha256: str, size: int) -> None:
    """Admit the hash that most people's copies have at this log entry, unless the site's replay has contradicted it."""
    if RefusedSnapshot.objects.filter(run=run, file=sha256).exists():
        return
    facts = {"step": step, "sha256": sha256, "size": size}
    Admission.objects.update_or_create(run=run, index=index, defaults=facts)
    keep_if_admitted(run, index)


def request_replay(run: Run, *, index: int, step: int) -> None:
    """Have the site replay the log up to this entry, because the machines' copies differ or none is left to upload."""
    ask_the_log(run, index=index, step=step)
    queue.put(Kind.VERIFY_SNAPSHOTS, run.pk)


def note_listener(peer: PeerId, hello: m.Hello) -> None:
    if hello.url and hello.keeps_log:
        facts = {"url": hello.url, "fingerprint": hello.fingerprint, "heard_at": timezone.now()}
        RelayAddress.objects.update_or_create(peer=peer, defaults=facts)


def news_of(run: Run) -> News:
    newest = run.snapshots.order_by("-index").first()
    if newest is None:
        return News()
    since = newest.index - ANSWERS_KEPT
    answered = ReplayRequest.objects.filter(run=run, index__gt=since).exclude(state_digest="").order_by("index")
    replays = tuple(Replayed(row.index, row.step, row.state_digest) for row in answered)
    return News(as_message(newest), verified_up_to(run), _archived(run), replays)


def _archived(run: Run) -> Archived:
    """Return how far the site's archive reaches. If it lacks entries, request the job that archives them."""
    head = Head.objects.get(run=run)
    if head.archived < head.index:
        queue.put(Kind.ARCHIVE_LOG, run.pk, after_s=ARCHIVE_S)
    return Archived(head.archived, gap=head.gap > 0)


def as_message(snapshot: Snapshot) -> m.Snapshot:
    return m.Snapshot(
        index=snapshot.index,
        step=snapshot.step,
        digest=snapshot.digest,
        state_digest=snapshot.state_digest,
        file=snapshot.file,
        size=snapshot.size,
    )


# --- Files and hashes, which may arrive in either order


def election_of(run: Run, peer: PeerId, step: int) -> Election | None:
    asked = Election.objects.filter(run=run, peer=peer, step=step, until__gte=timezone.now())
    return asked.select_related("run").first()


def admitted_at(run: Run, index: int) -> Admission | None:
    return Admission.objects.filter(run=run, index=index).first()


def keep_if_admitted(run: Run, index: int) -> None:
    """Turn the entry's pending file into a snapshot if its hash is admitted. Drop the file if another hash is admitted.

    A file and its hash may arrive at the same time. Each caller writes its own row before it looks for the other one,
    so at least one caller finds both.
    """
    admission, pending = admitted_at(run, index), PendingSnapshot.objects.filter(run=run, index=index).first()
    if admission is None or pending is None:
        return
    if (pending.sha256, pending.size) == (admission.sha256, admission.size):
        _keep(run, pending)
    forget_pending(pending)


def _keep(run: Run, pending: PendingSnapshot) -> None:
    entry = LogEntry.objects.get(run=run, index=pending.index)
    try:
        with transaction.atomic():
            Snapshot.objects.create(
                run=run,
                index=pending.index,
                step=pending.step,
                digest=entry.digest,
                state_digest=pending.state_digest,
                is_undone=entry.is_undone,
                file=pending.sha256,
                size=pending.size,
            )
            for kind in (Kind.MEASURE_HELDOUT, Kind.THIN_SNAPSHOTS, Kind.VERIFY_SNAPSHOTS):
                queue.put(kind, run.pk)
    except IntegrityError:
        pass  # another keeper or the site has stored this snapshot


def forget_pending(pending: PendingSnapshot) -> None:
    """Delete a pending file's row. A later job deletes the file, unless it has become a snapshot."""
    queue.put(Kind.THIN_SNAPSHOTS, pending.run_id, after_s=ASKED_FOR_S + 1)
    pending.delete()


def expire_pending() -> None:
    for pending in PendingSnapshot.objects.filter(expires__lt=timezone.now()).select_related("run"):
        forget_pending(pending)


def next_expiry() -> datetime | None:
    """Return when the next pending snapshot expires, or None if there are none."""
    first: datetime | None = PendingSnapshot.objects.aggregate(first=Min("expires"))["first"]
    return first

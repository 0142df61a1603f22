"""Snapshot uploads by elected keepers.

A machine may upload one snapshot at a time, of at most the announced size. Each upload is either stored completely or
discarded.
"""

from datetime import timedelta
from typing import NamedTuple

from django.db import IntegrityError, transaction
from django.utils import timezone

from accounts.models import Machine
from coordination.models import Election, PendingSnapshot, UploadSlot
from coordination.snapshots import PENDING, admitted_at, election_of, keep_if_admitted
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from runs import storage
from runs.datasets.uploads import too_long
from runs.models import LogEntry, RefusedSnapshot, Run, Snapshot
from runs.snapshots.state_check import Place, Readable, check_state, first_layout, write_body

SLOT = timedelta(seconds=60)  # after this long without a byte, the machine may start another upload
RENEWED = timedelta(seconds=10)


class Taken(NamedTuple):
    """An uploaded state that is now a snapshot, or that the site keeps until its hash is admitted."""

    step: int
    file: str
    state_digest: str
    size: int


def require_asked(*, run: Run, peer: PeerId, step: int, size: int) -> Election:
    """Return the election that allows the machine to upload this step. Call this before reading any of the body.

    `size` is the announced length. Raises Problem E355 if the machine was not elected. If a hash is admitted already,
    raises E304 for a file longer than the admitted one, and E356 for a shorter file.
    """
    election = election_of(run, peer, step)
    if election is None:
        raise Problem.of("E355", step=step)
    admission = admitted_at(run, election.index)
    if admission is not None and size > admission.size:
        raise Problem(too_long(size, admission.size))
    if admission is not None and size < admission.size:
        raise Problem.of("E356", step=step)
    return election


def take_snapshot(*, election: Election, body: Readable, size: int) -> Taken:
    """Store an elected keeper's upload of up to `size` bytes.

    Raises Problem E356 if another hash is admitted, and E310 if the file is not a valid state of the run at this entry.
    """
    run = election.run
    with storage.workspace() as work:
        path = work / "offered"
        file = write_body(body, path, size=size)
        if (known := _known(run, election, file)) is not None:
            return known
        digest = check_state(path, elements=run.elements, layout=first_layout(run), place=_place(run, election))
        length = path.stat().st_size
        storage.put(path, storage.snapshot_path(run, file))
        return _wait(run, election, Taken(election.step, file, digest, length))


def _known(run: Run, election: Election, file: str) -> Taken | None:
    """Return the snapshot if the site already has this file, or else None.

    Raises Problem E356 if the site expects a different file, or has refused this one.
    """
    stored = Snapshot.objects.filter(run=run, index=election.index).first()
    admission = admitted_at(run, election.index)
    expected = stored.file if stored else admission.sha256 if admission else file
    if file != expected or RefusedSnapshot.objects.filter(run=run, file=file).exists():
        raise Problem.of("E356", step=election.step)
    return Taken(stored.step, stored.file, stored.state_digest, stored.size) if stored else None


def _place(run: Run, election: Election) -> Place:
    entry = LogEntry.objects.get(run=run, index=election.index)
    return Place(election.index, election.step, entry.digest)


def _wait(run: Run, election: Election, taken: Taken) -> Taken:
    """Keep the file until its hash is admitted, perhaps at once. Raises Problem E356 if another hash is admitted."""
    facts = {"step": taken.step, "sha256": taken.file, "size": taken.size, "state_digest": taken.state_digest}
    PendingSnapshot.objects.update_or_create(
        run=run, index=election.index, defaults={**facts, "expires": timezone.now() + PENDING}
    )
    queue.put(Kind.EXPIRE_PENDING, after_s=PENDING.total_seconds() + 1)
    keep_if_admitted(run, election.index)
    _known(run, election, taken.file)
    return taken


class Slot:
    """A machine's single upload slot. Arriving data renews the slot. Without data, it expires after a minute."""

    def __init__(self, machine: Machine) -> None:
        """Reserve the machine's slot. Raises Problem E357 if another upload holds it."""
        now = timezone.now()
        self._machine, self._until = machine, now + SLOT
        UploadSlot.objects.filter(machine=machine, until__lt=now).delete()
        try:
            with transaction.atomic():
                UploadSlot.objects.create(machine=machine, until=self._until)
        except IntegrityError as error:
            raise Problem.of("E357") from error

    @property
    def is_old(self) -> bool:
        return self._until - timezone.now() < SLOT - RENEWED

    def renew(self) -> None:
        later = timezone.now() + SLOT
        UploadSlot.objects.filter(machine=self._machine, until=self._until).update(until=later)
        self._until = later

    def release(self) -> None:
        """Free the slot, unless it has expired and another upload holds it."""
        UploadSlot.objects.filter(machine=self._machine, until=self._until).delete()

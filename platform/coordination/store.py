"""Database access for a run's host. Every write either is idempotent or happens in a single transaction."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypedDict
from uuid import UUID

from django.db import DatabaseError, connection, transaction
from django.db.models import Max, Q, QuerySet, Sum
from django.utils import timezone

from accounts.keys import site_key
from accounts.models import Machine
from coordination.models import Election, PendingSnapshot
from coordination.snapshots import as_message
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol import messages as m
from peer_agent.protocol import reasons
from peer_agent.protocol.averaged import averaged_bytes
from peer_agent.protocol.coordinator.events import Checked, Directed, Goal, Mark, Reverse, Target
from peer_agent.protocol.coordinator.events import Recheck as AskedRecheck
from peer_agent.protocol.coordinator.facts import StoredFacts, restored
from peer_agent.protocol.coordinator.state import LOSSES_KEPT, RECORDS_WALKED, RunState
from peer_agent.protocol.coordinator.workers.counts import RECORDS_KEPT
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.records import Entry, Record, Unit, digest_of, open_record
from peer_agent.recipes import parse_recipe
from runs import storage
from runs.access import shut_out, trusted_in
from runs.ledger.records import (
    add_committed,
    entries_with,
    keep_sealed,
    leave_out,
    left_out_units,
    sealed_of,
    settled_units,
    with_records,
)
from runs.ledger.totals import MOST, add_averaged, add_to_day, add_to_totals, confirm, reverse
from runs.lifecycle.services import halt_run
from runs.models import IN_MODEL, Head, LeaseMark, LedgerEntry, LogEntry, Publication, Run, Snapshot
from runs.snapshots.recheck import findings_of, heed_findings, request_recheck
from runs.snapshots.state_check import Restated, restate
from runs.snapshots.verification import verified_up_to
from runs.states import NOT_OPEN
from runs.timeline import ROLLED_BACK, add_line

log = logging.getLogger(__name__)

Outcome = Literal["committed", "stale", "failed", "refused"]
KEPT = ("state", "state_digest", "created_at", "verified_at", "heldout_loss", "heldout_figures", "written")
RECOVERED = "The database had lost steps {first:,} to {last:,}; they were read back from a relay's log."
UNKNOWN = " Credit for {samples:,} samples is missing: the database does not know the machines."
LOST = (
    "Steps {first:,} to {last:,} were lost when the site was restored: {samples:,} samples by {by}. Their credit stays."
)
DONE = "Rolled back to step {step:,}: {undone} undone. {samples:,} samples no longer count."


ROLLBACK = "the step was rolled back"  # why credit is taken back


class Stale(Exception):
    """Raised if the run's head has moved, or another host has claimed it, since this host last wrote it."""


class Refused(Exception):
    """Raised if a rollback is no longer wanted or no longer possible."""


def load(run: Run, fence: int) -> RunState:
    """Rebuild the coordinator's state from the stored head, snapshot, lease marks, coverage and latest records."""
    recipe = run.parsed_recipe
    head, snapshot = run.head, run.snapshots.order_by("-index").first()
    assert snapshot is not None
    shards = list(run.dataset.shards.order_by("position"))
    newest = with_records(run).filter(index__lte=head.index, sealed__isnull=False).order_by("-index")[:RECORDS_WALKED]
    facts = StoredFacts(
        run=run.run_id,
        slug=run.slug,
        title=run.title,
        fence=fence,
        recipe=recipe,
        recipe_bytes=run.recipe.encode(),
        elements=run.elements,
        shards=tuple(m.Shard(shard.digest, shard.tokens) for shard in shards),
        sources=tuple(shard.source for shard in shards),
        site_key=public_bytes(site_key()),
        snapshot=as_message(snapshot),
        verified=verified_up_to(run),
        archived=head.archived,
        marks=[Mark(mark.epoch, mark.shard, mark.mark) for mark in run.marks.all()],
        settled=settled_units(run),
        left_out=list(left_out_units(run)),
        rolled_back=last_index(run),
        index=head.index,
        step=head.step,
        digest=head.digest,
        **goal_of(run),
        trusted=trusted_in(run),
        contributed=dict(run.totals.values_list("person__username").annotate(updates=Sum("person_rounds"))),
        checks=_checks(run),
        losses=_losses(run),
        last=[sealed_of(entry) for entry in reversed(newest)],
    )
    return restored(facts)


def _losses(run: Run) -> list[float]:
    """Return the losses since the run was last resumed, or since its sources were mixed in other parts."""
    changed = run.activity.filter(kind__in=("resumed", "mixed")).aggregate(at=Max("at"))["at"]
    rows = run.log.filter(IN_MODEL, *([Q(at__gt=changed)] if changed is not None else [])).order_by("-index")
    return list(rows.values_list("loss", flat=True)[:LOSSES_KEPT])[::-1]


def _checks(run: Run) -> dict[PeerId, tuple[int, int]]:
    rows = run.checks.order_by("-at").values_list("machine", "passed", "index")[:RECORDS_KEPT]
    return {PeerId(machine.hex): (passed, index) for machine, passed, index in rows}


def commit(run: Run, sealed: Entry, record: Record, *, duration_s: float, attempts: int) -> Outcome:
    """Append an entry under the host's fence. One transaction moves the head and writes log and ledger (rule 3)."""
    return _outcome(partial(_write, run, sealed, record, duration_s, attempts), run, sealed, record)


def roll_back(run: Run, sealed: Entry, record: Record) -> Outcome:
    """Write an entry that undoes others. Return "refused" if the rollback is no longer wanted or possible."""
    return _outcome(partial(write_rollback, run, sealed, record), run, sealed, record)


def _outcome(write: Callable[[], None], run: Run, sealed: Entry, record: Record) -> Outcome:
    """Call `write` and return the outcome. If the database does not respond, find out whether it stored the record."""
    try:
        write()
    except Stale:
        return decide(run, sealed, record)
    except Refused:
        return "refused"
    except DatabaseError:
        log.exception("%s at step %s: the database did not answer", record.kind, record.step)
        connection.close()
        return decide(run, sealed, record)
    return "committed"


@contextmanager
def fenced(run: Run, fence: int) -> Iterator[None]:
    """Run the block in a transaction, with the run's head locked.

    Raises Stale if the head's fence has changed: another host has the run, or the run is a draft again.
    """
    with transaction.atomic():
        if not Head.objects.select_for_update().filter(run=run, fence=fence).exists():
            raise Stale
        yield


def _move_head(head: QuerySet[Head], sealed: Entry, record: Record, *, step: int, fence: int) -> None:
    """Move the head to a record. Raises Stale unless the record follows the head and the host's fence is current."""
    mine = head.filter(index=record.index - 1, digest=record.previous, fence=fence)
    if mine.update(index=record.index, step=step, digest=digest_of(sealed)) != 1:
        raise Stale


def _write(run: Run, sealed: Entry, record: Record, duration_s: float, attempts: int) -> None:
    _add_update(run, sealed, record, record.fence, duration_s=duration_s, attempts=attempts)


@transaction.atomic
def _add_update(run: Run, sealed: Entry, record: Record, fence: int, **facts: Any) -> list[LedgerEntry]:
    """Move the head to an update and write its rows. Return the new ledger rows. Raises Stale if the head has moved."""
    _move_head(Head.objects.filter(run=run, step=record.step - 1), sealed, record, step=record.step, fence=fence)
    rows = _add_entry(run, sealed, record, index=record.index, **facts)
    add_committed(run, (unit for part in record.contributions for unit in part.units))
    return rows


def _add_entry(run: Run, sealed: Entry, record: Record, **facts: Any) -> list[LedgerEntry]:
    """Write an update's entry, record and ledger rows, and add the rows to all totals. Return the rows.

    `facts` are columns of the entry that do not follow from the record.
    """
    averaged = averaged_bytes(record)
    entry = LogEntry.objects.create(
        **{"run": run, "duration_s": 0.0, "attempts": record.attempt, **facts},
        step=record.step,
        digest=digest_of(sealed),
        loss=record.loss,
        tokens=record.tokens,
        samples=record.samples,
        peers=len(record.contributions),
        exact=record.exact,
        learning_rate=record.scalars.learning_rate,
        bytes_averaged=min(MOST, sum(averaged.values())),
    )
    keep_sealed(entry, sealed)
    rows = _ledger_rows(run, entry, record)
    LedgerEntry.objects.bulk_create(rows)
    add_to_totals(run, rows, is_lost=entry.kind == LogEntry.Kind.LOST)
    add_to_day(run, rows, entry.at)
    add_averaged(run, averaged)
    return rows


def _ledger_rows(run: Run, entry: LogEntry, record: Record) -> list[LedgerEntry]:
    persons = dict(Machine.objects.filter(id__in=[c.peer for c in record.contributions]).values_list("id", "person_id"))
    machines = {machine.hex: (machine, person) for machine, person in persons.items()}
    return [
        LedgerEntry(
            run=run,
            entry=entry,
            step=record.step,
            person_id=machines[c.peer][1],
            machine_id=machines[c.peer][0],
            samples=c.samples,
            tokens=c.tokens,
            credit=c.credit,
            weight=c.weight,
        )
        for c in record.contributions
        if c.peer in machines  # a database restored from a backup does not know newer machines
    ]


def decide(run: Run, sealed: Entry, record: Record) -> Outcome:
    """Find out from the database whether a write succeeded, and return the outcome."""
    head = Head.objects.get(run=run)
    if head.index >= record.index:
        entry = LogEntry.objects.filter(run=run, index=record.index).first()
        return "committed" if entry is not None and entry.digest == digest_of(sealed) else "stale"
    return "failed" if head.fence == record.fence else "stale"


def raise_marks(run: Run, fence: int, marks: Iterable[Mark]) -> None:
    """Raise lease marks, but never lower one. Call this before granting any lease below them (rule 11).

    Raises Stale if this host has lost the run.
    """
    asked = {(mark.epoch, mark.shard): mark.mark for mark in marks}
    with fenced(run, fence):
        _raise_marks(run, asked)


def _raise_marks(run: Run, asked: dict[tuple[int, int], int]) -> None:
    held = {(row.epoch, row.shard): row.mark for row in run.marks.filter(epoch__in={epoch for epoch, _ in asked})}
    rows = [
        LeaseMark(run=run, epoch=epoch, shard=shard, mark=mark)
        for (epoch, shard), mark in asked.items()
        if mark > held.get((epoch, shard), 0)
    ]
    LeaseMark.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["run", "epoch", "shard"], update_fields=["mark"]
    )


def abandon(run: Run, fence: int, units: Iterable[Unit]) -> None:
    """Record that no update will ever include these units. Raises Stale if this host has lost the run."""
    with fenced(run, fence):
        leave_out(run, units)


def agree(run: Run, step: int, digest: str) -> None:
    """Write the state digest reported by most replicas at a step. Do nothing for step 0, which has no row."""
    LogEntry.objects.filter(run=run, step=step, is_undone=False).update(state_digest=digest)


def sealed_from(run: Run, first: int, count: int) -> list[Entry]:
    return [sealed_of(entry) for entry in with_records(run, first=first)[:count]]


def check(run: Run, fence: int, checked: Checked) -> None:
    """Store that a machine's work up to a log entry counts as checked. Raises Stale if this host has lost the run."""
    with fenced(run, fence):
        confirm(run, UUID(checked.peer), passed=checked.passed, index=checked.index)


def reverse_credit(run: Run, fence: int, asked: Reverse) -> None:
    """Take back a machine's credit for log entries after the last checked one.

    Raises Stale if this host has lost the run.
    """
    with fenced(run, fence):
        machine = UUID(asked.peer)
        reverse(run, LedgerEntry.objects.filter(machine=machine, entry__index__gt=asked.index), asked.reason)
        run.checks.update_or_create(machine_id=machine, defaults={"passed": 0})


def halt(run: Run, fence: int, reason: str) -> None:
    """Pause the run for a reason other than the organizer's request. Raises Stale if this host has lost the run."""
    with fenced(run, fence):
        halt_run(run=run, reason=reason)


def recheck(run: Run, fence: int, asked: AskedRecheck) -> None:
    """Request that the site compute contributions again. Raises Stale if this host has lost the run."""
    with fenced(run, fence):
        request_recheck(run, asked.sketched, about=asked.about)


def heed(run: Run, fence: int, number: int) -> None:
    """Store that the coordinator has acted on the findings of a recheck. Raises Stale if this host has lost the run."""
    with fenced(run, fence):
        heed_findings(run, number)


def set_waiting(run: Run, reason: str) -> None:
    """Store why the run is waiting, unless the run has since become a draft again."""
    Run.objects.filter(pk=run.pk).exclude(state__in=NOT_OPEN).update(waiting_for=reason)


class Wanted(TypedDict):
    goal: Goal
    pause_reason: str


def goal_of(run: Run, now: datetime | None = None) -> Wanted:
    """Return the run's current goal: running, paused or finishing.

    Until its start time, a run counts as paused. `pause_reason` is text that gives this time, or says why the site has
    paused the run.
    """
    if run.wanted == Run.Wanted.FINISHED:
        return Wanted(goal="finishing", pause_reason="")
    at = run.later_start(now) if run.state != Run.State.PAUSED else None
    if run.is_halted:
        return Wanted(goal="paused", pause_reason=run.waiting_for)
    starts = reasons.SCHEDULED.format(date=f"{at:%Y-%m-%d}", time=f"{at:%H:%M}") if at is not None else ""
    return Wanted(goal="paused" if starts or run.state == Run.State.PAUSED else "running", pause_reason=starts)


def directed(run: Run) -> Directed:
    """Return the organizer's requests as an event for the coordinator."""
    facts = ("state", "wanted", "waiting_for", "starts_at", "recipe", "rollback_index", "visibility", "organizer")
    now = Run.objects.only(*facts).get(pk=run.pk)
    asked, back_to, trusted = parse_recipe(now.recipe), target_of(now), trusted_in(now)
    return Directed(
        target_steps=asked.target_steps,
        mix=asked.mix,
        back_to=back_to,
        trusted=trusted,
        findings=findings_of(now),
        **goal_of(now),
    )


def revoked(peers: Iterable[PeerId]) -> list[PeerId]:
    """Return the machines among `peers` that are revoked or belong to a closed account."""
    gone = Machine.objects.filter(pk__in=list(peers)).filter(Q(revoked_at__isnull=False) | Q(person__is_active=False))
    return [PeerId(machine.hex) for machine in gone.values_list("pk", flat=True)]


def uninvited(run: Run, peers: Iterable[PeerId]) -> list[PeerId]:
    """Return the machines among `peers` that may not, or may no longer, take part in the run (see `shut_out`)."""
    return [PeerId(pk.hex) for pk in shut_out(run, list(peers)).values_list("pk", flat=True)]


def run_named(run_id: RunId) -> Run:
    return Run.objects.select_related("dataset", "head").get(pk=run_id)


# Rollback to a snapshot: the entry and all its consequences, in one transaction (rule 15). The snapshot's state is
# stored again at the rollback's own entry. Newcomers, replicas and replays thus begin at the latest snapshot as always,
# with no undone entry after it.


def target_of(run: Run) -> Target | None:
    if run.rollback_index is None:
        return None
    found = run.snapshots.filter(index=run.rollback_index).first()
    return Target(found.index, found.step, found.file) if found is not None else None


def last_index(run: Run) -> int:
    """Return the log index of the run's last rollback, or 0 if there has been none."""
    found = run.log.filter(kind=LogEntry.Kind.ROLLBACK).order_by("-index").values_list("index", flat=True).first()
    return found or 0


def write_rollback(run: Run, sealed: Entry, record: Record) -> None:
    """Carry out a rollback: store the restored state, then write all rows in one transaction.

    Raises Stale if the head or the target has changed, and Refused if the rollback is no longer wanted or possible.
    After these errors, or a DatabaseError, nothing has been undone.
    """
    assert record.restored
    target = _restored_by(run, record)
    if target is None:  # it was written, but the answer was lost; or another rollback undid this snapshot
        Run.objects.filter(pk=run.pk, rollback_index=record.restored.index).update(rollback_index=None)
        raise Stale
    try:
        made = _restate(run, sealed, record, target)
    except (OSError, Problem) as error:
        log.exception("run %s: not rolled back", run.slug)
        _give_up(run, target, str(getattr(error, "strerror", "") or error))
        raise Refused from error
    _write_rollback(run, sealed, record, target, made)


def _restored_by(run: Run, record: Record) -> Snapshot | None:
    assert record.restored is not None
    return run.snapshots.filter(index=record.restored.index, file=record.restored.file, is_undone=False).first()


def _restate(run: Run, sealed: Entry, record: Record, target: Snapshot) -> Restated:
    """Store the target's state again, as the state at the rollback's own entry.

    Raises OSError or Problem if the target's file cannot be read or the new file cannot be stored.
    """
    with storage.workspace() as work:
        source, digest = storage.local(storage.snapshot_path(run, target.file)), digest_of(sealed)
        made = restate(source, work / "state", step=target.step, index=record.index, log_digest=digest)
        storage.put(work / "state", storage.snapshot_path(run, made.file))
    return made


def _give_up(run: Run, target: Snapshot, reason: str) -> None:
    """Cancel a rollback that would otherwise fail again every second, and say why on the timeline."""
    fault = Fault.of("E413", step=f"{target.step:,}", reason=reason)
    with transaction.atomic():
        if Run.objects.filter(pk=run.pk, rollback_index=target.index).update(rollback_index=None):
            add_line(run=run, kind="failed", text=str(fault))


@transaction.atomic
def _write_rollback(run: Run, sealed: Entry, record: Record, target: Snapshot, made: Restated) -> None:
    _add_rollback(run, sealed, record, target, made, fence=record.fence)
    if not Run.objects.filter(pk=run.pk, rollback_index=target.index).update(rollback_index=None):
        raise Refused


def _add_rollback(run: Run, sealed: Entry, record: Record, target: Snapshot, made: Restated, *, fence: int) -> None:
    step, place = Head.objects.values_list("step", flat=True).get(run=run), {"index": record.index}
    _move_head(Head.objects.filter(run=run), sealed, record, step=target.step, fence=fence)
    _undo(run, target)
    entry = LogEntry.objects.create(
        run=run,
        kind=LogEntry.Kind.ROLLBACK,
        step=target.step,
        digest=digest_of(sealed),
        state_digest=target.state_digest,
        exact=True,
        **place,
        **dict.fromkeys(("loss", "tokens", "samples", "peers", "duration_s", "attempts"), 0),
    )
    keep_sealed(entry, sealed)
    facts = {name: getattr(target, name) for name in KEPT}
    Snapshot.objects.create(run=run, step=target.step, digest=entry.digest, **place, **made._asdict(), **facts)
    undone = step - target.step
    samples = reverse(run, LedgerEntry.objects.filter(entry__index__gt=target.index, entry__is_undone=True), ROLLBACK)
    count = f"the {undone:,} steps after it are" if undone != 1 else "the step after it is"
    add_line(run=run, kind=ROLLED_BACK, text=DONE.format(step=target.step, undone=count, samples=samples))
    for kind in (Kind.MEASURE_HELDOUT, Kind.THIN_SNAPSHOTS):
        queue.put(kind, run.pk)


def _undo(run: Run, target: Snapshot) -> None:
    """Mark the log entries after the target as undone, and the snapshots from the target on.

    Also drop the run's elections, pending uploads and unanswered replay requests.
    """
    run.log.filter(index__gt=target.index).update(is_undone=True)
    run.snapshots.filter(index__gte=target.index).update(is_undone=True)
    run.replays.filter(state_digest="").delete()
    Election.objects.filter(run=run).delete()
    PendingSnapshot.objects.filter(run=run).update(expires=timezone.now())
    Publication.objects.filter(run=run, checkpoint_step__gt=target.step).update(checkpoint_step=target.step)


# Entries that the database has lost (rule 16)


def adopt(run: Run, fence: int, entries: Sequence[Entry]) -> int:
    """Append records that this site signed but its database has lost. Return the number of records appended.

    Stop at the first record that does not follow the end of the log. All rows are written in one transaction: log,
    ledger, lease marks and a line on the timeline. Machines that the database no longer knows get no ledger rows.
    Raises Stale if this host has lost the run.
    """
    with fenced(run, fence):
        first = Head.objects.values_list("step", flat=True).get(run=run) + 1
        added, unknown = 0, 0
        for sealed in entries:
            record = _next_record(run, sealed)
            if record is None:
                break
            if record.kind == "rollback":
                target = _restored_by(run, record)
                if target is None:
                    break
                _add_rollback(run, sealed, record, target, _restate(run, sealed, record, target), fence=fence)
            else:
                rows = _add_update(run, sealed, record, fence)
                unknown += record.samples - sum(row.samples for row in rows)
                _raise_marks(run, _marks_above(record))
            added += 1
        if added:
            text = RECOVERED.format(first=first, last=Head.objects.values_list("step", flat=True).get(run=run))
            add_line(run=run, kind="recovered", text=text + (UNKNOWN.format(samples=unknown) if unknown else ""))
        return added


def _next_record(run: Run, sealed: Entry) -> Record | None:
    """Return the record if this site signed it and it follows the end of the log, or else None."""
    head = Head.objects.get(run=run)
    try:
        record = open_record(sealed, public_bytes(site_key()))
    except Problem:
        log.exception("run %s: a relay's record was refused", run.slug)
        return None
    follows = (record.run, record.index, record.previous) == (run.run_id, head.index + 1, head.digest)
    return record if follows else None


def _marks_above(record: Record) -> dict[tuple[int, int], int]:
    """Return lease marks above all of a record's units, so that no host leases these samples again."""
    marks: dict[tuple[int, int], int] = {}
    for unit in (unit for part in record.contributions for unit in part.units):
        marks[unit.epoch, unit.shard] = max(unit.stop, marks.get((unit.epoch, unit.shard), 0))
    return marks


def credit_branch(run: Run, fence: int, entries: Sequence[Entry]) -> None:
    """Give credit for updates that the site signed and its database lost, and add a line about them to the timeline.

    The run's log went on without these updates, so they stay out of the model and out of the coverage. Each gets an
    entry of the kind "lost" with its record and ledger rows. Raises Stale if this host has lost the run.
    """
    with fenced(run, fence):
        added = [pair for sealed in entries if (pair := _add_lost(run, sealed)) is not None]
        lost = [record for record, _ in added if record.kind == "update"]
        if not lost:
            return
        people = len({part.person for record in lost for part in record.contributions})
        samples, steps = sum(record.samples for record in lost), [record.step for record in lost]
        unknown = samples - sum(row.samples for _, rows in added for row in rows)
        by = f"{people} people" if people > 1 else "1 person"
        text = LOST.format(first=min(steps), last=max(steps), samples=samples, by=by)
        add_line(run=run, kind="lost steps", text=text + (UNKNOWN.format(samples=unknown) if unknown else ""))


def _add_lost(run: Run, sealed: Entry) -> tuple[Record, list[LedgerEntry]] | None:
    """Add an entry for a record on a lost branch. Return the record and its ledger rows, or None if it is not lost."""
    try:
        record = open_record(sealed, public_bytes(site_key()))
    except Problem:
        return None
    if record.run != run.run_id or not _is_lost(run, record, digest_of(sealed)):
        return None
    lowest = run.log.order_by("index").values_list("index", flat=True).first() or 0
    return record, _add_entry(run, sealed, record, index=min(lowest, 0) - 1, kind=LogEntry.Kind.LOST, is_undone=True)


def _is_lost(run: Run, record: Record, digest: str) -> bool:
    """Return True if a record has no entry yet, and either takes the place of a different one or follows a lost one.

    Records that the database may still get back are not lost. Otherwise, they would be credited twice.
    """
    if entries_with(run, record.index, digest).exists():
        return False
    lost = run.log.filter(index__lt=0, digest=record.previous)
    return run.log.filter(index=record.index).exists() or lost.exists()

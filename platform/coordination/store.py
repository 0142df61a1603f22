"""A run's rows as its host reads and writes them. Every write is idempotent or one transaction."""

import logging
from collections.abc import Iterable
from typing import Literal

from django.db import DatabaseError, connection, transaction
from django.db.models import Q

from accounts.keys import site_key
from accounts.models import Machine
from coordination import rollbacks
from coordination.snapshots import as_message
from peer_agent.protocol import messages as m
from peer_agent.protocol.averaged import averaged_bytes
from peer_agent.protocol.coordinator.events import Directed, Goal, Mark
from peer_agent.protocol.coordinator.facts import StoredFacts, restored
from peer_agent.protocol.coordinator.state import RECORDS_WALKED, RunState
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.records import Entry, Record, Unit, digest_of
from peer_agent.recipes import parse_recipe
from runs.access import shut_out
from runs.ledger.averaged import add_averaged
from runs.ledger.coverage import add_committed, leave_out, left_out_units, settled_units
from runs.ledger.sealed_records import keep_sealed, sealed_of, with_records
from runs.ledger.totals import MOST, add_to_day, add_to_totals
from runs.models import Head, LeaseMark, LedgerEntry, LogEntry, Run
from runs.snapshots.verification import verified_up_to
from runs.states import NOT_OPEN

log = logging.getLogger(__name__)

Outcome = Literal["committed", "stale", "failed", "refused"]


def load(run: Run, fence: int) -> RunState:
    """The run as the database knows it: head, snapshot, marks, coverage, and the newest records of its log."""
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
        marks=[Mark(mark.epoch, mark.shard, mark.mark) for mark in run.marks.all()],
        settled=settled_units(run),
        left_out=list(left_out_units(run)),
        rolled_back=rollbacks.last_index(run),
        index=head.index,
        step=head.step,
        digest=head.digest,
        goal=goal_in(run.state, run.wanted),
        last=[sealed_of(entry) for entry in reversed(newest)],
    )
    return restored(facts)


def commit(run: Run, sealed: Entry, record: Record, *, duration_s: float, attempts: int) -> Outcome:
    """Rule 3: one transaction moves the head by one, under this fence, and writes log and ledger with it.

    A database that did not answer is asked again what it holds; only that decides.
    """
    try:
        with transaction.atomic():
            _write(run, sealed, record, duration_s, attempts)
    except rollbacks.Stale:
        return decide(run, sealed, record)
    except DatabaseError:
        log.exception("commit of step %s: the database did not answer", record.step)
        connection.close()
        return decide(run, sealed, record)
    return "committed"


def roll_back(run: Run, sealed: Entry, record: Record) -> Outcome:
    """The same for an entry that undoes others. Refused, for good: nobody wants it any more, or its file is gone."""
    try:
        rollbacks.write(run, sealed, record)
    except rollbacks.Stale:
        return decide(run, sealed, record)
    except rollbacks.Refused:
        return "refused"
    except DatabaseError:
        log.exception("rollback to step %s: the database did not answer", record.step)
        connection.close()
        return decide(run, sealed, record)
    return "committed"


def _write(run: Run, sealed: Entry, record: Record, duration_s: float, attempts: int) -> None:
    moved = Head.objects.filter(
        run=run, index=record.index - 1, step=record.step - 1, digest=record.previous, fence=record.fence
    ).update(index=record.index, step=record.step, digest=digest_of(sealed))
    if moved != 1:
        raise rollbacks.Stale
    averaged = averaged_bytes(record)
    entry = LogEntry.objects.create(
        run=run,
        index=record.index,
        step=record.step,
        digest=digest_of(sealed),
        loss=record.loss,
        tokens=record.tokens,
        samples=record.samples,
        peers=len(record.contributions),
        duration_s=duration_s,
        attempts=attempts,
        exact=record.exact,
        learning_rate=record.scalars.learning_rate,
        bytes_averaged=min(MOST, sum(averaged.values())),
    )
    keep_sealed(entry, sealed)
    rows = _ledger_rows(run, entry, record)
    LedgerEntry.objects.bulk_create(rows)
    add_to_totals(run, rows)
    add_to_day(run, rows, entry.at)
    add_averaged(run, averaged)
    add_committed(run, (unit for part in record.contributions for unit in part.units))


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
    ]


def decide(run: Run, sealed: Entry, record: Record) -> Outcome:
    """What became of a write whose answer is not known."""
    head = Head.objects.get(run=run)
    if head.index >= record.index:
        entry = LogEntry.objects.filter(run=run, index=record.index).first()
        return "committed" if entry is not None and entry.digest == digest_of(sealed) else "stale"
    return "failed" if head.fence == record.fence else "stale"


def raise_marks(run: Run, fence: int, marks: Iterable[Mark]) -> bool:
    """Raise lease marks before anything under them is granted (rule 11). None is ever lowered.

    False, and nothing is written, where another host has the run by now, or none is to have it.
    """
    asked = {(mark.epoch, mark.shard): mark.mark for mark in marks}
    with transaction.atomic():
        if not Head.objects.select_for_update().filter(run=run, fence=fence).exists():
            return False
        held = {(row.epoch, row.shard): row.mark for row in run.marks.filter(epoch__in={epoch for epoch, _ in asked})}
        rows = [
            LeaseMark(run=run, epoch=epoch, shard=shard, mark=mark)
            for (epoch, shard), mark in asked.items()
            if mark > held.get((epoch, shard), 0)
        ]
        LeaseMark.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["run", "epoch", "shard"], update_fields=["mark"]
        )
    return True


def abandon(run: Run, fence: int, units: Iterable[Unit]) -> bool:
    """Write that units will be in no update. False, and nothing is written, where another host has the run by now."""
    with transaction.atomic():
        if not Head.objects.select_for_update().filter(run=run, fence=fence).exists():
            return False
        leave_out(run, units)
    return True


def agree(run: Run, step: int, digest: str) -> None:
    """What most replicas report of their state at a step. A step 0 has no row."""
    LogEntry.objects.filter(run=run, step=step, is_undone=False).update(state_digest=digest)


def sealed_from(run: Run, first: int, count: int) -> list[Entry]:
    """Entries from an index on, at most so many."""
    return [sealed_of(entry) for entry in with_records(run, first=first)[:count]]


def set_waiting(run: Run, reason: str) -> None:
    """Why nothing moves, in words; a run that was taken back meanwhile says so itself."""
    Run.objects.filter(pk=run.pk).exclude(state__in=NOT_OPEN).update(waiting_for=reason)


def goal_in(state: str, wanted: str) -> Goal:
    """What a run's row says of its organizer's wishes."""
    if wanted == Run.Wanted.FINISHED:
        return "finishing"
    return "paused" if state == Run.State.PAUSED else "running"


def directed(run: Run) -> Directed:
    """The organizer's wishes as the coordinator takes them."""
    now = Run.objects.only("state", "wanted", "recipe", "rollback_index").get(pk=run.pk)
    asked = parse_recipe(now.recipe)
    return Directed(goal_in(now.state, now.wanted), asked.target_steps, asked.mix, rollbacks.target_of(now))


def revoked(peers: Iterable[PeerId]) -> list[PeerId]:
    """Those of these machines that may not work any more."""
    gone = Machine.objects.filter(pk__in=list(peers)).filter(Q(revoked_at__isnull=False) | Q(person__is_active=False))
    return [PeerId(machine.hex) for machine in gone.values_list("pk", flat=True)]


def uninvited(run: Run, peers: Iterable[PeerId]) -> list[PeerId]:
    """Those of these machines whose people have no part in the run (any more)."""
    return [PeerId(pk.hex) for pk in shut_out(run, list(peers)).values_list("pk", flat=True)]


def run_named(run_id: RunId) -> Run:
    """The run of an id. Raises Run.DoesNotExist."""
    return Run.objects.select_related("dataset", "head").get(pk=run_id)

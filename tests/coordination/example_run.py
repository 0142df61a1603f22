"""An example for tests: Amina's run in a database, Teo's and Noor's machines, and log records as a host writes them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accounts.keys import site_key
from accounts.models import Person
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.log.records import (
    ChunkRange,
    Contribution,
    Entry,
    Record,
    Scalars,
    SpanEntry,
    Unit,
    read_record,
    seal,
    whole,
)
from runs.ledger.records import sealed_of, with_records
from runs.ledger.totals import SUMS
from runs.models import Head, LedgerEntry, LogEntry, Run, SealedRecord
from tests.runs.factories import ELEMENTS, Owned, opened, owned

ACCUMULATOR = AccumulatorId("ac" * 16)
RELAY = PeerId("0e" * 16)
UNIT = Unit(0, 0, 0, 2)
SCALARS = Scalars(learning_rate=0.5, clip=1.0, inverse_bias_1=1.0, inverse_bias_2=1.0, inverse_tokens=0.5)


@dataclass
class Example:
    run: Run
    teo: Owned
    noor: Owned


def example_run(**changes: Any) -> Example:
    run = opened(Person.objects.create_user("Amina", None), **changes)
    return Example(run, *(owned(Person.objects.create_user(name, None)) for name in ("Teo", "Noor")))


Part = tuple[str, str, str, tuple[Unit, ...]]  # machine id, person's name, machine's name, units


def contribution(part: Part, slot: int) -> Contribution:
    """Return one machine's contribution in a record, with every chunk included."""
    peer, person, machine, units = part
    samples = sum(unit.samples for unit in units)
    return Contribution(
        peer=PeerId(peer),
        person=person,
        machine=machine,
        slot=slot,
        accumulator=ACCUMULATOR,
        units=units,
        weight=7 * samples,
        credit=7 * samples * ELEMENTS,
        samples=samples,
        tokens=7 * samples,
        included=(ChunkRange(0, grid_of(ELEMENTS).chunks),),
        codec="fp16",
    )


def next_record(run: Run, *parts: tuple[Owned, tuple[Unit, ...]], **changes: Any) -> Record:
    """Return the record that follows the head of the run's log, with the head's fence."""
    head = Head.objects.get(run=run)
    known = [(owner.machine.peer_id, owner.machine.person.username, owner.machine.name, held) for owner, held in parts]
    place = {"index": head.index + 1, "step": head.step + 1, "previous": head.digest, "fence": head.fence}
    return record_of(known, run=run.run_id, **{**place, **changes})


def record_of(parts: Sequence[Part], **facts: Any) -> Record:
    """Return a record with the given contributions, at the given place in a log."""
    grid = grid_of(ELEMENTS)
    contributions = tuple(contribution(part, slot) for slot, part in enumerate(parts))
    span = SpanEntry(
        span=0,
        first=0,
        stop=grid.chunks,
        attempt=1,
        reducer=RELAY,
        root="ab" * 32,
        sum_squares=1.0,
    )
    sums = {name: sum(getattr(part, name) for part in contributions) for name in ("tokens", "samples")}
    return whole(
        attempt=1,
        round=1,
        elements=ELEMENTS,
        chunk_elements=grid.chunk_elements,
        codec="fp16",
        spans=(span,),
        scalars=SCALARS,
        contributions=contributions,
        **{"loss": 2.5, "exact": True, **sums, **facts},
    )


def sealed(record: Record) -> Entry:
    return seal(site_key(), record)


def books(run: Run) -> tuple[dict[str, int], dict[str, int]]:
    """Return each machine's credit according to the ledger, and according to the signed records."""
    ledger: dict[str, int] = {}
    for row in LedgerEntry.objects.filter(run=run, reverses=None).select_related("machine"):
        ledger[row.machine.peer_id] = ledger.get(row.machine.peer_id, 0) + row.credit
    log: dict[str, int] = {}
    for entry in map(sealed_of, with_records(run)):
        for part in read_record(entry).contributions:
            log[part.peer] = log.get(part.peer, 0) + part.credit
    return ledger, log


def require_equal_books(run: Run) -> None:
    """Raise AssertionError unless the ledger and the records give every machine the same credit."""
    ledger, log = books(run)
    assert ledger == log, f"the ledger has {ledger}, the log {log}"


def everything(run: Run) -> str:
    rows = [
        list(Head.objects.filter(run=run).values_list("index", "step", "digest", "fence", "owner")),
        list(LogEntry.objects.filter(run=run).order_by("index").values_list("index", "digest", "state_digest")),
        list(LedgerEntry.objects.filter(run=run).order_by("id").values_list("entry__index", "machine", "credit")),
        [bytes(payload) for payload in SealedRecord.objects.filter(entry__run=run).values_list("payload", flat=True)],
        list(run.coverage.order_by("epoch", "shard").values_list("epoch", "shard", "ranges")),
        list(run.totals.order_by("machine").values_list("machine", "person", *SUMS)),
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()

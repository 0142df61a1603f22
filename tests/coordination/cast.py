"""Amina's run on real rows, Teo's and Noor's machines, and records as a host makes them."""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from accounts.keys import site_key
from accounts.models import Machine, Person
from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.records import Contribution, Included, Record, Scalars, SpanEntry, Unit, seal
from runs.models import Head, LedgerEntry, LogEntry, Run
from tests.runs.cast import ELEMENTS, Owned, opened, owned

ACCUMULATOR = AccumulatorId("ac" * 16)
RELAY = PeerId("0e" * 16)
UNIT = Unit(0, 0, 0, 2)
SCALARS = Scalars(learning_rate=0.5, clip=1.0, inverse_bias_1=1.0, inverse_bias_2=1.0, inverse_tokens=0.5)


@dataclass
class Cast:
    """Who and what is there."""

    run: Run
    teo: Owned
    noor: Owned


def assemble(**changes: Any) -> Cast:
    """An open run, and two volunteers with a machine each."""
    run = opened(Person.objects.create_user("Amina", None), **changes)
    return Cast(run, *(owned(Person.objects.create_user(name, None)) for name in ("Teo", "Noor")))


def contribution(machine: Machine, slot: int, units: tuple[Unit, ...]) -> Contribution:
    """One machine's part of a record: all of its units, in full."""
    samples = sum(unit.samples for unit in units)
    return Contribution(
        peer=machine.peer_id,
        person=machine.person.username,
        machine=machine.name,
        slot=slot,
        accumulator=ACCUMULATOR,
        units=units,
        weight=7 * samples,
        credit=7 * samples * ELEMENTS,
        samples=samples,
        tokens=7 * samples,
    )


def next_record(run: Run, *parts: tuple[Owned, tuple[Unit, ...]], **changes: Any) -> Record:
    """The record that moves the head by one, under the head's fence."""
    head, grid = Head.objects.get(run=run), grid_of(ELEMENTS)
    contributions = tuple(contribution(owner.machine, slot, units) for slot, (owner, units) in enumerate(parts))
    everybody = Included(0, grid.chunks, tuple(range(len(parts))))
    span = SpanEntry(
        span=0,
        first=0,
        stop=grid.chunks,
        attempt=1,
        reducer=RELAY,
        root="ab" * 32,
        sum_squares=1.0,
        included=(everybody,),
    )
    record = Record(
        run=run.run_id,
        index=head.index + 1,
        step=head.step + 1,
        fence=head.fence,
        attempt=1,
        round=1,
        previous=head.digest,
        elements=ELEMENTS,
        chunk_elements=grid.chunk_elements,
        codec="fp16",
        spans=(span,),
        scalars=SCALARS,
        contributions=contributions,
        loss=2.5,
        tokens=sum(part.tokens for part in contributions),
        samples=sum(part.samples for part in contributions),
        exact=True,
    )
    return msgspec.structs.replace(record, **changes)


def sealed(record: Record) -> Signed:
    """The record under the site's key."""
    return seal(site_key(), record)


def books(run: Run) -> tuple[dict[str, int], dict[str, int]]:
    """Credit of each machine: as the ledger's rows have it, and as the signed records say."""
    ledger: dict[str, int] = {}
    for row in LedgerEntry.objects.filter(run=run).select_related("machine"):
        ledger[row.machine.peer_id] = ledger.get(row.machine.peer_id, 0) + row.credit
    log: dict[str, int] = {}
    for entry in LogEntry.objects.filter(run=run):
        for part in msgspec.json.decode(bytes(entry.record), type=Record).contributions:
            log[part.peer] = log.get(part.peer, 0) + part.credit
    return ledger, log


def require_equal_books(run: Run) -> None:
    """Ledger and records name the same credit, machine by machine. Raises AssertionError."""
    ledger, log = books(run)
    assert ledger == log, f"the ledger has {ledger}, the log {log}"


def everything(run: Run) -> str:
    """All rows that a commit writes, in one digest."""
    rows = [
        list(Head.objects.filter(run=run).values_list("index", "step", "digest", "fence", "owner")),
        list(LogEntry.objects.filter(run=run).order_by("index").values_list("index", "digest", "state_digest")),
        list(LedgerEntry.objects.filter(run=run).order_by("id").values_list("entry__index", "machine", "credit")),
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()

"""Whether a run's books are right: records signed and chained, contributions in the ledger once, no sample used twice.

Reads the whole log: grows with its steps.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec.structs import astuple

from accounts.keys import site_key
from peer_agent.protocol.credentials import Signed, public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.records import GENESIS, Record, Unit, digest_of, open_record
from runs.models import Head, LedgerEntry, LogEntry, Run


def audit(run: Run) -> dict[str, Any]:
    """Totals, each from its own source, and every fault in words."""
    ledger = _ledger(run)
    faults: list[str] = []
    previous, seen, committed, steps = GENESIS, Counter[Unit](), 0, 0
    for entry in LogEntry.objects.filter(run=run).order_by("index").iterator(chunk_size=200):
        steps += 1
        sealed = Signed(bytes(entry.record), bytes(entry.signature))
        try:
            record = open_record(sealed, public_bytes(site_key()))
        except Problem as problem:
            faults.append(f"entry {entry.index}: {problem}")
            continue
        committed += sum(part.samples for part in record.contributions)
        faults += _faults_of(entry, record, sealed, previous, ledger.pop(entry.pk, Counter()))
        seen.update(unit for part in record.contributions for unit in part.units)
        previous = digest_of(sealed)
    faults += [f"ledger rows of an entry that is not in the log ({key})" for key in ledger]
    faults += [f"samples {astuple(unit)} are in {count} updates" for unit, count in overlaps(seen)]
    faults += _head_faults(run, steps, previous)
    total = sum(LedgerEntry.objects.filter(run=run).values_list("samples", flat=True))
    return {
        "run": run.slug,
        "steps": steps,
        "committed_samples": committed,
        "ledger_samples": total,
        "faults": faults,
    }


def _ledger(run: Run) -> dict[int, Counter[tuple[str, int, int, int]]]:
    """Ledger rows by log entry: machine, samples, tokens, credit."""
    rows: dict[int, Counter[tuple[str, int, int, int]]] = {}
    for row in LedgerEntry.objects.filter(run=run).iterator(chunk_size=1000):
        line = (row.machine_id.hex, row.samples, row.tokens, row.credit)
        rows.setdefault(row.entry_id, Counter())[line] += 1
    return rows


def _faults_of(
    entry: LogEntry, record: Record, sealed: Signed, previous: str, rows: Counter[tuple[str, int, int, int]]
) -> Iterator[str]:
    if record.previous != previous:
        yield f"entry {entry.index} does not follow the one before it"
    if (record.index, record.step, digest_of(sealed)) != (entry.index, entry.step, entry.digest):
        yield f"entry {entry.index} is not the record that its row describes"
    expected: Counter[tuple[str, int, int, int]] = Counter(
        (part.peer, part.samples, part.tokens, part.credit) for part in record.contributions
    )
    for line in (expected - rows).elements():
        yield f"step {record.step}: {line[1]} samples of machine {line[0][:8]} are not in the ledger"
    for line in (rows - expected).elements():
        yield f"step {record.step}: the ledger has {line[1]} samples of machine {line[0][:8]} that were not committed"


def overlaps(seen: Counter[Unit]) -> Iterator[tuple[Unit, int]]:
    """Units that share samples with another, or came twice."""
    reached: dict[tuple[int, int], int] = {}
    for unit in sorted(seen):
        place = unit.epoch, unit.shard
        if seen[unit] > 1 or unit.start < reached.get(place, 0):
            yield unit, max(seen[unit], 2)
        reached[place] = max(reached.get(place, 0), unit.stop)


def _head_faults(run: Run, steps: int, digest: str) -> Iterator[str]:
    head = Head.objects.get(run=run)
    if (head.index, head.digest) != (steps, digest):
        yield f"the head is at entry {head.index}, the log ends at {steps}"

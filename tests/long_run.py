"""The rows of a long run with many machines: 10,000 steps of 200 machines, written to a database in seconds.

Every record is complete, signed and chained. The ledger, totals, coverage and marks are those that commits would
write, so the audit finds no fault. It works on SQLite and PostgreSQL.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate

import msgspec
from django.db import connection
from django.utils import timezone

from accounts.keys import site_key
from accounts.models import Machine, Person
from coordination.models import Presence
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
    digest_of,
    seal,
    whole,
)
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.text.recipe import samples_in
from runs.models import (
    ActivityLine,
    Coverage,
    Dataset,
    Head,
    LeaseMark,
    LogEntry,
    MachineTotal,
    Run,
    SealedRecord,
    Shard,
    Snapshot,
)

AT_ONCE = 200  # records written at a time, of about 54 kB each in memory
SHARD_TOKENS = 1 << 17
ELEMENTS = 8_000_000
CONTEXT = 256
UNIT = 8  # samples
SNAPSHOTS_EVERY = 50
JOINED, VOIDED = 40, 25  # one line of this kind in the timeline for this many steps
SCALARS = Scalars(learning_rate=0.5, clip=1.0, inverse_bias_1=1.0, inverse_bias_2=1.0, inverse_tokens=0.5)

LEDGER = """
    INSERT INTO runs_ledgerentry (run_id, entry_id, step, person_id, machine_id, samples, tokens, credit, weight)
    SELECT e.run_id, e.id, e.step, t.person_id, t.machine_id, t.samples, t.tokens, t.credit, t.tokens
    FROM runs_logentry e CROSS JOIN runs_machinetotal t WHERE e.run_id = t.run_id AND e.run_id = %s ORDER BY e.id, t.id
"""
TOTALS = """
    UPDATE runs_machinetotal SET samples = samples * %s, tokens = tokens * %s, credit = credit * %s, rounds = %s,
    person_rounds = person_rounds * %s, last_step = %s WHERE run_id = %s
"""


@dataclass
class Crew:
    """The run's machines. In every step, each contributes the same number of samples, in the order of the data."""

    run: Run
    machines: list[Machine]
    sizes: list[int]  # samples of each shard

    @property
    def batch(self) -> int:
        return UNIT * len(self.machines)

    def units(self, step: int) -> Iterator[Unit]:
        """Yield one unit per machine, shard after shard and epoch after epoch."""
        each = self.sizes[0]
        for slot in range(len(self.machines)):
            whole, start = divmod((step - 1) * self.batch + slot * UNIT, each)
            epoch, shard = divmod(whole, len(self.sizes))
            yield Unit(epoch, shard, start, start + UNIT)


def long_run(run: Run, *, steps: int, machines: int, shards: int = 32) -> Crew:
    _recipe(run, steps, machines)
    crew = Crew(run, _machines(run, machines), _shards(run, shards))
    digest = "0" * 64
    for first in range(1, steps + 1, AT_ONCE):
        digest = _entries(crew, range(first, min(first + AT_ONCE, steps + 1)), digest)
    _ledger(crew, steps)
    _coverage(crew, steps)
    _pages(crew, steps)
    Head.objects.filter(run=run).update(index=steps, step=steps, digest=digest, void_rounds=steps // VOIDED)
    return crew


def _recipe(run: Run, steps: int, machines: int) -> None:
    known = run.parsed_recipe
    assert isinstance(known, CausalLM)
    sizes = {"micro_batch": UNIT, "target_batch": UNIT * machines, "target_steps": 2 * steps}
    model = msgspec.structs.replace(known.model, context=CONTEXT)
    run.recipe = encode_recipe(msgspec.structs.replace(known, model=model, **sizes)).decode()
    run.elements = ELEMENTS
    run.save(update_fields=["recipe", "elements"])


def _machines(run: Run, number: int) -> list[Machine]:
    people = Person.objects.bulk_create(
        Person(username=f"hand {run.slug} {place}", password="!") for place in range(-(-2 * number // 3))
    )
    keys = random.Random(run.slug)
    return Machine.objects.bulk_create(
        Machine(person=people[place % len(people)], name=f"machine {place}", public_key=keys.randbytes(32))
        for place in range(number)
    )


def _shards(run: Run, number: int) -> list[int]:
    Shard.objects.filter(dataset=run.dataset).delete()
    Shard.objects.bulk_create(
        Shard(dataset=run.dataset, position=place, digest=f"{place:064x}", tokens=SHARD_TOKENS)
        for place in range(number)
    )
    Dataset.objects.filter(pk=run.dataset_id).update(tokens=number * SHARD_TOKENS)
    return [samples_in(SHARD_TOKENS, CONTEXT)] * number


def _entries(crew: Crew, steps: range, previous: str) -> str:
    key, begun, sealed = site_key(), timezone.now() - timedelta(days=30), list[Entry]()
    entries = []
    for step in steps:
        record = _record(crew, step, previous)
        sealed.append(seal(key, record))
        previous = digest_of(sealed[-1])
        at = begun + timedelta(seconds=60 * step)
        facts = {name: getattr(record, name) for name in ("index", "step", "loss", "tokens", "samples", "exact")}
        rest = {"peers": len(crew.machines), "duration_s": 55.0, "attempts": 1, "state_digest": f"{step:016x}"}
        entries.append(LogEntry(run=crew.run, at=at, digest=previous, **facts, **rest))
    stored = LogEntry.objects.bulk_create(entries)
    SealedRecord.objects.bulk_create(
        SealedRecord(
            entry=entry, payload=one.head.payload, signature=one.head.signature, contributions=one.contributions
        )
        for entry, one in zip(stored, sealed, strict=True)
    )
    return previous


def _record(crew: Crew, step: int, previous: str) -> Record:
    grid = grid_of(ELEMENTS)
    parts = tuple(
        _contribution(machine, slot, unit)
        for slot, (machine, unit) in enumerate(zip(crew.machines, crew.units(step), strict=True))
    )
    spans = tuple(
        SpanEntry(
            span=span, first=span, stop=span + 1, attempt=1, reducer=PeerId("0e" * 16), root=f"{step:064x}",
            sum_squares=1.0 + step,
        )
        for span in range(min(2, grid.chunks))
    )  # fmt: skip
    return whole(
        run=crew.run.run_id,
        index=step,
        step=step,
        fence=1,
        attempt=1,
        round=step,
        previous=previous,
        elements=ELEMENTS,
        chunk_elements=grid.chunk_elements,
        codec="fp16",
        spans=spans,
        scalars=SCALARS,
        contributions=parts,
        loss=3.0 + 5.0 / step**0.5 + step % 7 / 100,
        tokens=sum(part.tokens for part in parts),
        samples=sum(part.samples for part in parts),
        exact=True,
    )


def _contribution(machine: Machine, slot: int, unit: Unit) -> Contribution:
    tokens = CONTEXT * unit.samples
    return Contribution(
        peer=machine.peer_id,
        person=machine.person.username,
        machine=machine.name,
        slot=slot,
        accumulator=AccumulatorId(machine.peer_id[::-1]),
        units=(unit,),
        weight=tokens,
        credit=tokens * ELEMENTS,
        samples=unit.samples,
        tokens=tokens,
        included=(ChunkRange(0, grid_of(ELEMENTS).chunks),),
        codec="fp16",
    )


def _ledger(crew: Crew, steps: int) -> None:
    """Write each machine's totals for one step. The database derives all the ledger rows from them."""
    counted: set[int] = set()
    totals = []
    for machine in crew.machines:
        amounts = {"samples": UNIT, "tokens": CONTEXT * UNIT, "credit": CONTEXT * UNIT * ELEMENTS}
        is_first = machine.person_id not in counted
        counted.add(machine.person_id)
        totals.append(
            MachineTotal(run=crew.run, machine=machine, person=machine.person, person_rounds=int(is_first), **amounts)
        )
    MachineTotal.objects.bulk_create(totals)
    run = crew.run.pk.hex if connection.vendor == "sqlite" else crew.run.pk
    with connection.cursor() as cursor:
        cursor.execute(LEDGER, [run])
        cursor.execute(TOTALS, [steps, steps, steps, steps, steps, steps, run])


def _coverage(crew: Crew, steps: int) -> None:
    """Mark shards as used, one after another: all of them completely, except the last."""
    each, used = crew.sizes[0], steps * crew.batch
    whole, rest = divmod(used, each)
    ends = [each] * whole + ([rest] if rest else [])
    places = [divmod(place, len(crew.sizes)) for place in range(len(ends))]
    marked = zip(places, ends, strict=True)
    facts = [({"run": crew.run, "epoch": epoch, "shard": shard}, end) for (epoch, shard), end in marked]
    Coverage.objects.bulk_create((Coverage(**place, ranges=[[0, end]]) for place, end in facts), batch_size=1000)
    LeaseMark.objects.bulk_create((LeaseMark(**place, mark=end) for place, end in facts), batch_size=1000)


def _pages(crew: Crew, steps: int) -> None:
    run, places = crew.run, range(SNAPSHOTS_EVERY, steps + 1, SNAPSHOTS_EVERY)
    measured = {"heldout_loss": 3.5, "is_stored": False}
    digests = dict(LogEntry.objects.filter(run=run, index__in=places).values_list("index", "digest"))
    Snapshot.objects.bulk_create(
        Snapshot(
            run=run,
            index=at,
            step=at,
            digest=digests[at],
            state_digest=f"{at:016x}",
            file=f"{at:064x}",
            size=1,
            **measured,
        )
        for at in places
    )
    kinds = ((JOINED, "joined"), (VOIDED, "void"), (1, "step"))
    lines = [(kind, step) for every, kind in kinds for step in range(every, steps + 1, every)]
    kept = [(kind, step) for kind, step in lines if kind != "step" or step > steps - 64]
    ActivityLine.objects.bulk_create(ActivityLine(run=run, kind=kind, text=f"{kind} {step}") for kind, step in kept)
    done = list(accumulate(3 for _ in crew.machines))
    shown = {"role": "trainer", "state": "ready", "samples_per_s": 2.0}
    members = [
        {"peer": machine.peer_id, "name": machine.person.username, "done": samples, **shown}
        for machine, samples in zip(crew.machines, done, strict=True)
    ]
    Presence.objects.update_or_create(run=run, defaults={"phase": "accumulate", "members": members})

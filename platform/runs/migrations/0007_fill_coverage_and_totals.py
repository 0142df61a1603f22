"""Coverage from the records of runs begun before, totals from their ledger; old step lines go, void rounds are counted.

Memory holds the ranges and totals of one run, never its records or ledger rows.
"""

from bisect import bisect_left, bisect_right
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
from django.db import migrations

MOST = 2**63 - 1
STEPS_KEPT = 64


class Part(msgspec.Struct):
    units: list[tuple[int, int, int, int]] = []


class Record(msgspec.Struct):
    """What is read of a record of version 1: epoch, shard, start, stop of its units."""

    contributions: list[Part]


def add_range(ranges: list[list[int]], start: int, stop: int) -> None:
    """As runs.ledger.records had it when this was written."""
    first = bisect_left(ranges, start, key=lambda known: known[1])
    behind = bisect_right(ranges, stop, key=lambda known: known[0])
    if first < behind:
        start, stop = min(start, ranges[first][0]), max(stop, ranges[behind - 1][1])
    ranges[first:behind] = [[start, stop]]


def fill_coverage(apps: Any, run: Any) -> None:
    held: dict[tuple[int, int], list[list[int]]] = {}
    records = apps.get_model("runs", "LogEntry").objects.filter(run=run).order_by("index").values_list("record", flat=True)
    for payload in records.iterator(chunk_size=100):
        for part in msgspec.json.decode(bytes(payload), type=Record).contributions:
            for epoch, shard, start, stop in part.units:
                add_range(held.setdefault((epoch, shard), []), start, stop)
    Coverage = apps.get_model("runs", "Coverage")
    rows = (Coverage(run=run, epoch=epoch, shard=shard, ranges=ranges) for (epoch, shard), ranges in sorted(held.items()))
    Coverage.objects.bulk_create(rows, batch_size=1000)


def fill_totals(apps: Any, run: Any) -> None:
    MachineTotal = apps.get_model("runs", "MachineTotal")
    names = ("entry", "step", "machine", "person", "samples", "tokens", "credit")
    rows = apps.get_model("runs", "LedgerEntry").objects.filter(run=run).order_by("pk").values_list(*names)
    held: dict[Any, Any] = {}
    # Rows of an entry were written together, so they lie together.
    for _, group in groupby(rows.iterator(chunk_size=10_000), key=itemgetter(0)):
        counted: set[int] = set()
        for _, step, machine, person, samples, tokens, credit in group:
            total = held.get(machine)
            if total is None:
                total = held[machine] = MachineTotal(run=run, machine_id=machine, person_id=person)
            total.samples += samples
            total.tokens += tokens
            total.credit = min(MOST, total.credit + credit)
            total.rounds += 1
            total.person_rounds += person not in counted
            total.last_step = step
            counted.add(person)
    MachineTotal.objects.bulk_create(held.values(), batch_size=1000)


def fill_happenings(apps: Any, run: Any) -> None:
    happenings = apps.get_model("runs", "Happening").objects.filter(run=run)
    apps.get_model("runs", "Head").objects.filter(run=run).update(void_rounds=happenings.filter(kind="void").count())
    steps = happenings.filter(kind="step")
    oldest = list(steps.order_by("-pk").values_list("pk", flat=True)[STEPS_KEPT : STEPS_KEPT + 1])
    if oldest:
        steps.filter(pk__lte=oldest[0]).delete()


def fill(apps: Any, schema_editor: Any) -> None:
    for run in apps.get_model("runs", "Run").objects.only("pk"):
        fill_coverage(apps, run)
        fill_totals(apps, run)
        fill_happenings(apps, run)


class Migration(migrations.Migration):
    dependencies = [("runs", "0006_coverage_totals_sealed")]

    operations = [migrations.RunPython(fill)]

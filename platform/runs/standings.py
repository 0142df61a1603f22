"""Who has given how much: read from the ledger and from nothing else.

The ledger of a long run has millions of rows, and a page looks every second. Rows are only ever added, and those of a
run by one host at a time, so each process sums every row once and then reads what came behind it.
"""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, TypeVar
from uuid import UUID

from accounts.models import Machine, Person
from runs.models import LedgerEntry, Run

Key = TypeVar("Key")

MOST = 256  # runs whose sums are kept
BARS, BAR_STEPS = 12, 5  # of the small picture of what somebody gave lately: bars at most, and steps in each


class Hand(NamedTuple):
    """One row of the leaderboard. Equal samples share a rank."""

    rank: int
    name: str
    samples: int
    tokens: int
    rounds: int
    machines: int


class MachineHand(NamedTuple):
    """One machine's row."""

    rank: int
    name: str
    machine: str
    samples: int
    tokens: int
    rounds: int


class Totals(NamedTuple):
    """All rows together."""

    people: int
    machines: int
    samples: int
    tokens: int


class Place(NamedTuple):
    """Where somebody stands. `short`: samples that are missing to be level with the next rank; None at the top."""

    rank: int
    next_rank: int
    short: int | None


class Lately(NamedTuple):
    """What people gave in the last `steps` steps, in samples: sums of equal stretches by name, oldest first."""

    steps: int
    given: dict[str, list[int]]


@dataclass
class Sum:
    """Of somebody's rows, or of a machine's."""

    samples: int = 0
    tokens: int = 0
    rounds: int = 0
    newest: int = 0  # the entry that was counted last

    def add(self, entry: int, samples: int, tokens: int) -> None:
        """One row; a round counts once however many machines one has in it."""
        self.samples += samples
        self.tokens += tokens
        self.rounds += entry != self.newest
        self.newest = entry


@dataclass
class Sums:
    """Of one run."""

    people: dict[int, Sum] = field(default_factory=dict)
    machines: dict[UUID, Sum] = field(default_factory=dict)
    owners: dict[UUID, int] = field(default_factory=dict)  # whose a machine is
    read: int = 0  # the ledger's row up to which this is true
    lock: Lock = field(default_factory=Lock)


_kept: dict[UUID, Sums] = {}


def sums(run: Run) -> Sums:
    """The run's ledger, summed up to now."""
    if run.pk not in _kept and len(_kept) >= MOST:
        _kept.clear()
    kept = _kept.setdefault(run.pk, Sums())
    with kept.lock:
        behind = LedgerEntry.objects.filter(run=run, pk__gt=kept.read).order_by("pk")
        rows = behind.values_list("pk", "entry", "person", "machine", "samples", "tokens")
        for row, entry, person, machine, samples, tokens in rows.iterator(chunk_size=10_000):
            kept.people.setdefault(person, Sum()).add(entry, samples, tokens)
            kept.machines.setdefault(machine, Sum()).add(entry, samples, tokens)
            kept.owners[machine] = person
            kept.read = row
    return kept


def totals(run: Run) -> Totals:
    """What everybody gave."""
    known = sums(run)
    with known.lock:
        given = list(known.people.values())
        machines = len(known.machines)
    samples, tokens = sum(one.samples for one in given), sum(one.tokens for one in given)
    return Totals(people=len(given), machines=machines, samples=samples, tokens=tokens)


def leaderboard(run: Run, *, offset: int = 0, limit: int = 10) -> list[Hand]:
    """People by samples."""
    known = sums(run)
    with known.lock:
        shown = _ranked(known.people)[offset : offset + limit]
        owners = list(known.owners.values())
    people = Person.objects.in_bulk([key for _, key, _ in shown])
    return [
        Hand(rank, people[key].username, given.samples, given.tokens, given.rounds, owners.count(key))
        for rank, key, given in shown
    ]


def machine_board(run: Run, *, offset: int = 0, limit: int = 10) -> list[MachineHand]:
    """Machines by samples."""
    known = sums(run)
    with known.lock:
        shown = _ranked(known.machines)[offset : offset + limit]
    machines = Machine.objects.select_related("person").in_bulk([key for _, key, _ in shown])
    return [
        MachineHand(rank, machines[key].person.username, machines[key].name, given.samples, given.tokens, given.rounds)
        for rank, key, given in shown
    ]


def place_of(run: Run, person: Person) -> Place | None:
    """Where somebody stands among the people of a run; None without a sample."""
    known = sums(run)
    with known.lock:
        given = {key: one.samples for key, one in known.people.items()}
    if person.pk not in given:
        return None
    own, ascending = given[person.pk], sorted(given.values())
    first_above = bisect_right(ascending, own)
    rank = len(ascending) - first_above + 1
    if rank == 1:
        return Place(1, 1, None)
    above = ascending[first_above]
    return Place(rank, len(ascending) - bisect_right(ascending, above) + 1, above - own)


def lately(run: Run, names: Collection[str]) -> Lately:
    """Of the named people. Bounded: the last sixty steps."""
    last = run.head.index
    stretch = max(1, -(-min(last, BARS * BAR_STEPS) // BARS))
    newest = (last - 1) // stretch
    oldest = max(0, newest - BARS + 1)
    given = {name: [0] * (newest - oldest + 1) for name in names}
    recent = LedgerEntry.objects.filter(entry__run=run, entry__index__gt=oldest * stretch, entry__index__lte=last)
    rows = recent.filter(person__username__in=names).order_by()
    for name, index, samples in rows.values_list("person__username", "entry__index", "samples"):
        given[name][(index - 1) // stretch - oldest] += samples
    return Lately(last - oldest * stretch, given)


def _ranked(known: dict[Key, Sum]) -> list[tuple[int, Key, Sum]]:
    """Rank, key and sum, most samples first; among equals whoever gave first."""
    ordered = sorted(known.items(), key=lambda row: -row[1].samples)
    ranked: list[tuple[int, Key, Sum]] = []
    for place, (key, given) in enumerate(ordered, start=1):
        is_level = bool(ranked) and ranked[-1][2].samples == given.samples
        ranked.append((ranked[-1][0] if is_level else place, key, given))
    return ranked

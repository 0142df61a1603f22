"""Which samples are whose: exact data accounting in units (rule 11).

A unit is fresh, leased to one accumulator, or settled. Fresh units are dealt from the shard that is least used, so
that an epoch goes through all shards at once. Nothing is leased above the marks that the database holds.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.records import Unit

GIVE_UP = 3  # times a unit may come back as non-finite before it is left out


class LeaseBook(Struct):
    """All leases of a run. `sizes` are samples per shard; positions are in the shard's order of the epoch."""

    sizes: tuple[int, ...]
    unit_samples: int
    epoch: int = 0
    granted: dict[tuple[int, int], int] = field(default_factory=dict)
    reserved: dict[tuple[int, int], int] = field(default_factory=dict)
    returned: list[Unit] = field(default_factory=list)
    orphans: list[Unit] = field(default_factory=list)  # under the marks after a restart, not claimed yet
    held: dict[AccumulatorId, set[Unit]] = field(default_factory=dict)
    failures: dict[Unit, int] = field(default_factory=dict)
    lost_samples: int = 0  # samples of units that will never be in an update

    def grant(self, accumulator: AccumulatorId, samples: int) -> tuple[Unit, ...]:
        """Lease about `samples` samples: returned units first, then fresh ones below the marks."""
        units: list[Unit] = []
        while samples > 0:
            unit = self.returned.pop(0) if self.returned else self._fresh()
            if unit is None:
                break
            units.append(unit)
            samples -= unit.samples
        if units:
            self.held.setdefault(accumulator, set()).update(units)
        return tuple(units)

    def _fresh(self) -> Unit | None:
        epoch = self.epoch
        open_shards = [s for s, size in enumerate(self.sizes) if self.granted.get((epoch, s), 0) < size]
        if not open_shards:
            self.epoch += any(self.sizes)
            return self._fresh() if any(self.sizes) else None
        shard = min(open_shards, key=lambda s: (self.granted.get((epoch, s), 0) / self.sizes[s], s))
        start = self.granted.get((epoch, shard), 0)
        stop = min(start + self.unit_samples, self.sizes[shard])
        if stop > self.reserved.get((epoch, shard), 0):
            return None
        self.granted[epoch, shard] = stop
        return Unit(epoch, shard, start, stop)

    def wanted_marks(self, ahead: int) -> tuple[Mark, ...]:
        """Marks to raise so that about `ahead` samples can be granted; empty while half of that can, in each shard."""
        whole = max(sum(self.sizes), 1)
        left = whole - sum(self.granted.get((self.epoch, shard), 0) for shard in range(len(self.sizes)))
        marks, low = [], False
        for epoch in range(self.epoch, self.epoch + (1 if left > ahead else 2)):
            for shard, size in enumerate(self.sizes):
                # In proportion to its size, as it is dealt: else the largest shard would run dry with the others full.
                each = -(-ahead * size // (whole * self.unit_samples)) * self.unit_samples
                granted, reserved = (book.get((epoch, shard), 0) for book in (self.granted, self.reserved))
                low = low or min(size, granted + (each + 1) // 2) > reserved
                if min(size, granted + each) > reserved:
                    marks.append(Mark(epoch, shard, min(size, granted + each)))
        return tuple(marks) if low else ()

    def raise_marks(self, marks: Iterable[Mark]) -> None:
        """The database holds these marks now."""
        for mark in marks:
            place = mark.epoch, mark.shard
            self.reserved[place] = max(mark.mark, self.reserved.get(place, 0))

    def holds(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> bool:
        """Whether all of these are leased to this accumulator."""
        return self.held.get(accumulator, set()).issuperset(units)

    def claim(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> bool:
        """After a restart the holder says what it holds (rule 11). False where a unit is somebody else's or settled."""
        mine = self.held.get(accumulator, set())
        unknown = sorted(set(units).difference(mine))
        orphans = self.orphans
        for unit in unknown:
            rest = _without(orphans, unit) if unit.samples <= self.unit_samples else None
            if rest is None:
                return False
            orphans = rest
        self.orphans = orphans
        if unknown:
            self.held.setdefault(accumulator, set()).update(unknown)
        return True

    def settle(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> None:
        """The units are in a committed update; they are never leased again."""
        held = self.held.get(accumulator, set())
        held.difference_update(units)
        if not held:
            self.held.pop(accumulator, None)

    def take_back(self, accumulator: AccumulatorId, units: Iterable[Unit] | None = None) -> int:
        """Leases end (all of the accumulator's, or those named); how many samples came back."""
        held = self.held.get(accumulator, set())
        back = sorted(held if units is None else held.intersection(units))
        self.settle(accumulator, back)
        self.returned.extend(back)
        self.returned.sort()
        return sum(unit.samples for unit in back)

    def failed(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> None:
        """Units whose gradient was not finite come back, until they have failed too often."""
        for unit in sorted(self.held.get(accumulator, set()).intersection(units)):
            self.failures[unit] = self.failures.get(unit, 0) + 1
            if self.failures[unit] < GIVE_UP:
                self.take_back(accumulator, [unit])
            else:
                self.settle(accumulator, [unit])
                self.lost_samples += unit.samples

    def release_orphans(self) -> int:
        """Units nobody claimed within the grace come back."""
        back = [piece for orphan in self.orphans for piece in _cut(orphan, self.unit_samples)]
        self.orphans = []
        self.returned.extend(back)
        self.returned.sort()
        return sum(unit.samples for unit in back)


def restored(sizes: Sequence[int], unit_samples: int, marks: Iterable[Mark], settled: Iterable[Unit]) -> LeaseBook:
    """The book of a restarted coordinator: what is under the marks and not settled is orphaned until claimed."""
    book = LeaseBook(tuple(sizes), unit_samples)
    used: dict[tuple[int, int], list[Unit]] = {}
    for unit in settled:
        used.setdefault((unit.epoch, unit.shard), []).append(unit)
    for mark in marks:
        place = mark.epoch, mark.shard
        book.granted[place] = book.reserved[place] = mark.mark
        gaps = _gaps(sorted(used.get(place, [])), mark.mark)
        book.orphans.extend(Unit(*place, start, stop) for start, stop in gaps)
    while any(sizes) and all(book.granted.get((book.epoch, shard), 0) >= size for shard, size in enumerate(sizes)):
        book.epoch += 1
    return book


def _gaps(used: Sequence[Unit], stop: int) -> list[tuple[int, int]]:
    gaps, position = [], 0
    for unit in used:
        if unit.start > position:
            gaps.append((position, unit.start))
        position = max(position, unit.stop)
    if position < stop:
        gaps.append((position, stop))
    return gaps


def _without(ranges: Sequence[Unit], unit: Unit) -> list[Unit] | None:
    """The ranges with `unit` cut out, or None where no single range holds all of it."""
    for i, whole in enumerate(ranges):
        same_shard = (whole.epoch, whole.shard) == (unit.epoch, unit.shard)
        if same_shard and whole.start <= unit.start < unit.stop <= whole.stop:
            left = Unit(whole.epoch, whole.shard, whole.start, unit.start)
            right = Unit(whole.epoch, whole.shard, unit.stop, whole.stop)
            return [*ranges[:i], *(piece for piece in (left, right) if piece.samples), *ranges[i + 1 :]]
    return None


def _cut(unit: Unit, samples: int) -> list[Unit]:
    return [
        Unit(unit.epoch, unit.shard, start, min(start + samples, unit.stop))
        for start in range(unit.start, unit.stop, samples)
    ]

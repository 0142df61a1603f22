"""Which samples are whose: exact data accounting in units (rule 11).

A unit is fresh, leased to one accumulator, or settled. Fresh units are dealt from the shard that is least used, so
that an epoch goes through all shards at once. Where data come from several sources, each has epochs of its own, and the
one that is furthest behind its weight is dealt from. Nothing is leased above the marks that the database holds.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain

from msgspec import Struct, field

from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.log.records import Unit

GIVE_UP = 3  # times a unit may come back as non-finite before it is left out


class Source(Struct):
    """Shards of which each is dealt once an epoch."""

    shards: tuple[int, ...]
    weight: float = 1.0  # of all that is dealt; 0: nothing is
    epoch: int = 0
    deck: list[tuple[float, int]] = field(default_factory=list)  # a heap: part used of each open shard of the epoch
    turn: float = 0.0  # samples dealt since the weights are these, by weight


class LeaseBook(Struct):
    """All leases of a run. `sizes` are samples per shard; positions are in the shard's order of the epoch."""

    sizes: tuple[int, ...]
    unit_samples: int
    sources: list[Source] = field(default_factory=list)  # where none is named, all shards are one
    granted: dict[tuple[int, int], int] = field(default_factory=dict)
    reserved: dict[tuple[int, int], int] = field(default_factory=dict)
    returned: list[Unit] = field(default_factory=list)  # a heap: the first goes out first
    orphans: list[Unit] = field(default_factory=list)  # under the marks after a restart, not claimed yet; in order
    held: dict[AccumulatorId, set[Unit]] = field(default_factory=dict)
    held_samples: dict[AccumulatorId, int] = field(default_factory=dict)  # their sum
    failures: dict[Unit, int] = field(default_factory=dict)
    lost_samples: int = 0  # samples of units that will never be in an update

    def __post_init__(self) -> None:
        self.sources = self.sources or [Source(tuple(range(len(self.sizes))))]

    @property
    def weights(self) -> tuple[float, ...]:
        """Of the sources, where there are several."""
        return tuple(source.weight for source in self.sources) if len(self.sources) > 1 else ()

    def mix(self, weights: Sequence[float]) -> None:
        """From now on the sources are dealt from by these weights; what was dealt before is not made up for."""
        for source, weight in zip(self.sources, weights, strict=True):
            source.weight, source.turn = weight, 0.0

    def grant(self, accumulator: AccumulatorId, samples: int) -> tuple[Unit, ...]:
        """Lease about `samples` samples: returned units first, then fresh ones below the marks."""
        units: list[Unit] = []
        while samples > 0:
            unit = heappop(self.returned) if self.returned else self._fresh()
            if unit is None:
                break
            units.append(unit)
            samples -= unit.samples
        self._hold(accumulator, units)
        return tuple(units)

    def _hold(self, accumulator: AccumulatorId, units: Sequence[Unit]) -> None:
        if units:
            self.held.setdefault(accumulator, set()).update(units)
            more = sum(unit.samples for unit in units)
            self.held_samples[accumulator] = self.held_samples.get(accumulator, 0) + more

    def outstanding(self, accumulator: AccumulatorId) -> int:
        """Units that this accumulator holds, computed or not."""
        return len(self.held.get(accumulator, ()))

    def _fresh(self) -> Unit | None:
        """Of the source that is furthest behind; where its marks are used up, of the next: that evens out later."""
        for source in sorted((each for each in self.sources if each.weight), key=lambda each: each.turn):
            if (unit := self._fresh_of(source)) is not None:
                source.turn += unit.samples / source.weight
                return unit
        return None

    def _fresh_of(self, source: Source) -> Unit | None:
        if not source.deck and not self._open_epoch(source):
            return None
        _, shard = source.deck[0]
        place, size = (source.epoch, shard), self.sizes[shard]
        start = self.granted.get(place, 0)
        stop = min(start + self.unit_samples, size)
        if stop > self.reserved.get(place, 0):
            return None
        self.granted[place] = stop
        if stop < size:
            heapreplace(source.deck, (stop / size, shard))
        else:
            heappop(source.deck)
        return Unit(source.epoch, shard, start, stop)

    def _open_epoch(self, source: Source) -> bool:
        """Deal from the present epoch, or the next where that is used up. False where there are no samples at all."""
        if not any(self.sizes[shard] for shard in source.shards):
            return False
        while not source.deck:
            used = {shard: self.granted.get((source.epoch, shard), 0) for shard in source.shards}
            source.deck = [(used[s] / self.sizes[s], s) for s in source.shards if used[s] < self.sizes[s]]
            source.epoch += not source.deck
        heapify(source.deck)
        return True

    def wanted_marks(self, ahead: int) -> tuple[Mark, ...]:
        """Marks to raise so that about `ahead` samples can be granted; empty while half of that can, in each shard."""
        together = sum(source.weight for source in self.sources)
        dealt_from = [source for source in self.sources if source.weight]
        found = [self._marks_of(each, math.ceil(ahead * each.weight / together)) for each in dealt_from]
        return tuple(mark for marks, _ in found for mark in marks) if any(low for _, low in found) else ()

    def _marks_of(self, source: Source, ahead: int) -> tuple[list[Mark], bool]:
        """Marks to raise, and whether one has to be by now."""
        whole = max(sum(self.sizes[shard] for shard in source.shards), 1)
        left = whole - sum(self.granted.get((source.epoch, shard), 0) for shard in source.shards)
        marks, low = [], False
        for epoch in range(source.epoch, source.epoch + (1 if left > ahead else 2)):
            for shard in source.shards:
                size = self.sizes[shard]
                # In proportion to its size, as it is dealt: else the largest shard would run dry with the others full.
                each = -(-ahead * size // (whole * self.unit_samples)) * self.unit_samples
                granted, reserved = (book.get((epoch, shard), 0) for book in (self.granted, self.reserved))
                low = low or min(size, granted + (each + 1) // 2) > reserved
                if min(size, granted + each) > reserved:
                    marks.append(Mark(epoch, shard, min(size, granted + each)))
        return marks, low

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
        orphans = list(self.orphans) if unknown else self.orphans
        for unit in unknown:
            if unit.samples > self.unit_samples or not _cut_out(orphans, unit):
                return False
        self.orphans = orphans
        self._hold(accumulator, unknown)
        return True

    def mark_used(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> None:
        """The units are in a committed update; they are never leased again."""
        held = self.held.get(accumulator, set())
        ending = held.intersection(units)
        if not ending:
            return
        held -= ending
        self.held_samples[accumulator] -= sum(unit.samples for unit in ending)
        if not held:
            del self.held[accumulator], self.held_samples[accumulator]

    def take_back(self, accumulator: AccumulatorId, units: Iterable[Unit] | None = None) -> int:
        """Leases end (all of the accumulator's, or those named); how many samples came back."""
        held = self.held.get(accumulator, set())
        back = sorted(held if units is None else held.intersection(units))
        self.mark_used(accumulator, back)
        for unit in back:
            heappush(self.returned, unit)
        return sum(unit.samples for unit in back)

    def failed(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> list[Unit]:
        """Units whose gradient was not finite come back, until they have failed too often: those that are left out."""
        left_out = []
        for unit in sorted(self.held.get(accumulator, set()).intersection(units)):
            self.failures[unit] = self.failures.get(unit, 0) + 1
            if self.failures[unit] < GIVE_UP:
                self.take_back(accumulator, [unit])
            else:
                self.mark_used(accumulator, [unit])
                self.lost_samples += unit.samples
                left_out.append(unit)
        return left_out

    def release_orphans(self) -> int:
        """Units nobody claimed within the grace come back."""
        back = [piece for orphan in self.orphans for piece in _cut(orphan, self.unit_samples)]
        self.orphans = []
        self.returned.extend(back)
        heapify(self.returned)
        return sum(unit.samples for unit in back)


def restored(
    sizes: Sequence[int],
    unit_samples: int,
    marks: Iterable[Mark],
    settled: Iterable[Unit],
    left_out: Sequence[Unit] = (),
    *,
    sources: Sequence[Source] = (),
) -> LeaseBook:
    """The book of a restarted coordinator: what is under the marks and not settled is orphaned until claimed.

    `settled`, and what is left out for ever, are units, or ranges of them, of all epochs in any order.
    """
    book = LeaseBook(tuple(sizes), unit_samples, list(sources), lost_samples=sum(unit.samples for unit in left_out))
    used: dict[tuple[int, int], list[Unit]] = {}
    for unit in chain(settled, left_out):
        used.setdefault((unit.epoch, unit.shard), []).append(unit)
    for mark in sorted(marks, key=lambda mark: (mark.epoch, mark.shard)):
        place = mark.epoch, mark.shard
        book.granted[place] = book.reserved[place] = mark.mark
        gaps = _gaps(sorted(used.get(place, [])), mark.mark)
        book.orphans.extend(Unit(*place, start, stop) for start, stop in gaps)
    for source in book.sources:
        used_up = [shard for shard in source.shards if sizes[shard]]
        while used_up and all(book.granted.get((source.epoch, shard), 0) >= sizes[shard] for shard in used_up):
            source.epoch += 1
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


def _cut_out(ranges: list[Unit], unit: Unit) -> bool:
    """Cut `unit` out of the ordered ranges. False, and nothing is changed, where no single range holds all of it."""
    at = bisect_right(ranges, (unit.epoch, unit.shard, unit.start), key=_place) - 1
    if at < 0:
        return False
    whole = ranges[at]
    if (whole.epoch, whole.shard) != (unit.epoch, unit.shard) or not unit.start < unit.stop <= whole.stop:
        return False
    left = Unit(whole.epoch, whole.shard, whole.start, unit.start)
    right = Unit(whole.epoch, whole.shard, unit.stop, whole.stop)
    ranges[at : at + 1] = [piece for piece in (left, right) if piece.samples]
    return True


def _place(unit: Unit) -> tuple[int, int, int]:
    return unit.epoch, unit.shard, unit.start


def _cut(unit: Unit, samples: int) -> list[Unit]:
    return [
        Unit(unit.epoch, unit.shard, start, min(start + samples, unit.stop))
        for start in range(unit.start, unit.stop, samples)
    ]

"""Exact accounting of the data, in leased units of samples (rule 11).

A unit is fresh, leased to one accumulator, or settled. Each accumulator has its own shards, so that its machine
downloads few of them. Near the end of an epoch, accumulators share the remaining shards. Units come from the source
that is furthest behind its weight, and only from positions below the marks in the database.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

from msgspec import Struct, field

from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages.to_peer import MOST_COMING

SHARDS_AHEAD = 2  # shards of each source that an accumulator owns in advance
GIVE_UP = 3  # leave out a unit once its gradient has been non-finite this many times, for two people


class Source(Struct):
    """A data source: a set of shards. Each shard is leased once per epoch."""

    shards: tuple[int, ...]
    weight: float = 1.0  # relative to the other sources; 0 to lease no samples
    epoch: int = 0
    left: int = 0  # samples not yet leased in the epoch; also 0 before it begins
    waiting: dict[int, None] = field(default_factory=dict)  # shards without an owner; the last one is assigned next
    begun: set[int] = field(default_factory=set)  # shards with an owner and samples left
    own: dict[AccumulatorId, list[int]] = field(default_factory=dict)  # each accumulator's shards, in order
    turn: float = 0.0  # samples leased since the weights last changed, divided by the weight


class LeaseBook(Struct):
    """All of a run's leases. `sizes`: samples per shard. A unit's positions refer to its shard's order in its epoch."""

    sizes: tuple[int, ...]
    unit_samples: int
    sources: list[Source] = field(default_factory=list)  # without named sources, all shards form one
    granted: dict[tuple[int, int], int] = field(default_factory=dict)
    reserved: dict[tuple[int, int], int] = field(default_factory=dict)
    returned: list[Unit] = field(default_factory=list)  # a heap: smallest unit leased first
    orphans: list[Unit] = field(default_factory=list)  # ascending; maybe leased before a restart, not yet claimed
    held: dict[AccumulatorId, set[Unit]] = field(default_factory=dict)
    held_samples: dict[AccumulatorId, int] = field(default_factory=dict)
    failures: dict[Unit, Counter[str]] = field(default_factory=dict)  # by person
    lost_samples: int = 0  # samples in units that no update will include

    def __post_init__(self) -> None:
        self.sources = self.sources or [Source(tuple(range(len(self.sizes))))]

    @property
    def weights(self) -> tuple[float, ...]:
        """The sources' weights, empty if there is only one source."""
        return tuple(source.weight for source in self.sources) if len(self.sources) > 1 else ()

    def mix(self, weights: Sequence[float]) -> None:
        """Use new source weights from now on, without compensating for earlier leases."""
        for source, weight in zip(self.sources, weights, strict=True):
            source.weight, source.turn = weight, 0.0

    def grant(self, accumulator: AccumulatorId, samples: int) -> tuple[Unit, ...]:
        """Lease about `samples` samples: first returned units, then fresh units below the marks."""
        units: list[Unit] = []
        while samples > 0:
            unit = heappop(self.returned) if self.returned else self._fresh(accumulator)
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
        """Return how many units are leased to the accumulator now, including those already computed."""
        return len(self.held.get(accumulator, ()))

    def _fresh(self, accumulator: AccumulatorId) -> Unit | None:
        """Return a fresh unit below the lease marks, if possible from the source furthest behind its weight."""
        for source in sorted((each for each in self.sources if each.weight), key=lambda each: each.turn):
            if (unit := self._fresh_of(source, accumulator)) is not None:
                source.turn += unit.samples / source.weight
                return unit
        return None

    def _fresh_of(self, source: Source, accumulator: AccumulatorId) -> Unit | None:
        if not self._begin_epoch(source) or (shard := self._dealt_from(source, accumulator)) is None:
            return None
        start = self.granted.get((source.epoch, shard), 0)
        stop = min(start + self.unit_samples, self.sizes[shard])
        self.granted[source.epoch, shard] = stop
        source.left -= stop - start
        if stop == self.sizes[shard]:
            source.begun.discard(shard)
        return Unit(source.epoch, shard, start, stop)

    def _dealt_from(self, source: Source, accumulator: AccumulatorId) -> int | None:
        """Return the shard to lease from: one of the accumulator's own, or else the begun one with most samples left.

        Return None if none of these shards has a unit below the marks.
        """
        for shard in source.own.get(accumulator, ()):
            if self._may_deal(source.epoch, shard):
                return shard
        own = self._own(source, accumulator)
        for shard in own:
            if self._may_deal(source.epoch, shard):
                return shard
        ready = (shard for shard in source.begun if self._may_deal(source.epoch, shard))
        found = max(ready, key=lambda shard: (self._rest(source.epoch, shard), -shard), default=None)
        if found is not None and not own:
            own.append(found)
        return found

    def _may_deal(self, epoch: int, shard: int) -> bool:
        start, size = self.granted.get((epoch, shard), 0), self.sizes[shard]
        return start < size and min(start + self.unit_samples, size) <= self.reserved.get((epoch, shard), 0)

    def _begin_epoch(self, source: Source) -> bool:
        """Begin the source's next epoch if the current one is used up. Return False if the source has no samples."""
        if source.left:
            return True
        if not any(self.sizes[shard] for shard in source.shards):
            return False
        while not source.left:
            rest = {shard: self._rest(source.epoch, shard) for shard in source.shards}
            source.left = sum(rest.values())
            source.epoch += not source.left
            begun = sorted((shard for shard in rest if rest[shard]), key=lambda shard: rest[shard] == self.sizes[shard])
            source.waiting, source.begun, source.own = dict.fromkeys(begun[::-1]), set(), {}
        return True

    def _rest(self, epoch: int, shard: int) -> int:
        return self.sizes[shard] - self.granted.get((epoch, shard), 0)

    def _rest_of(self, source: Source, shards: Iterable[int]) -> int:
        return sum([self._rest(source.epoch, shard) for shard in shards])

    def _own(self, source: Source, accumulator: AccumulatorId, samples: int = 1) -> list[int]:
        """Return the accumulator's shards. First assign it free ones until its shards have `samples` samples left."""
        own = self._unfinished(source, accumulator)
        rest = self._rest_of(source, own)
        while rest < samples and source.waiting:
            own.append(source.waiting.popitem()[0])
            rest += self._rest(source.epoch, own[-1])
        source.begun.update(own)
        source.own[accumulator] = own
        return own

    def _unfinished(self, source: Source, accumulator: AccumulatorId) -> list[int]:
        return [shard for shard in source.own.get(accumulator, ()) if self._rest(source.epoch, shard)]

    def coming(self, accumulator: AccumulatorId, machines: int) -> tuple[int, ...]:
        """Return the shards that the accumulator's next units will come from, soonest first.

        If enough shards are free for all `machines`, assign it some in advance.
        """
        coming: list[tuple[float, int]] = []  # samples leased from all sources until the shard is needed, and the shard
        for source in (each for each in self.sources if each.weight):
            own = self._unfinished(source, accumulator)
            for ahead in range(1, SHARDS_AHEAD + 1):
                if own and len(own) <= ahead and len(source.waiting) >= ahead * machines:
                    own = self._own(source, accumulator, self._rest_of(source, own) + 1)
            before = 0
            for shard in own[: SHARDS_AHEAD + 1]:
                coming.append((before / source.weight, shard))
                before += self._rest(source.epoch, shard)
        return tuple(shard for _, shard in sorted(coming, key=lambda each: each[0])[:MOST_COMING])

    def marked(self, accumulator: AccumulatorId) -> int:
        """Return how many samples in the accumulator's shards are below the marks and not yet leased."""
        places = [(source.epoch, shard) for source in self.sources for shard in source.own.get(accumulator, ())]
        return sum(self.reserved.get(place, 0) - self.granted.get(place, 0) for place in places)

    def wanted_marks(self, ahead: Mapping[AccumulatorId, int]) -> tuple[Mark, ...]:
        """Return lease marks that let each accumulator lease about `ahead` more samples.

        Return none if the current marks allow half of that.
        """
        together = sum(source.weight for source in self.sources)
        marks, low = list[Mark](), False
        for source in self.sources:
            self._forget_others(source, ahead)
            if source.weight and self._begin_epoch(source):
                parts = {name: math.ceil(samples * source.weight / together) for name, samples in ahead.items()}
                for epoch, shard, samples in self._needed(source, parts):
                    size, granted = self.sizes[shard], self.granted.get((epoch, shard), 0)
                    whole, half = (
                        -(-part // self.unit_samples) * self.unit_samples for part in (samples, (samples + 1) // 2)
                    )
                    reserved = self.reserved.get((epoch, shard), 0)
                    low = low or min(size, granted + half) > reserved
                    if (mark := min(size, granted + whole)) > reserved:
                        marks.append(Mark(epoch, shard, mark))
        return tuple(marks) if low else ()

    def _needed(self, source: Source, ahead: Mapping[AccumulatorId, int]) -> Iterator[tuple[int, int, int]]:
        """Yield (epoch, shard, samples needed): accumulators' shards, then other begun ones, then the next epoch."""
        needed: dict[int, int] = {}
        lacking = 0
        for name, samples in ahead.items():
            left = samples
            for shard in self._own(source, name, samples):
                part = min(left, self._rest(source.epoch, shard) - needed.get(shard, 0))
                needed[shard] = needed.get(shard, 0) + part
                left -= part
            lacking += left
        for shard in sorted(source.begun) if lacking else ():
            part = min(lacking, self._rest(source.epoch, shard) - needed.get(shard, 0))
            needed[shard] = needed.get(shard, 0) + part
            lacking -= part
        yield from ((source.epoch, shard, part) for shard, part in needed.items() if part)
        each = -(-lacking // max(len(ahead), 1))
        for shard in source.shards:
            if lacking <= 0:
                return
            if part := min(each, self.sizes[shard]):
                yield source.epoch + 1, shard, part
                lacking -= part

    def _forget_others(self, source: Source, present: Mapping[AccumulatorId, int]) -> None:
        for name in [name for name in source.own if name not in present and name not in self.held]:
            shared = {shard for other, shards in source.own.items() if other != name for shard in shards}
            left = source.begun.intersection(source.own.pop(name)) - shared
            source.begun -= left
            source.waiting.update(dict.fromkeys(sorted(left)))

    def raise_marks(self, marks: Iterable[Mark]) -> None:
        for mark in marks:
            place = mark.epoch, mark.shard
            self.reserved[place] = max(mark.mark, self.reserved.get(place, 0))

    def holds(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> bool:
        return self.held.get(accumulator, set()).issuperset(units)

    def claim(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> bool:
        """Accept units that a peer held before this host took over (rule 11). Return False if any is already taken."""
        mine = self.held.get(accumulator, set())
        unknown = sorted(set(units).difference(mine))
        orphans = list(self.orphans) if unknown else self.orphans
        for unit in unknown:
            if unit.samples > self.unit_samples or not _cut_out(orphans, unit):
                return False
        self.orphans = orphans
        self._hold(accumulator, unknown)
        self._take_up(accumulator, unknown)
        return True

    def _take_up(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> None:
        """Give an accumulator the shards that it had begun before this host took over."""
        for source in self.sources:
            if self._begin_epoch(source):
                begun = {unit.shard for unit in units if unit.epoch == source.epoch and unit.shard in source.waiting}
                source.own.setdefault(accumulator, []).extend(sorted(begun))
                source.begun |= begun
                for shard in begun:
                    del source.waiting[shard]

    def mark_used(self, accumulator: AccumulatorId, units: Iterable[Unit]) -> None:
        """End an accumulator's leases on units without returning the units to the pool, for instance after a commit."""
        held = self.held.get(accumulator, set())
        ending = held.intersection(units)
        if not ending:
            return
        held -= ending
        self.held_samples[accumulator] -= sum(unit.samples for unit in ending)
        if not held:
            del self.held[accumulator], self.held_samples[accumulator]

    def take_back(self, accumulator: AccumulatorId, units: Iterable[Unit] | None = None) -> int:
        """End an accumulator's leases on all its units, or on those given, and return these units to the pool.

        Return how many samples they contain.
        """
        held = self.held.get(accumulator, set())
        back = sorted(held if units is None else held.intersection(units))
        self.mark_used(accumulator, back)
        for unit in back:
            heappush(self.returned, unit)
        return sum(unit.samples for unit in back)

    def failed(
        self, accumulator: AccumulatorId, units: Iterable[Unit], person: str, *, is_alone: bool = False
    ) -> list[Unit]:
        """Take back units whose gradients were non-finite. Return those that failed too often to be leased again.

        The machines of one person do not suffice for that, unless only this person is training (`is_alone`).
        """
        left_out = []
        for unit in sorted(self.held.get(accumulator, set()).intersection(units)):
            failures = self.failures.setdefault(unit, Counter())
            failures[person] = min(failures[person] + 1, GIVE_UP)
            if failures.total() < GIVE_UP or (len(failures) < 2 and not is_alone):
                self.take_back(accumulator, [unit])
            else:
                self.mark_used(accumulator, [unit])
                self.lost_samples += unit.samples
                left_out.append(unit)
        return left_out

    def release_orphans(self) -> int:
        """Put units that no peer claimed in time back into the pool. Return how many samples they contain."""
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
    """Return a restarted coordinator's lease book. Unsettled units below the marks are orphans until peers claim them.

    `settled` and `left_out` contain units or ranges of units from all epochs, in any order.
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
    """Cut `unit` out of the ordered ranges. If no single range contains it, change nothing and return False."""
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

"""The share program of rule 26 as arrays: minimize T such that the shares sum to 1 and every row holds.

A row is `base + sum(slope * share) <= capacity * T`, in bytes and bytes per second. A row for a peer's upload, download
or both (duplex) contains that peer's share. A row for a pair of peers contains up to two shares, and a row for a
household the shares of its members. The rows of a relay that forwards traffic also contain the shares of the reducers
at either end of that traffic. A pair without a limit has no row, and so uses no memory.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan.parties import NO_LIMITS, Limits, Pair, Party, Table, Vector, check_numbers, loads_of

MOST_PAIRS = 1 << 16  # most pairs with a limit or a relay: all pairs among 256 peers

Indices = NDArray[np.int64]
Entry = tuple[int, int, float]  # number of a row or party, number of a share, slope


class Kind(StrEnum):
    UP = "up"
    DOWN = "down"
    DUPLEX = "duplex"
    HOUSEHOLD = "household"
    PAIR = "pair"


class Row(Struct, frozen=True):
    """The kind of limit that a row states, and its peers: one, a pair (sender first), or a household's members."""

    kind: Kind
    peers: tuple[PeerId, ...]


class Program(Struct, frozen=True, eq=False):
    """A program's rows, and its entries (row, share, slope), sorted by row and share, without duplicates."""

    reducers: tuple[PeerId, ...]  # sorted by id; shares are in the same order
    is_volunteer: NDArray[np.bool_]
    rows: tuple[Row, ...]
    base: Vector
    capacity: Vector
    row: Indices
    share: Indices
    slope: Vector

    def times(self, shares: Vector) -> Vector:
        """Return how many seconds each row's bytes take with these shares."""
        return (self.base + _summed(self.row, self.slope * shares[self.share], len(self.base))) / self.capacity

    def duration_s(self, shares: Vector) -> float:
        return float(self.times(shares).max(initial=0.0))


class _Side(Struct, eq=False):
    """The bytes that each party sends or receives: its `base`, plus `slope * share` for each of its entries."""

    base: Vector
    party: Indices
    share: Indices
    slope: Vector

    def __add__(self, other: "_Side") -> "_Side":
        return _Side(
            self.base + other.base,
            np.concatenate([self.party, other.party]),
            np.concatenate([self.share, other.share]),
            np.concatenate([self.slope, other.slope]),
        )


class _Builder:
    """Collects a program's rows, and their entries as lists of arrays."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.base: list[Vector] = [np.zeros(0)]
        self.capacity: list[Vector] = [np.zeros(0)]
        self.entries: list[tuple[Indices, Indices, Vector]] = []

    def add(self, rows: Sequence[Row], capacity: Vector, of: Indices, side: _Side) -> None:
        """Add rows. Each row sums the bytes of some parties. `of`: each party's number among these rows, or -1."""
        first, is_in = len(self.rows), of >= 0
        numbers = of[side.party]
        kept = numbers >= 0
        self.rows.extend(rows)
        self.base.append(_summed(of[is_in], side.base[is_in], len(rows)))
        self.capacity.append(capacity)
        self.entries.append((first + numbers[kept], side.share[kept], side.slope[kept]))

    def of_each(self, kind: Kind, capacity: Vector, table: Table, side: _Side) -> None:
        """Add a row for each party with a finite capacity of this kind. `side`: the bytes that must fit."""
        limited = np.flatnonzero(np.isfinite(capacity) & (capacity > 0))
        of = np.full(len(capacity), -1)
        of[limited] = np.arange(len(limited))
        self.add([Row(kind, (table.peers[i],)) for i in limited], capacity[limited], of, side)

    def pairs(self, pairs: Sequence[tuple[Row, float, list[tuple[int, float]]]]) -> None:
        """Add rows for pairs of peers, given as (row, capacity, [(share, slope)]). Their base is 0."""
        first = len(self.rows)
        self.rows.extend(row for row, _, _ in pairs)
        self.base.append(np.zeros(len(pairs)))
        self.capacity.append(np.array([capacity for _, capacity, _ in pairs], dtype=np.float64))
        flat = [(first + number, *entry) for number, (_, _, found) in enumerate(pairs) for entry in found]
        self.entries.append(_columns(flat))

    def program(self, table: Table) -> Program:
        """Build the program. Entries with the same row and share are summed in the order in which they were added."""
        row, share, slope = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        reducers = np.flatnonzero(table.reduces)
        places, inverse = np.unique(row * max(1, len(reducers)) + share, return_inverse=True)
        summed = _summed(inverse, slope, len(places))
        places, summed = places[summed != 0], summed[summed != 0]
        return Program(
            tuple(table.peers[i] for i in reducers),
            table.is_volunteer[reducers],
            tuple(self.rows),
            np.concatenate(self.base),
            np.concatenate(self.capacity),
            places // max(1, len(reducers)),
            places % max(1, len(reducers)),
            summed,
        )


def program_of(parties: Sequence[Party], down_bytes: float, limits: Limits = NO_LIMITS) -> Program:
    """Return a round's program.

    Raises ValueError if `Table` does, if a limit fails `check_numbers`, or if there are more than `MOST_PAIRS` pairs.
    """
    check_numbers(np.array([down_bytes, *limits.pairs.values(), *limits.households.values()], dtype=np.float64))
    if len(limits.pairs) + len(limits.forwarded) > MOST_PAIRS:
        raise ValueError(f"more than {MOST_PAIRS} pairs")
    table = Table(parties)
    loads = loads_of(table, table.up_bytes, table.waits, table.reduces, down_bytes)
    reducers = np.flatnonzero(table.reduces)
    shares = np.arange(len(reducers))
    forwarded = _forwarded(table, down_bytes, limits)
    up = _Side(loads.up_base, reducers, shares, loads.up_slope[reducers]) + forwarded
    down = _Side(loads.down_base, reducers, shares, loads.down_slope[reducers]) + forwarded
    builder = _Builder()
    builder.of_each(Kind.UP, table.upload, table, up)
    builder.of_each(Kind.DOWN, table.download, table, down)
    builder.of_each(Kind.DUPLEX, table.duplex, table, up + down)
    builder.add(*_households(table, limits), up)
    builder.pairs(list(_pairs(table, down_bytes, limits)))
    return builder.program(table)


def _summed(places: Indices, values: Vector, length: int) -> Vector:
    return np.bincount(places, values, minlength=length).astype(np.float64)


def _columns(entries: Sequence[Entry]) -> tuple[Indices, Indices, Vector]:
    numbers = np.array([entry[:2] for entry in entries], dtype=np.int64).reshape(-1, 2).T
    return numbers[0], numbers[1], np.array([entry[2] for entry in entries], dtype=np.float64)


def _between(table: Table, down_bytes: float, share_of: dict[int, int], pair: Pair) -> list[tuple[int, float]]:
    """Return the traffic from a pair's sender to its receiver as (share, bytes if that share were the whole vector)."""
    sender, receiver = (table.place.get(peer) for peer in pair)
    if sender is None or receiver is None or sender == receiver:
        return []
    carried = []
    if receiver in share_of and table.up_bytes[sender]:
        carried.append((share_of[receiver], float(table.up_bytes[sender])))
    if sender in share_of and table.waits[receiver]:
        carried.append((share_of[sender], down_bytes))
    return carried


def _share_of(table: Table) -> dict[int, int]:
    return {int(party): share for share, party in enumerate(np.flatnonzero(table.reduces))}


def _forwarded(table: Table, down_bytes: float, limits: Limits) -> _Side:
    """Return the bytes that relays forward for other peers. The caller counts them as both upload and download."""
    share_of, entries = _share_of(table), []
    for pair, relay in sorted(limits.forwarded.items()):
        if relay in table.place and relay not in pair:
            carried = _between(table, down_bytes, share_of, pair)
            entries += [(table.place[relay], share, slope) for share, slope in carried]
    return _Side(np.zeros(len(table.peers)), *_columns(entries))


def _pairs(table: Table, down_bytes: float, limits: Limits) -> Iterator[tuple[Row, float, list[tuple[int, float]]]]:
    """Yield a row for each direct link that has a limit and carries traffic."""
    share_of = _share_of(table)
    for pair, capacity in sorted(limits.pairs.items()):
        carried = _between(table, down_bytes, share_of, pair)
        if carried and capacity > 0 and pair not in limits.forwarded:
            yield Row(Kind.PAIR, pair), capacity, carried


def _households(table: Table, limits: Limits) -> tuple[list[Row], Vector, Indices]:
    """Return a row for each household with a joint limit, and the row number of each party."""
    known = sorted({p.household for p in table.parties if p.household and limits.households.get(p.household, 0) > 0})
    number = {name: i for i, name in enumerate(known)}
    members: list[list[PeerId]] = [[] for _ in known]
    for party in table.parties:
        if party.household in number:
            members[number[party.household]].append(party.peer)
    of = np.array([number.get(party.household, -1) for party in table.parties], dtype=np.int64)
    capacity = np.array([limits.households[name] for name in known], dtype=np.float64)
    return [Row(Kind.HOUSEHOLD, tuple(peers)) for peers in members], capacity, of

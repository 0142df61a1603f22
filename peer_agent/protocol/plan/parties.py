"""A plan's input: the round's participants and their links' capacities, in bytes and bytes per second."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.identifiers import PeerId

MOST_PARTIES = 1 << 16  # most slots in a plan
LARGEST = 1e18  # bytes, or bytes per second; positive numbers lie between 1 / LARGEST and LARGEST

Vector = NDArray[np.float64]
Flags = NDArray[np.bool_]
Pair = tuple[PeerId, PeerId]  # sender, receiver


class Party(Struct, frozen=True, kw_only=True):
    """A peer in the round, with the speeds that the plan may use. 0: not measured, or for `duplex_bps` no limit."""

    peer: PeerId
    up_bytes: float = 0.0  # size of the peer's encoded gradient; 0 if it contributes nothing
    receives: bool = False  # reducers send the averages to this peer: a replica or the log keeper
    is_awaited: bool = True  # the round waits until this peer has the averages; others catch up from the log
    may_reduce: bool = False
    is_volunteer: bool = False  # True for a trainer; in a tie, relays and auxiliaries get their part first
    upload_bps: float = 0.0
    download_bps: float = 0.0
    duplex_bps: float = 0.0  # upload and download combined, as on Wi-Fi
    household: str = ""  # peers that share a public address share its uplink


class Limits(Struct, frozen=True):
    """Limits on pairs of peers and on households. Peers outside the round are ignored. A limit of 0 is unknown."""

    pairs: dict[Pair, float] = {}  # limit on the direct link from one peer to another
    forwarded: dict[Pair, PeerId] = {}  # the relay that forwards for a pair without a direct link
    households: dict[str, float] = {}  # limit on the joint uplink


NO_LIMITS = Limits()


class Table:
    """The parties as arrays, sorted by id, so that the order of the input does not matter.

    Raises ValueError if an id occurs twice, if there are more than `MOST_PARTIES` parties, or if a size or speed fails
    `check_numbers`.
    """

    def __init__(self, parties: Sequence[Party]) -> None:
        self.parties = sorted(parties, key=lambda party: party.peer)
        self.peers = [party.peer for party in self.parties]
        self.place = {peer: i for i, peer in enumerate(self.peers)}
        _check(self.parties, len(self.place))
        numbers = [(p.up_bytes, p.upload_bps, p.download_bps, p.duplex_bps) for p in self.parties]
        flags = [(p.receives, p.receives and p.is_awaited, p.may_reduce, p.is_volunteer) for p in self.parties]
        columns = np.array(numbers, dtype=np.float64).reshape(-1, 4).T
        check_numbers(columns)
        self.receives, self.waits, self.reduces, self.is_volunteer = np.array(flags, dtype=bool).reshape(-1, 4).T
        self.up_bytes, upload, download, self.duplex = columns
        self.upload = of_kind(upload, self.is_volunteer)
        self.download = of_kind(download, self.is_volunteer)


def _check(parties: Sequence[Party], distinct: int) -> None:
    if distinct != len(parties):
        raise ValueError("a peer is there twice")
    if distinct > MOST_PARTIES:
        raise ValueError(f"more than {MOST_PARTIES} take part")


def check_numbers(numbers: Vector) -> None:
    """Raise ValueError unless every number is 0 or between 1 / LARGEST and LARGEST."""
    if not ((numbers == 0) | ((numbers >= 1 / LARGEST) & (numbers <= LARGEST))).all():
        raise ValueError("bytes and speeds are finite and not negative")


def of_kind(speeds: Vector, is_volunteer: Flags) -> Vector:
    """Replace each unmeasured speed with the slowest measured speed of its kind, or infinity if there is none.

    Trainers are one kind, and all other peers are the other.
    """
    filled = speeds.copy()
    for kind in (is_volunteer, ~is_volunteer):
        measured = speeds[kind & (speeds > 0)]
        filled[kind & (speeds <= 0)] = measured.min() if measured.size else np.inf
    return filled


def total(values: Vector) -> Vector:
    """Return the sum along the last axis, adding the values in order. NumPy's own order varies between builds."""
    if not values.shape[-1]:
        return np.zeros(values.shape[:-1])
    return np.cumsum(values, axis=-1)[..., -1]


class Loads(Struct, frozen=True, eq=False):
    """The bytes that each party sends and receives: `base + slope * (the party's own share)`. Shape (..., parties)."""

    up_base: Vector
    up_slope: Vector
    down_base: Vector
    down_slope: Vector


def loads_of(table: Table, up_bytes: Vector, waits: Flags, reduces: Flags, down_bytes: float) -> Loads:
    """Return the loads of rule 26, of shape (..., parties).

    `up_bytes`: each party's contribution. `waits`: parties that the round waits for. `reduces`: parties that reduce.
    `down_bytes`: the encoded size of the whole averaged vector.
    """
    arriving = total(up_bytes)[..., None]
    others = np.count_nonzero(table.receives) - table.receives
    noise = 1e-12 * (arriving + down_bytes * len(table.peers))

    def slope(value: Vector) -> Vector:
        return np.where(reduces & (np.abs(value) > noise), value, 0.0)  # a rounding error near 0 is no slope

    down_base = np.where(waits, down_bytes, 0.0)
    return Loads(up_bytes, slope(down_bytes * others - up_bytes), down_base, slope(arriving - up_bytes - down_base))

"""Compute the step times of many choices of contributors at once, using the closed form."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.plan.closed_form import least_time, lines
from peer_agent.protocol.plan.parties import Limits, Loads, Party, Table, Vector, loads_of, total

Codecs = NDArray[np.int64]  # each candidate's codec number, or -1 if left out. Shape (choices, candidates)


class Candidate(Struct, frozen=True):
    """A trainer that could contribute to the round."""

    party: Party
    samples_per_s: float  # 0 means not yet measured: use the slowest measured speed
    up_bytes: tuple[float, ...]  # encoded size by codec, preferred one first; replaces the party's `up_bytes`
    rounds_left_out: int = 0  # how many rounds in a row, up to the last, left the candidate out


class Comparison:
    """A comparison of possible contributors and codecs for a future round.

    Raises ValueError for duplicate ids and invalid numbers, as `Table` does.
    """

    def __init__(
        self, candidates: Sequence[Candidate], others: Sequence[Party], down_bytes: float, batch: int, staleness: int
    ) -> None:
        self.candidates = sorted(candidates, key=lambda candidate: candidate.party.peer)
        self.table = Table([*(candidate.party for candidate in candidates), *others])
        self.places = [self.table.place[candidate.party.peer] for candidate in self.candidates]
        self.down_bytes, self.batch, self.staleness = down_bytes, batch, staleness
        self.codecs = max(len(candidate.up_bytes) for candidate in candidates)
        speeds = np.array([candidate.samples_per_s for candidate in self.candidates])
        self.speeds = np.where(speeds > 0, speeds, min(speeds[speeds > 0], default=1.0))

    def narrow(self, limits: Limits) -> None:
        """Cap the link of each party that does not reduce at the sum of its pairs' limits.

        Skip directions in which a pair has no limit, and parties with forwarded pairs.
        """
        reducers = [self.table.peers[place] for place in np.flatnonzero(self.table.reduces)]
        forwarded = {peer for pair in limits.forwarded for peer in pair}
        for place in np.flatnonzero(~self.table.reduces) if limits.pairs else ():
            peer = self.table.peers[place]
            up = np.array([limits.pairs.get((peer, reducer), 0.0) for reducer in reducers])
            down = np.array([limits.pairs.get((reducer, peer), 0.0) for reducer in reducers])
            if peer not in forwarded and up.all():
                self.table.upload[place] = min(self.table.upload[place], total(up))
            if peer not in forwarded and down.all():
                self.table.download[place] = min(self.table.download[place], total(down))

    def own_times(self) -> Vector:
        """Return how many seconds each candidate's own link needs for each codec. A missing codec needs infinity."""
        table, most = self.table, self.codecs
        sizes = np.array([[*c.up_bytes, *[np.inf] * (most - len(c.up_bytes))] for c in self.candidates])
        upload = table.upload[self.places, None]
        up = np.divide(sizes, upload, out=np.where(np.isfinite(sizes), 0.0, np.inf), where=np.isfinite(upload))
        return np.asarray(np.maximum(up, self.arrival_times()[self.places, None]), dtype=np.float64)

    def arrival_times(self) -> Vector:
        """Return how many seconds each awaited party needs to download the averages, and 0 for other parties."""
        return np.where(self.table.waits, self.down_bytes / self.table.download, 0.0)

    def durations(self, found: Codecs) -> Vector:
        """Return the round's duration in seconds for each choice, if only the parties' own links limit the round."""
        up_bytes, waits = np.zeros((len(found), len(self.table.peers))), np.tile(self.table.waits, (len(found), 1))
        for column, (place, candidate) in enumerate(zip(self.places, self.candidates, strict=True)):
            codec = found[:, column]
            up_bytes[:, place] = np.where(codec >= 0, np.array(candidate.up_bytes)[codec], 0.0)
            waits[:, place] &= codec >= 0
        return _durations(self.table, loads_of(self.table, up_bytes, waits, self.table.reduces, self.down_bytes))

    def steps(self, found: Codecs, durations: Vector) -> Vector:
        """Return the seconds between steps for each choice. With staleness 1, computing and exchange overlap."""
        computing = self.batch / self.samples_per_s(found)
        return np.maximum(computing, durations) if self.staleness else computing + durations

    def samples_per_s(self, found: Codecs) -> Vector:
        return total(np.where(found >= 0, self.speeds, 0.0))


def _durations(table: Table, loads: Loads) -> Vector:
    """Return the duration of each choice's round in seconds, by the closed form.

    Each reducer has four rows: no bound, upload, download, and both together.
    """
    nothing, reduces = np.zeros_like(loads.up_base), table.reduces
    base = np.stack([nothing, loads.up_base, loads.down_base, loads.up_base + loads.down_base], axis=-1)
    slope = np.stack([nothing, loads.up_slope, loads.down_slope, loads.up_slope + loads.down_slope], axis=-1)
    infinite = np.full(len(table.peers), np.inf)
    duplex = np.where(table.duplex > 0, table.duplex, infinite)
    capacity = np.stack([infinite, table.upload, table.download, duplex], axis=-1)
    least_s = (base[:, ~reduces] / capacity[~reduces]).max(axis=(1, 2), initial=0.0)
    starts = capacity.shape[-1] * np.arange(np.count_nonzero(reduces))
    shape = (len(base), -1)
    rows = (base[:, reduces].reshape(shape), slope[:, reduces].reshape(shape), capacity[reduces].reshape(-1))
    return least_time(lines(starts, *rows, least_s))

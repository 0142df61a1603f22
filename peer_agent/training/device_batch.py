"""How many leased units a device computes in one pass: the largest number that is found, by trial, to pay.

A cut leaves the pass in hand undone, and an update waits for it: no more units than pay are worth that.
"""

MOST_UNITS = 64
TRIES = 3  # passes of a number of units, of which the fastest counts: the first of a size is slow, as are fetched data
GAIN = 1.1  # in samples per second, for twice as many units
LONGEST_S = 1.0  # that a pass may take with more than one unit, as far as one with fewer tells


class DeviceBatch:
    """`units`: of the next pass. The number doubles from 1 while that pays, and never grows again once it does not."""

    def __init__(self, most: int = 1) -> None:
        """`most`: 1 where there is nothing to win."""
        self.most = most
        self._found, self._alone = 1, 0
        self._rates: list[float] = []  # of passes with the number that is tried, in samples per second
        self._rate_before = 0.0  # with half as many units

    @property
    def units(self) -> int:
        """How many the device takes next."""
        return 1 if self._alone else self._found

    def took(self, units: int, samples: int, seconds: float) -> None:
        """A pass is done: of so many units, with so many samples."""
        self._alone = max(0, self._alone - 1)
        if units != self._found or self._found == self.most:
            return  # another number than is tried, or nothing left to try
        self._rates.append(samples / seconds)
        if len(self._rates) < TRIES:
            return
        rate, before = max(self._rates), self._rate_before
        self._rates, self._rate_before = [], rate
        if rate < GAIN * before:
            self._settle(self._found // 2)
        elif 2 * self._found > self.most or 2 * samples / rate > LONGEST_S:
            self._settle(self._found)
        else:
            self._found *= 2

    def fits(self, units: int) -> None:
        """Memory is too short for more than these in one pass; for less than one it may be computed in parts."""
        if units < self._found:
            self._settle(max(1, units))
        self.most = max(self._found, min(self.most, units))

    def was_not_finite(self, units: int) -> None:
        """A pass was not: where it had several units, each is computed alone once, to find those that are to blame."""
        self._alone = units if units > 1 else max(0, self._alone - 1)

    def _settle(self, units: int) -> None:
        self._found = self.most = units

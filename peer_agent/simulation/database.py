"""A virtual database with the site's rows, written in one transaction per commit and read back as bytes. It may fail,
lose answers or become unreachable. It accepts or rejects writes as `coordination.store` does (rule 3).
"""

import hashlib
import random
from bisect import bisect_left, bisect_right
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct
from msgspec.structs import replace

from peer_agent.protocol.coordinator.events import Mark, Target
from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.records import GENESIS, Entry, Record, Unit, digest_of, read_record, seal
from peer_agent.protocol.messages import Snapshot
from peer_agent.simulation.faults import NOBODY, Faults

CLAIM_S = 10.0  # the same as in `coordination.hosts.claims`
RENEW_S = 2.0

Fault = Literal["failed", "answer lost", "unknown and not written"]
Outcome = Literal["committed", "stale", "failed"]
Ranges = list[tuple[int, int]]
FAULTS: tuple[Fault, ...] = ("failed", "answer lost", "unknown and not written")


class FailureRates(Struct, frozen=True):
    failed: float = 0.0
    answer_lost: float = 0.0


class LedgerRow(Struct, frozen=True):
    """The credit for one contribution to a step."""

    index: int
    step: int
    person: str
    machine: str
    samples: int
    tokens: int
    credit: int
    weight: int


class Database:
    """One run's stored data: the log and its head, ledger, lease marks, coverage, snapshot and host claim."""

    def __init__(self, run: RunId, seed: int, failure_rates: FailureRates, faults: Faults | None = None) -> None:
        self.run = run
        self.key = Ed25519PrivateKey.from_private_bytes(seed.to_bytes(32, "big"))
        self.failure_rates = failure_rates
        self.chance = random.Random(f"database {seed}")
        self.faults = faults or Faults(seed)
        self.script: list[Fault] = []  # faults of the next writes
        self.back_at = 0.0  # the database is unreachable until this time
        self.fence = 0
        self.owner: tuple[object, float] = None, 0.0  # the host, and when its claim expires
        self.index = 0
        self.step = 0
        self.digest = GENESIS
        self.log: list[Entry] = []
        self.ledger: list[LedgerRow] = []
        self.marks: dict[tuple[int, int], int] = {}
        # By (epoch, shard): ranges of settled positions, sorted and merged
        self.coverage: dict[tuple[int, int], Ranges] = {}
        self.left_out: list[Unit] = []  # units that no update will ever contain
        self.snapshot = Snapshot(index=0, step=0, digest=GENESIS, state_digest="", file="0" * 64, size=0)
        self.back_to: Target | None = None  # the target of the organizer's rollback request
        self.rolled_back = 0  # index of the last rollback's entry
        self.records: list[Record] = []  # the decoded log, for observers; hosts do not read it
        self._decoded: dict[int, Record] = {}  # decoded records by the identity of their signed heads

    # --- claim

    def claim(self, owner: object = None, now: float = 0.0) -> int:
        """Give the run to a host and return the new fence, which makes the previous host stale."""
        self.fence += 1
        self.owner = owner, now + CLAIM_S
        return self.fence

    def renew(self, fence: int, now: float) -> bool:
        """Extend a host's claim, if the database can be reached. Return False if another host has the run."""
        if fence != self.fence:
            return False
        if self.answers(now):
            self.owner = self.owner[0], now + CLAIM_S
        return True

    def host_of_run(self, now: float) -> tuple[object, int] | None:
        """Return the host and fence of the claim in the database.

        Return None if the claim has expired or the database is unreachable. The host may have died a few seconds ago.
        """
        host, until = self.owner
        return (host, self.fence) if host is not None and until > now and self.answers(now) else None

    def answers(self, now: float) -> bool:
        return now >= self.back_at

    # --- writes

    def reserve(self, marks: tuple[Mark, ...]) -> None:
        """Raise lease marks. Marks are never lowered."""
        for mark in marks:
            place = mark.epoch, mark.shard
            self.marks[place] = max(mark.mark, self.marks.get(place, 0))

    def persist(self, record: Record, now: float = 0.0) -> tuple[Outcome, Entry | None]:
        """Store a record in one transaction.

        After a lost answer, return the outcome that the host learns by reading the head.
        """
        sealed = seal(self.key, record)
        fault = self._fault()
        if not self.answers(now) or fault == "failed":
            return "failed", None
        if fault == "unknown and not written" or not self._write(sealed):
            return self._decide(sealed, record)
        return "committed", self.log[-1]

    def _write(self, sealed: Entry) -> bool:
        """Write the head, log, ledger and coverage from signed bytes.

        Return False if the record does not directly follow the head.
        """
        record = read_record(sealed)
        step = self.step if record.kind == "rollback" else record.step - 1
        place = record.index - 1, step, record.previous, record.fence
        if place != (self.index, self.step, self.digest, self.fence):
            return False
        if record.kind == "rollback" and not self._go_back(record, digest_of(sealed)):
            return False
        self.index, self.step, self.digest = record.index, record.step, digest_of(sealed)
        self.log.append(sealed)
        self.records.append(record)
        self._decoded[id(sealed.head)] = record
        for c in record.contributions:
            row = LedgerRow(record.index, record.step, c.person, c.peer, c.samples, c.tokens, c.credit, c.weight)
            self.ledger.append(row)
            for unit in c.units:
                cover(self.coverage.setdefault((unit.epoch, unit.shard), []), unit.start, unit.stop)
        return True

    def _go_back(self, record: Record, digest: str) -> bool:
        """Carry out a rollback, and move the snapshot to the rollback's entry.

        Return False if the organizer has not requested this rollback.
        """
        target = self.back_to
        if target is None or record.restored is None or record.restored.index != target.index:
            return False
        self.back_to, self.rolled_back = None, record.index
        self.snapshot = replace(self.snapshot, index=record.index, step=target.step, digest=digest)
        return True

    def _decide(self, sealed: Entry, record: Record) -> tuple[Outcome, Entry | None]:
        if self.index >= record.index:
            written = self.log[record.index - 1]
            return ("committed", written) if digest_of(written) == digest_of(sealed) else ("stale", None)
        return "failed" if self.fence == record.fence else "stale", None

    def _fault(self) -> Fault | None:
        if self.script:
            return self.script.pop(0)
        for kind in FAULTS:
            if self.faults.strikes(kind, NOBODY, self.step + 1):
                return kind
        draw = self.chance.random()
        if draw < self.failure_rates.failed:
            return "failed"
        return "answer lost" if draw < self.failure_rates.failed + self.failure_rates.answer_lost else None

    # --- reads

    def settled(self) -> list[Unit]:
        """Return the positions that the log's updates have used, as units."""
        return [Unit(*place, *found) for place, ranges in sorted(self.coverage.items()) for found in ranges]

    def record_of(self, head: Signed) -> Record:
        """Return the record of a signed head in this log. It was decoded once, for all replicas."""
        return self._decoded[id(head)]


def cover(ranges: Ranges, start: int, stop: int) -> None:
    """Merge [start, stop) into sorted ranges that neither touch nor overlap."""
    first = bisect_left(ranges, start, key=lambda found: found[1])
    last = bisect_right(ranges, stop, key=lambda found: found[0])
    if first < last:
        start, stop = min(start, ranges[first][0]), max(stop, ranges[last - 1][1])
    ranges[first:last] = [(start, stop)]


def state_digest(log: str, *, spoiled_by: PeerId | None = None) -> str:
    """Return a made-up digest of the state after a log entry.

    A corrupt replica, named by `spoiled_by`, has a digest of its own.
    """
    return hashlib.sha256(f"{log} {spoiled_by}".encode()).hexdigest()[:16]

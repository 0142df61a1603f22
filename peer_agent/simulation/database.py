"""The virtual database: a run's head, log, lease marks and snapshot, and the claim of its host."""

import random
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.messages import Snapshot
from peer_agent.protocol.records import GENESIS, Record, Unit, digest_of, seal

Fault = Literal["failed", "answer lost", "unknown and not written"]


class Troubles(Struct, frozen=True):
    """How often a write fails, and how often its answer is lost."""

    failed: float = 0.0
    answer_lost: float = 0.0


class Database:
    """One run as it is stored. A write has the head's step and the newest fence, or it is stale (rule 3)."""

    def __init__(self, run: RunId, seed: int, troubles: Troubles) -> None:
        self.run = run
        self.key = Ed25519PrivateKey.from_private_bytes(seed.to_bytes(32, "big"))
        self.troubles = troubles
        self.chance = random.Random(f"database {seed}")
        self.script: list[Fault] = []  # what befalls the next writes
        self.fence = 0
        self.index = 0
        self.step = 0
        self.digest = GENESIS
        self.log: list[Signed] = []
        self.records: list[Record] = []
        self.marks: dict[tuple[int, int], int] = {}
        self.snapshot = Snapshot(index=0, step=0, digest=GENESIS, state_digest="", file="0" * 64, size=0)

    def claim(self) -> int:
        """A host takes the run; whoever had it before is stale from now on."""
        self.fence += 1
        return self.fence

    def reserve(self, marks: tuple[Mark, ...]) -> None:
        """Raise lease marks."""
        for mark in marks:
            place = mark.epoch, mark.shard
            self.marks[place] = max(mark.mark, self.marks.get(place, 0))

    def persist(self, record: Record) -> tuple[Literal["committed", "stale", "failed"], Signed | None]:
        """One transaction. Where its answer is lost, the host reads the head and decides, so that is no outcome."""
        fault = self._fault()
        if record.fence != self.fence:
            return "stale", None
        if fault in ("failed", "unknown and not written"):
            return "failed", None
        if (record.index, record.step, record.previous) != (self.index + 1, self.step + 1, self.digest):
            return "stale", None
        sealed = seal(self.key, record)
        self.log.append(sealed)
        self.records.append(msgspec.json.decode(sealed.payload, type=Record))
        self.index, self.step, self.digest = record.index, record.step, digest_of(sealed)
        return "committed", sealed

    def _fault(self) -> Fault | None:
        if self.script:
            return self.script.pop(0)
        draw = self.chance.random()
        if draw < self.troubles.failed:
            return "failed"
        return "answer lost" if draw < self.troubles.failed + self.troubles.answer_lost else None

    def settled(self) -> list[Unit]:
        """Units that are in the log."""
        return [unit for record in self.records for entry in record.contributions for unit in entry.units]

    def record_of(self, sealed: Signed) -> Record:
        """The record of a sealed entry of this log, without decoding it once more for each replica."""
        for at in range(len(self.log) - 1, -1, -1):
            if self.log[at] is sealed:
                return self.records[at]
        return msgspec.json.decode(sealed.payload, type=Record)

"""Tables of runs. A run is a replicated log: `LogEntry` is the log, `Head` its end, `Snapshot` where replicas begin."""

from runs.models.datasets import Dataset, Shard, Upload
from runs.models.ledger import LedgerEntry, MachineTotal
from runs.models.log import Coverage, Head, LeaseMark, LogEntry, SealedRecord
from runs.models.releases import HubAccount, NamedHand, Publication, Release
from runs.models.run import Happening, Invitation, Member, Run
from runs.models.snapshots import Snapshot
from runs.models.verification import RefusedSnapshot, RelayAddress, ReplayRequest, Verification

__all__ = [
    "Coverage",
    "Dataset",
    "Happening",
    "Head",
    "HubAccount",
    "Invitation",
    "LeaseMark",
    "LedgerEntry",
    "LogEntry",
    "MachineTotal",
    "Member",
    "NamedHand",
    "Publication",
    "RefusedSnapshot",
    "RelayAddress",
    "Release",
    "ReplayRequest",
    "Run",
    "SealedRecord",
    "Shard",
    "Snapshot",
    "Upload",
    "Verification",
]

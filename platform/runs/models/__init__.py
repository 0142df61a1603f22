"""Tables of runs. A run is a replicated log: `LogEntry` is the log, `Head` its end, `Snapshot` where replicas begin."""

from runs.models.datasets import Dataset, Shard, Upload
from runs.models.joining import JoinRequest
from runs.models.ledger import AveragedTotal, DailyTotal, LedgerEntry, MachineTotal
from runs.models.log import IN_MODEL, Coverage, Head, LeaseMark, LogEntry, SealedRecord
from runs.models.releases import HubAccount, NamedVolunteer, Publication, Release
from runs.models.roles import RunRole
from runs.models.run import ActivityLine, Invitation, Member, Run
from runs.models.snapshots import Snapshot
from runs.models.trials import Trial
from runs.models.verification import RefusedSnapshot, RelayAddress, ReplayRequest, Verification

__all__ = [
    "IN_MODEL",
    "ActivityLine",
    "AveragedTotal",
    "Coverage",
    "DailyTotal",
    "Dataset",
    "Head",
    "HubAccount",
    "Invitation",
    "JoinRequest",
    "LeaseMark",
    "LedgerEntry",
    "LogEntry",
    "MachineTotal",
    "Member",
    "NamedVolunteer",
    "Publication",
    "RefusedSnapshot",
    "RelayAddress",
    "Release",
    "ReplayRequest",
    "Run",
    "RunRole",
    "SealedRecord",
    "Shard",
    "Snapshot",
    "Trial",
    "Upload",
    "Verification",
]

"""Tables for runs. A run is a log of `LogEntry` rows. `Head` marks the log's end. Replicas start from a `Snapshot`."""

from runs.models.datasets import Dataset, Shard, Upload
from runs.models.log import (
    IN_MODEL,
    KEPT,
    AuditMark,
    AveragedTotal,
    Check,
    Coverage,
    DailyTotal,
    Head,
    LeaseMark,
    LedgerEntry,
    LogEntry,
    MachineTotal,
    SealedRecord,
)
from runs.models.releases import HubAccount, NamedVolunteer, Publication, Release, Trial
from runs.models.run import ActivityLine, Invitation, JoinRequest, Member, Run, RunRole
from runs.models.snapshots import Recheck, RefusedSnapshot, RelayAddress, ReplayRequest, Snapshot, Verification

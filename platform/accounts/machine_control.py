"""Instructions that owners give their machines, and the reports that machines send back."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone
from msgspec.structs import replace

from accounts.models import Machine, MachineControl, Person
from peer_agent.machine.resting import Rest
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.messages import Instructions, MachineReport

SPARED = timedelta(seconds=30)  # a repeat of the last report within this time is not written
MOST_CHANGED = 10_000  # limit on rows per query; other machines get instructions with their next report
FRESH = timedelta(seconds=150)  # a machine reports at least once a minute


class Control(NamedTuple):
    """A machine's instructions and its last report. `report` is None if the machine has not reported lately."""

    wanted: Instructions
    report: MachineReport | None

    @property
    def is_heard(self) -> bool:
        """True if the machine's last report confirms its current instructions."""
        return self.report is not None and self.report.revision >= self.wanted.revision

    @property
    def paused_until(self) -> datetime | None:
        """The time at which the pause ends, or None if the machine is not paused or only its owner can resume it."""
        until = self.wanted.pause_until if self.wanted.pause else 0
        return datetime.fromtimestamp(until, UTC) if until else None

    @property
    def rest(self) -> Rest:
        return Rest(self.report.why, self.report.detail) if self.report is not None else Rest()


NO_CONTROL = Control(Instructions(revision=0), None)


def control_of(machine: Machine) -> Control:
    row = MachineControl.objects.filter(machine=machine).first()
    return _control_in(row) if row is not None else NO_CONTROL


def controls_of(machines: Collection[Machine]) -> dict[UUID, Control]:
    rows = MachineControl.objects.filter(machine__in=[machine.pk for machine in machines])
    return {row.machine_id: _control_in(row) for row in rows}


def paused_in(run: RunId, owner: Person) -> tuple[Machine, Control] | None:
    """Return one of the owner's machines that is connected to the run but paused by the owner, and its `Control`.

    Return None if there is no such machine.
    """
    rows = MachineControl.objects.filter(machine__person=owner, reported_at__gte=timezone.now() - FRESH)
    for row in rows.select_related("machine"):
        control = _control_in(row)
        if control.wanted.pause and control.report is not None and control.report.run == run:
            return row.machine, control
    return None


def _control_in(row: MachineControl) -> Control:
    is_fresh = row.reported_at is not None and timezone.now() - row.reported_at <= FRESH
    return Control(wanted_in(row), _report_in(row) if is_fresh else None)


def wanted_in(row: MachineControl) -> Instructions:
    """Return a machine's current instructions.

    Once a pause is over, return instructions without it, under the next revision number. These are not stored.
    """
    try:
        said = msgspec.json.decode(row.instructions)
        wanted = msgspec.convert({"type": "Instructions", **said, "revision": row.revision}, Instructions)
    except (msgspec.DecodeError, TypeError):  # another version of the site wrote the row
        return Instructions(revision=row.revision)
    if wanted.pause and 0 < wanted.pause_until <= timezone.now().timestamp():
        return replace(wanted, pause=False, pause_until=0, revision=row.revision + 1)
    return wanted


def _report_in(row: MachineControl) -> MachineReport | None:
    try:
        return msgspec.json.decode(row.report, type=MachineReport)
    except msgspec.DecodeError:
        return None


def change(*, machine: Machine, to: Callable[[Instructions], Instructions]) -> Instructions:
    """Apply `to` to a machine's instructions, then store and return the result. It soon reaches the machine."""
    with transaction.atomic():
        MachineControl.objects.get_or_create(machine=machine)
        row = MachineControl.objects.select_for_update().get(machine=machine)
        before = wanted_in(row)
        wanted = replace(to(before), revision=before.revision + 1)
        row.instructions, row.revision, row.changed_at = _packed(wanted), wanted.revision, timezone.now()
        row.save(update_fields=["instructions", "revision", "changed_at"])
        return wanted


def _packed(wanted: Instructions) -> str:
    return msgspec.json.encode(wanted).decode()


class Taken(NamedTuple):
    """The instructions for a machine that has reported. `at` is the time of the report, for `forget_report`."""

    wanted: Instructions
    at: datetime


def take_report(*, machine_id: str, report: MachineReport, is_first: bool = False) -> Taken:
    """Store a machine's report and return the machine's instructions.

    `is_first` marks the first report on a connection, which is stored even if it equals the last one. Once the machine
    confirms one-time instructions (to finish or move), delete them, so that its next process does not repeat them.
    """
    row, _ = MachineControl.objects.get_or_create(machine_id=UUID(machine_id))
    wanted, now, packed = wanted_in(row), timezone.now(), msgspec.json.encode(report).decode()
    if not is_first and packed == row.report and row.reported_at is not None and now - row.reported_at < SPARED:
        return Taken(wanted, row.reported_at)
    own = MachineControl.objects.filter(machine=UUID(machine_id))
    own.update(report=packed, reported_at=now)
    if report.revision == wanted.revision and (wanted.finish or wanted.move_to):
        done = _packed(replace(wanted, finish=False, move_to=""))
        own.filter(revision=row.revision).update(instructions=done, revision=wanted.revision)
    return Taken(wanted, now)


def forget_report(*, machine_id: str, at: datetime) -> None:
    """Mark a machine as disconnected, unless it has reported on another connection since `at`."""
    MachineControl.objects.filter(machine=UUID(machine_id), reported_at=at).update(reported_at=None)


def changed_since(then: datetime) -> dict[str, Instructions]:
    """Return the instructions changed since `then`, keyed by the machine's id in protocol messages."""
    rows = MachineControl.objects.filter(changed_at__gte=then).order_by("-changed_at")[:MOST_CHANGED]
    return {row.machine_id.hex: wanted_in(row) for row in rows}

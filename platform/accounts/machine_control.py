"""What a person wants of their machines, and what these say about it."""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone
from msgspec.structs import replace

from accounts.models import Machine, MachineControl
from peer_agent.machine.resting import Rest
from peer_agent.protocol.messages import Instructions, MachineReport

SPARED = timedelta(seconds=30)  # in which the same is not written again
MOST_CHANGED = 10_000  # rows of one look; whoever is not among them hears of it with the next report
FRESH = timedelta(seconds=150)  # a machine says something at least once a minute


class Control(NamedTuple):
    """A machine's row in words of the protocol. `report`: None where it has said nothing, or long ago."""

    wanted: Instructions
    report: MachineReport | None

    @property
    def is_heard(self) -> bool:
        """Whether the machine, which is there, does what was asked last."""
        return self.report is not None and self.report.revision >= self.wanted.revision

    @property
    def rest(self) -> Rest:
        return Rest(self.report.why, self.report.detail) if self.report is not None else Rest()


NO_CONTROL = Control(Instructions(revision=0), None)


def control_of(machine: Machine) -> Control:
    row = MachineControl.objects.filter(machine=machine).first()
    return _control_in(row) if row is not None else NO_CONTROL


def controls_of(machines: Collection[Machine]) -> dict[UUID, Control]:
    """The same of several, in one query; those of which nothing was ever wanted are left out."""
    rows = MachineControl.objects.filter(machine__in=[machine.pk for machine in machines])
    return {row.machine_id: _control_in(row) for row in rows}


def _control_in(row: MachineControl) -> Control:
    is_fresh = row.reported_at is not None and timezone.now() - row.reported_at <= FRESH
    return Control(wanted_in(row), _report_in(row) if is_fresh else None)


def wanted_in(row: MachineControl) -> Instructions:
    """What the owner's pages have written."""
    try:
        said = msgspec.json.decode(row.instructions)
        return msgspec.convert({"type": "Instructions", **said, "revision": row.revision}, Instructions)
    except (msgspec.DecodeError, TypeError):  # as another version wrote it
        return Instructions(revision=row.revision)


def _report_in(row: MachineControl) -> MachineReport | None:
    try:
        return msgspec.json.decode(row.report, type=MachineReport)
    except msgspec.DecodeError:
        return None


def change(*, machine: Machine, to: Callable[[Instructions], Instructions]) -> Instructions:
    """Want something else of a machine, beginning with what is wanted now; it hears of it at once."""
    with transaction.atomic():
        MachineControl.objects.get_or_create(machine=machine)
        row = MachineControl.objects.select_for_update().get(machine=machine)
        wanted = replace(to(wanted_in(row)), revision=row.revision + 1)
        row.instructions, row.revision, row.changed_at = _packed(wanted), wanted.revision, timezone.now()
        row.save(update_fields=["instructions", "revision", "changed_at"])
        return wanted


def _packed(wanted: Instructions) -> str:
    return msgspec.json.encode(wanted).decode()


class Taken(NamedTuple):
    """What is wanted of a machine that has said something, and when that was, by which it can be forgotten."""

    wanted: Instructions
    at: datetime


def take_report(*, machine_id: str, report: MachineReport, is_first: bool = False) -> Taken:
    """Keep what a machine said; `is_first` on its link: then the same words of an older link are not these.

    What is to be done once is done by the process that has heard it, and is not asked of the next one.
    """
    row, _ = MachineControl.objects.get_or_create(machine_id=UUID(machine_id))
    wanted, now, packed = wanted_in(row), timezone.now(), msgspec.json.encode(report).decode()
    if not is_first and packed == row.report and row.reported_at is not None and now - row.reported_at < SPARED:
        return Taken(wanted, row.reported_at)
    own = MachineControl.objects.filter(machine=UUID(machine_id))
    own.update(report=packed, reported_at=now)
    if report.revision == row.revision and (wanted.finish or wanted.move_to):
        own.filter(revision=row.revision).update(instructions=_packed(replace(wanted, finish=False, move_to="")))
    return Taken(wanted, now)


def forget_report(*, machine_id: str, at: datetime) -> None:
    """The machine's link has ended, on which it said that; what it has said on another one since stays."""
    MachineControl.objects.filter(machine=UUID(machine_id), reported_at=at).update(reported_at=None)


def changed_since(then: datetime) -> dict[str, Instructions]:
    """What is wanted of machines of which something was wanted since, by their names on the wire."""
    rows = MachineControl.objects.filter(changed_at__gte=then).order_by("-changed_at")[:MOST_CHANGED]
    return {row.machine_id.hex: wanted_in(row) for row in rows}

"""Messages between a machine and its site on the control link. The machine speaks first."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from peer_agent.protocol.identifiers import Count, Medium, Run, Short, Small
from peer_agent.protocol.messages.base import Index, Message

MOST_HOURS, MOST_PROGRAMS = 42, 20  # most lines in a schedule, and most programs that take precedence
DAY_MINUTES = 24 * 60
LEAST_DUTY = 10  # percent


class Why(StrEnum):
    """The reason why a connected machine is not working."""

    WORKS = ""
    PAUSED = "paused"
    REFUSED = "refused"
    HOURS = "hours"
    TRAFFIC = "traffic"
    BATTERY = "battery"
    PROGRAM = "program"
    IN_USE = "in use"
    MEMORY = "memory"


class Blind(StrEnum):
    """A quantity that a machine cannot measure, so a limit on it has no effect there."""

    IDLE = "idle"
    BATTERY = "battery"


class Hours(Struct, frozen=True, array_like=True):
    """A weekly period, in minutes of a `day` (0: Monday). If `stop` is not after `first`, it ends the next day."""

    day: Annotated[int, Meta(ge=0, le=6)]
    first: Annotated[int, Meta(ge=0, lt=DAY_MINUTES)]
    stop: Annotated[int, Meta(gt=0, le=DAY_MINUTES)]


class OwnerLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources that a machine may use. 0 or empty means the limit set on the command line, if any."""

    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    duty_percent: Annotated[int, Meta(ge=LEAST_DUTY, le=100)] = 100  # percent of the time in which the machine computes
    memory_mb: Medium = 0
    disk_gb: Medium = 0
    up_kbps: Medium = 0  # thousands of bits per second
    down_kbps: Medium = 0
    month_gb: Medium = 0  # upload and download combined
    hours: Annotated[tuple[Hours, ...], Meta(max_length=MOST_HOURS)] = ()
    idle_minutes: Annotated[int, Meta(ge=0, le=DAY_MINUTES)] = 0  # work only if unused for this long; 0: always work
    pause_on_battery: bool = False
    programs: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=80)], ...], Meta(max_length=MOST_PROGRAMS)
    ] = ()


class Instructions(Message, frozen=True, kw_only=True):
    """The owner's settings. A higher `revision` replaces a lower one. `finish` and `move_to` (a run) apply once.

    `pause_until` is when the site will end the pause with a higher revision; 0 means that only the owner ends it.
    """

    revision: Count
    pause: bool = False
    pause_until: Medium = 0  # UTC seconds by the site's clock
    finish: bool = False
    move_to: Annotated[str, Meta(pattern="^[-a-z0-9_]{0,80}$")] = ""
    limits: OwnerLimits = OwnerLimits()


class MachineReport(Message, frozen=True, kw_only=True):
    """A machine's state under the latest instructions received. `revision` is -1 if it has received none.

    The machine sends a report after every change.
    """

    run: Run
    revision: Index = -1
    why: Why = Why.WORKS
    detail: Short = ""  # the program, number or time behind the reason
    could_not: Short = ""  # number of the error that kept the machine from joining the `move_to` run, or empty
    blind: Annotated[tuple[Blind, ...], Meta(max_length=8)] = ()
    month_bytes: Count = 0
    sent_bytes: Count = 0  # sent in this run by the current process; likewise `energy_wh`, an estimate
    energy_wh: Count = 0
    threads: Small = 0

"""Messages between a machine and its site about its owner's wishes, on the control link. The machine speaks first."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from peer_agent.protocol.identifiers import Count, Medium, Run, Short, Small
from peer_agent.protocol.messages.base import Index, Message

MOST_HOURS, MOST_PROGRAMS = 42, 20  # lines of a schedule, and programs that take precedence
DAY_MINUTES = 24 * 60
LEAST_DUTY = 10  # percent


class Why(StrEnum):
    """Why a connected machine does not work."""

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
    """Quantities that a machine cannot measure: a limit on one has no effect there."""

    IDLE = "idle"
    BATTERY = "battery"


class Hours(Struct, frozen=True, array_like=True):
    """From one minute of a day (0: Monday) to another, by the machine's clock. A `stop` not later is a day after."""

    day: Annotated[int, Meta(ge=0, le=6)]
    first: Annotated[int, Meta(ge=0, lt=DAY_MINUTES)]
    stop: Annotated[int, Meta(gt=0, le=DAY_MINUTES)]


class OwnerLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The resources that a machine may use. 0 and empty: the command line's value, or no limit without one."""

    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    duty_percent: Annotated[int, Meta(ge=LEAST_DUTY, le=100)] = 100  # of the time: the part in which it computes
    memory_mb: Medium = 0
    disk_gb: Medium = 0
    up_kbps: Medium = 0  # thousands of bits a second
    down_kbps: Medium = 0
    month_gb: Medium = 0  # up and down together
    hours: Annotated[tuple[Hours, ...], Meta(max_length=MOST_HOURS)] = ()
    idle_minutes: Annotated[int, Meta(ge=0, le=DAY_MINUTES)] = 0  # since its owner last used it; 0: it may always work
    pause_on_battery: bool = False
    programs: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=80)], ...], Meta(max_length=MOST_PROGRAMS)
    ] = ()


class Instructions(Message, frozen=True, kw_only=True):
    """The owner's wishes. A greater `revision` replaces them. `finish` and `move_to` (a run's slug) are done once."""

    revision: Count
    pause: bool = False
    finish: bool = False
    move_to: Annotated[str, Meta(pattern="^[-a-z0-9_]{0,80}$")] = ""
    limits: OwnerLimits = OwnerLimits()


class MachineReport(Message, frozen=True, kw_only=True):
    """A machine's response to the last instructions it received (-1: none). Sent whenever that changes."""

    run: Run
    revision: Index = -1
    why: Why = Why.WORKS
    detail: Short = ""  # the program, figure or time that the reason is about
    could_not: Short = ""  # an error's number, if it could not join the run it was to move to
    blind: Annotated[tuple[Blind, ...], Meta(max_length=8)] = ()
    month_bytes: Count = 0
    threads: Small = 0  # in use

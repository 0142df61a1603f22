"""On the control link, between a machine and its site: what its owner wants of it, and what it does about that.

Neither host nor coordinator hears of it. The machine speaks first.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from peer_agent.protocol.identifiers import Count, Medium, Run, Short, Small
from peer_agent.protocol.messages.base import Index, Message

MOST_HOURS, MOST_PROGRAMS = 42, 20  # lines of a schedule, and programs that go before
DAY_MINUTES = 24 * 60
LEAST_DUTY = 10  # percent


class Why(StrEnum):
    """Why a machine does not work, though it is there."""

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
    """What a machine cannot tell, so that a limit by it has no effect there."""

    IDLE = "idle"
    BATTERY = "battery"


class Hours(Struct, frozen=True, array_like=True):
    """From one minute of a day (0: Monday) to another, by its clock; where `stop` is not after, of the next day."""

    day: Annotated[int, Meta(ge=0, le=6)]
    first: Annotated[int, Meta(ge=0, lt=DAY_MINUTES)]
    stop: Annotated[int, Meta(gt=0, le=DAY_MINUTES)]


class OwnerLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine may take. 0 and empty: as the command line has it, and without one no limit."""

    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    duty_percent: Annotated[int, Meta(ge=LEAST_DUTY, le=100)] = 100  # of the time, in which it computes
    memory_mb: Medium = 0
    disk_gb: Medium = 0
    up_kbps: Medium = 0  # thousands of bits a second
    down_kbps: Medium = 0
    month_gb: Medium = 0  # up and down together
    hours: Annotated[tuple[Hours, ...], Meta(max_length=MOST_HOURS)] = ()
    idle_minutes: Annotated[int, Meta(ge=0, le=DAY_MINUTES)] = 0  # without its owner at it; 0: whoever is at it
    pause_on_battery: bool = False
    programs: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=80)], ...], Meta(max_length=MOST_PROGRAMS)
    ] = ()


class Instructions(Message, frozen=True, kw_only=True):
    """What the owner wants, whole; a greater `revision` replaces it. `finish` and `move_to` are done once.

    `move_to`: the slug of another run of this site.
    """

    revision: Count
    pause: bool = False
    finish: bool = False
    move_to: Annotated[str, Meta(pattern="^[-a-z0-9_]{0,80}$")] = ""
    limits: OwnerLimits = OwnerLimits()


class MachineReport(Message, frozen=True, kw_only=True):
    """What a machine does about the instructions that it heard last (-1: none). Said whenever it changes."""

    run: Run
    revision: Index = -1
    why: Why = Why.WORKS
    detail: Short = ""  # the program, the figure, the time that belongs to it
    could_not: Short = ""  # a number of an error, where it did not get into the run it was to move to
    blind: Annotated[tuple[Blind, ...], Meta(max_length=8)] = ()
    month_bytes: Count = 0
    threads: Small = 0  # in use

"""Whether a machine may work now, by what its owner wants and what goes on around it. Pure: time is passed in."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from msgspec import Struct

from peer_agent.machine.language import gettext_noop
from peer_agent.machine.sizes import in_bytes
from peer_agent.protocol.messages.machine import Blind, Hours, Instructions, OwnerLimits, Why

MEGABYTE, GIGABYTE = 10**6, 10**9
MOST_REFUSALS = 5  # in a row, after which a machine rests until its owner has looked
WEEK_DAYS = 7
DETAIL = 200  # characters


class Surroundings(Struct, frozen=True, kw_only=True):
    """What goes on at a machine. `now` is its own clock's, without a zone; None: it cannot tell.

    `programs`: names of all that run, as `plain_name` has them. `refused`: why contributions were refused, of those
    in a row until now.
    """

    now: datetime
    idle_s: float | None = None
    on_battery: bool | None = None
    programs: frozenset[str] = frozenset()
    memory_bytes: int = 0
    month_bytes: int = 0
    refused: tuple[str, ...] = ()


class Rest(Struct, frozen=True):
    """Why a machine rests, and the program, figure or time that belongs to it; nothing: it works."""

    why: Why = Why.WORKS
    detail: str = ""

    def __bool__(self) -> bool:
        return self.why is not Why.WORKS


# These do not pass by themselves: whoever rests for them rests until the owner says something new.
UNTIL_TOLD = frozenset({Why.REFUSED, Why.MEMORY})

WORDS = {
    Why.WORKS: gettext_noop("Working."),
    Why.PAUSED: gettext_noop("Paused by you."),
    Why.REFUSED: gettext_noop("Its last contributions were refused: {detail}"),
    Why.HOURS: gettext_noop("Outside its hours. Next: {detail}."),
    Why.TRAFFIC: gettext_noop("Monthly limit of {detail} reached."),
    Why.BATTERY: gettext_noop("Running on battery."),
    Why.PROGRAM: gettext_noop("{detail} is running."),
    Why.IN_USE: gettext_noop("Someone is using it."),
    Why.MEMORY: gettext_noop("It used {detail} of memory, more than you allow."),
}
DAYS = (
    *(gettext_noop("Monday"), gettext_noop("Tuesday"), gettext_noop("Wednesday"), gettext_noop("Thursday")),
    *(gettext_noop("Friday"), gettext_noop("Saturday"), gettext_noop("Sunday")),
)
WORDS_OF_BLIND = {
    Blind.IDLE: "This machine cannot tell whether someone is using it, so this limit has no effect.",
    Blind.BATTERY: "This machine cannot tell whether it runs on battery, so this limit has no effect.",
}


def in_words(rest: Rest, translated: Callable[[str], str] = str) -> str:
    """A sentence for its owner; `translated` looks it up, where they read another language than English."""
    day, _, time = rest.detail.partition(" ")
    detail = f"{translated(day)} {time}" if rest.why is Why.HOURS and day in DAYS else rest.detail
    return translated(WORDS[rest.why]).format(detail=detail)


def reason_to_rest(wanted: Instructions, around: Surroundings) -> Rest:
    """The first reason that there is; what a person said goes before what was measured."""
    return next(_reasons(wanted, around), Rest())


def _reasons(wanted: Instructions, around: Surroundings) -> Iterator[Rest]:
    limits = wanted.limits
    if wanted.pause:
        yield Rest(Why.PAUSED)
    if len(around.refused) >= MOST_REFUSALS:
        yield Rest(Why.REFUSED, around.refused[-1][:DETAIL])
    if limits.hours and not any(is_within(hours, around.now) for hours in limits.hours):
        yield Rest(Why.HOURS, next_start(limits.hours, around.now))
    if limits.month_gb and around.month_bytes >= limits.month_gb * GIGABYTE:
        yield Rest(Why.TRAFFIC, f"{limits.month_gb:,} GB")
    if limits.pause_on_battery and around.on_battery:
        yield Rest(Why.BATTERY)
    yield from _of_people(limits, around)
    if limits.memory_mb and around.memory_bytes > limits.memory_mb * MEGABYTE:
        yield Rest(Why.MEMORY, in_bytes(around.memory_bytes))


def _of_people(limits: OwnerLimits, around: Surroundings) -> Iterator[Rest]:
    running = next((name for name in limits.programs if plain_name(name) in around.programs), None)
    if running is not None:
        yield Rest(Why.PROGRAM, running)
    if limits.idle_minutes and around.idle_s is not None and around.idle_s < 60 * limits.idle_minutes:
        yield Rest(Why.IN_USE)


def plain_name(program: str) -> str:
    """A program's name as people mean it: Windows' endings and large letters make no other program."""
    return program.strip().casefold().removesuffix(".exe")


def is_within(hours: Hours, now: datetime) -> bool:
    """Whether these hours are open. Where a clock is put forward or back they begin and end by what it shows then."""
    minute, day = 60 * now.hour + now.minute, now.weekday()
    if hours.first < hours.stop:
        return day == hours.day and hours.first <= minute < hours.stop
    is_next_day = day == (hours.day + 1) % WEEK_DAYS
    return (day == hours.day and minute >= hours.first) or (is_next_day and minute < hours.stop)


def next_start(schedule: tuple[Hours, ...], now: datetime) -> str:
    """The day and time at which the next of these hours begin."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = [
        midnight + timedelta(days=(hours.day - now.weekday()) % WEEK_DAYS + week, minutes=hours.first)
        for hours in schedule
        for week in (0, WEEK_DAYS)
    ]
    start = min(start for start in starts if start > now)
    return f"{DAYS[start.weekday()]} {start:%H:%M}"

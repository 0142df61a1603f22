"""Attacks by a lying relay, or by a member that averages and lies, alongside an honest relay."""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role, Signed
from peer_agent.protocol.log.records import Entry, Included
from tests.hostile.behaviours import Behaviour, Memory, Word, changed, times, without, written
from tests.hostile.breaking import HUGE

WEDGED = "a slot is dropped relative to the pace of that reducer; a frozen relay accuses nobody"

ONE_WORD = "the coordinator penalises no machine on one member's word (table of decisions: disputed)"


def _leaves_out(memory: Memory, message: m.Message) -> Iterable[Word]:
    """Claim that the average contains only one slot."""
    del memory
    if not isinstance(message, m.SpanDone):
        return (message,)
    first, stop = message.included[0].first, message.included[-1].stop
    return (replace(message, included=(Included(first, stop, (0,)),)),)


def _accuses(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    if not isinstance(message, m.PlanHead):
        return ()
    place = memory.place()
    return [m.SlotRefused(**place, slot=slot, chunk=0, code="E211") for slot in range(message.contributors)]


def _has_what_it_lacks(memory: Memory) -> Iterable[Word]:
    place = memory.place()
    made_up = [m.Have(**place, span=span, root=bytes(32), sum_squares=1.0) for span in range(4)]
    return [*made_up, *(m.Have(**place, span=span, root=root, sum_squares=1.0) for span, root in memory.roots.items())]


def _one_slot_alone(memory: Memory, message: m.Message) -> Iterable[Word]:
    """Claim that all of the first slot's chunks have arrived, and one chunk of every other slot."""
    del memory
    if not isinstance(message, m.Progress):
        return () if isinstance(message, m.SpanDone) else (message,)
    return (replace(message, received=tuple((slot, 1 + 2**31 * (not slot)) for slot, _ in message.received)),)


def _stops_the_first(memory: Memory, message: m.Message) -> Iterable[Word]:
    """Claim that nothing of the first slot arrives, and never finish because of it."""
    del memory
    if not isinstance(message, m.Progress):
        return () if isinstance(message, m.SpanDone) else (message,)
    return (replace(message, received=tuple((slot, chunks * bool(slot)) for slot, chunks in message.received)),)


def _drips(memory: Memory, message: m.Message) -> Iterable[Word]:
    """Report one more chunk with each message, and never finish."""
    if not isinstance(message, m.Progress):
        return () if isinstance(message, m.SpanDone) else (message,)
    return (replace(message, received=tuple((slot, memory.ticks % 8) for slot, _ in message.received)),)


def _hands_in_forgeries(memory: Memory) -> Iterable[Word]:
    """Claim a longer log, and hand in records that the site has not signed, for entries before and after the head."""
    forged = Entry(Signed(b"{}", bytes(64)))
    pages = [m.Records(run=memory.run, first=first, last=2**40, records=(forged,)) for first in range(1, 40)]
    return [memory.hello(log_index=2**40), *pages] if memory.is_tick(4) else ()


def _progress(memory: Memory) -> Word:
    return m.Progress(**memory.place(), received=((0, 1),))


def _relays(name: str, fault: str, **more: object) -> Behaviour:
    return msgspec.structs.replace(Behaviour(name=name, fault=fault, bites=(), role=Role.RELAY, on_wire=False), **more)


RELAYING = (
    _relays("relay_that_never_finishes_a_span", WEDGED, says=without(m.SpanDone, m.Progress), bites=("note replan",)),
    _relays(
        "relay_that_leaves_others_out",
        "a chunk averages at least 70 % of the planned tokens (rule 7)",
        says=_leaves_out,
        bites=("note refused",),
    ),
    _relays(
        "relay_whose_sums_are_no_numbers",
        "every number is bounded where it is decoded",
        says=written(m.SpanDone, sum_squares=float("nan")),
        bites=("refused E206",),
    ),
    _relays(
        "relay_whose_sums_are_1_7e308",
        "every number is bounded where it is decoded",
        says=written(m.SpanDone, sum_squares=HUGE),
        bites=("refused E206",),
    ),
    _relays(
        "relay_with_the_greatest_sums_allowed",
        "an average is no larger than the mean of the offered norms (rule 12)",
        says=changed(m.SpanDone, sum_squares=1e90),
        bites=("changed", "note refused"),
    ),
    _relays(
        "relay_that_averages_twenty_times_too_much",
        "an average is no larger than the mean of the offered norms (rule 12)",
        says=changed(m.SpanDone, sum_squares=400.0),
        bites=("changed", "note refused"),
    ),
    _relays(
        "relay_that_accuses_everybody",
        "refusals sit out 1, 4, 16 rounds",
        answers=_accuses,
        bites=("arrived SlotRefused",),
    ),
    _relays(
        "relay_that_has_what_it_lacks",
        "a span that is damaged on one relay is asked of another",
        adds=_has_what_it_lacks,
        bites=("arrived Have",),
    ),
    _relays("relay_that_waits_for_one_slot", WEDGED, says=_one_slot_alone, bites=("changed", "arrived Progress")),
    _relays(
        "relay_that_drips", "a deadline moves without progress", says=_drips, bites=("changed", "arrived Progress")
    ),
    _relays(
        "relay_that_floods",
        "a budget of messages and bytes a link",
        adds=times(21_000, _progress, every=80),
        bites=("refused E370",),
    ),
    _relays(
        "relay_that_hands_in_forged_records",
        "only the site's signature makes a record; a run waits once for a relay",
        adds=_hands_in_forgeries,
        bites=("arrived Records", "arrived Hello"),
        never=("note recovered", "note lost steps"),
    ),
    _relays(
        "member_that_accuses_everybody",
        ONE_WORD,
        role=Role.AUXILIARY,
        answers=_accuses,
        bites=("arrived SlotRefused",),
    ),
    _relays(
        "member_that_says_one_has_stopped",
        ONE_WORD,
        role=Role.AUXILIARY,
        says=_stops_the_first,
        bites=("changed", "arrived Progress"),
    ),
    _relays(
        "relay_that_comes_and_goes",
        "a lost relay's spans are planned again",
        link="comes and goes",
        bites=("went", "note replan"),
    ),
)

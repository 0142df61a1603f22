"""A drawing of the last plan: senders, averagers and their parts, planned and actual time, limits. Pure functions.

Heights are in pixels. The template and the script draw the same lines. No bandwidth is shown, because everyone who can
see the run sees the drawing.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, assert_never

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Bottleneck, Kind, Outline, Participant
from web.run_picture.counts import duration, with_number

Line = dict[str, Any]

ROW = 36  # height of a line in pixels, as in the style sheet
THICKEST, THINNEST = 12.0, 1.5  # thickness in pixels of a link to a sole averager, and to one with hardly any part
ALONE = 0.75  # a limit causing at least this much of the possible saving is named alone
NAMED = 2  # most limits named in a sentence
SHORTEST_S = 0.05  # shorter times are not shown exactly
NO_BREAK = "\N{NO-BREAK SPACE}"
HELPERS = frozenset({Role.AUXILIARY.value, Role.RELAY.value})
AT_WORK = frozenset({"reduce", "commit"})  # the phases in which machines carry out the last plan

RELAY = "relay"  # the name that everyone sees for a relay
NEVER = gettext_lazy("No step has been averaged yet. After the first step, this shows who sends what to whom.")
NOT_MEASURED = gettext_lazy("Measuring connection speeds takes a few steps.")
NOTHING_TRAVELS = gettext_lazy("Only one machine is training, so nothing has to be sent.")
MORE_WOULD_HELP = gettext_lazy("More averaging machines would speed it up.")
NOTE = gettext_lazy(
    "Machines on the left send their gradients to those on the right, each of which averages one part and "
    "sends it back to everyone."
)


def averaging_of(outline: Outline | None, *, phase: str, is_over: bool = False) -> dict[str, Any]:
    """Return the page's values about averaging. `phase` is the run's current phase, or empty if the run has no host."""
    if outline is None:
        return {"plan": None, "limit": str(NEVER), "limiting": [], "planned": ""}
    return {
        "plan": drawn(outline),
        "limit": limit_sentence(outline, is_over=is_over),
        "limiting": limiting(outline),
        "planned": time_sentence(outline, phase),
    }


# --- In words


def time_sentence(outline: Outline, phase: str) -> str:
    facts = {"step": f"{outline.step:,}", "planned": _seconds(outline.planned_s) if outline.planned_s else ""}
    if outline.is_void:
        return _("Step %(step)s could not be averaged and is being retried. Nothing was lost.") % facts
    if outline.took_s is not None:
        return _averaged_sentence(outline.took_s, facts)
    if phase in AT_WORK:
        if facts["planned"]:
            return _("Averaging step %(step)s (planned: %(planned)s).") % facts
        return _("Averaging step %(step)s.") % facts
    if facts["planned"]:
        return _("The latest plan is for step %(step)s (planned: %(planned)s).") % facts
    return _("The latest plan is for step %(step)s.") % facts


def _averaged_sentence(took_s: float, facts: dict[str, str]) -> str:
    facts = {**facts, "took": _seconds(took_s)}
    if facts["planned"]:
        return _("Averaging step %(step)s took %(took)s (planned: %(planned)s).") % facts
    return _("Averaging step %(step)s took %(took)s.") % facts


def _seconds(seconds: float) -> str:
    words = duration(seconds) if seconds >= SHORTEST_S else _("less than 0.1 s")
    return words.replace(" ", NO_BREAK)


def limit_sentence(outline: Outline, *, is_over: bool = False) -> str:
    """Return a sentence naming the machine and direction that limit averaging, without giving a bandwidth."""
    told = told_of(outline)
    if not told:
        return str(NOTHING_TRAVELS if _is_alone(outline) else NOT_MEASURED)
    limits = _limit_of(told, is_over=is_over) if len(told) == 1 else _limits_of(outline, told, is_over=is_over)
    limits = f"{limits[0].upper()}{limits[1:]}"
    return limits if is_over or not all(map(_is_of_helpers, told)) else f"{limits} {MORE_WOULD_HELP}"


def _limit_of(told: Sequence[Bottleneck], *, is_over: bool) -> str:
    facts = {"limit": _phrase(told[0])}
    return (_("Averaging was limited by %(limit)s.") if is_over else _("Averaging is limited by %(limit)s.")) % facts


def _limits_of(outline: Outline, told: Sequence[Bottleneck], *, is_over: bool) -> str:
    if len(outline.bottlenecks) > len(told):
        message = (
            _("Averaging was limited by %(limits)s and others.")
            if is_over
            else _("Averaging is limited by %(limits)s and others.")
        )
        return message % {"limits": _phrases(told, has_more=True)}
    message = _("Averaging was limited by %(limits)s.") if is_over else _("Averaging is limited by %(limits)s.")
    return message % {"limits": _phrases(told, has_more=False)}


def told_of(outline: Outline) -> Sequence[Bottleneck]:
    """Return the limits that the page's sentence names: the dominant one alone or, if none is, the first two."""
    limits = outline.bottlenecks
    return limits[:1] if limits and limits[0].part >= ALONE else limits[:NAMED]


def _is_of_helpers(limit: Bottleneck) -> bool:
    """Return True if only auxiliaries or relays limit averaging, so that more of them would help."""
    return bool(limit.who) and all(who.role in HELPERS for who in limit.who)


def _is_alone(outline: Outline) -> bool:
    senders = {who.peer for who in outline.senders}
    return len(senders) == 1 and not outline.other_senders and senders == {each.who.peer for each in outline.averagers}


def _phrases(told: Sequence[Bottleneck], *, has_more: bool) -> str:
    kinds = {limit.kind for limit in told}
    if kinds < {Kind.UP, Kind.DOWN}:
        names = _pair(*(_name(limit.who[0]) for limit in told), has_more=has_more)
        return (_("the upload speeds of %(names)s") if Kind.UP in kinds else _("the download speeds of %(names)s")) % {
            "names": names
        }
    return _pair(*map(_phrase, told), has_more=has_more)


def _pair(one: str, other: str, *, has_more: bool) -> str:
    return (_("%(one)s, %(other)s") if has_more else _("%(one)s and %(other)s")) % {"one": one, "other": other}


def _phrase(limit: Bottleneck) -> str:
    names = [_name(who) for who in limit.who]
    match limit.kind:
        case Kind.UP:
            return _("the upload speed of %(name)s") % {"name": names[0]}
        case Kind.DOWN:
            return _("the download speed of %(name)s") % {"name": names[0]}
        case Kind.DUPLEX:
            return _("the connection of %(name)s") % {"name": names[0]}
        case Kind.PAIR:
            return _("the connection from %(one)s to %(other)s") % {"one": names[0], "other": names[1]}
        case Kind.HOUSEHOLD:
            return _("a connection shared by several machines")
        case _:
            assert_never(limit.kind)


def names_of(who: Participant) -> tuple[str, str]:
    """Return the names of a machine's owner and of the machine, as everyone may see them.

    A relay's are hidden, because its name might reveal one of the site's computers.
    """
    return (RELAY, "") if who.role == Role.RELAY else (who.person, who.machine)


def _name(who: Participant) -> str:
    person, machine = names_of(who)
    if machine:
        return _("%(person)s's %(machine)s") % {"person": person, "machine": machine}
    return _("a relay") if person == RELAY else f"a {person}"


# --- As a drawing


def linked(senders: list[Line], averagers: list[Line]) -> list[tuple[Line, Line]]:
    """Return both ends of each link from a sender to an averager other than itself.

    Links that limit averaging come last, so that they are drawn on top.
    """
    ends = [(one, other) for one in senders for other in averagers if not one["key"] or one["key"] != other["key"]]
    return sorted(ends, key=lambda link: link[0]["limits"])


def drawn(outline: Outline) -> dict[str, Any]:
    slow = {who.peer for limit in told_of(outline) for who in limit.who}
    senders = [_line(who, slow) for who in outline.senders]
    averagers = [{**_line(each.who, slow), **_part(each.part)} for each in outline.averagers]
    if outline.other_senders:
        senders.append(_rest(outline.other_senders))
    if outline.other_averagers:
        averagers.append({**_rest(outline.other_averagers), **_part(outline.other_part)})
    height = ROW * max(len(senders), len(averagers))
    sending, averaging = len(outline.senders) + outline.other_senders, len(outline.averagers) + outline.other_averagers
    ends = {"senders": _placed(senders, height), "averagers": _placed(averagers, height)}
    return {
        "height": height,
        "sending": with_number(ngettext("%(number)s machine sends", "%(number)s machines send", sending), sending),
        "averaging": with_number(
            ngettext("%(number)s machine averages", "%(number)s machines average", averaging), averaging
        ),
        **ends,
        "links": linked(**ends),
        "note": str(NOTE),
    }


def limiting(outline: Outline) -> list[str]:
    """Return the key (see `way_key`) of each link direction that `limit_sentence` names as a limit."""
    both = (Kind.UP, Kind.DOWN)
    ways = {Kind.UP: (Kind.UP,), Kind.DOWN: (Kind.DOWN,), Kind.DUPLEX: both}
    return [way_key(limit.who[0].peer, way) for limit in told_of(outline) for way in ways.get(limit.kind, ())]


def way_key(peer: str, way: Kind) -> str:
    """Return a key for one direction of a machine's link that does not reveal the machine's id."""
    return f"{key_of(peer)} {way}"


def key_of(peer: str) -> str:
    """Return a key for a machine that does not reveal its id."""
    return hashlib.sha256(peer.encode()).hexdigest()[:12]


def _line(who: Participant, slow: set[PeerId]) -> Line:
    name, machine = names_of(who)
    return {"key": key_of(who.peer), "name": name, "machine": machine, "limits": who.peer in slow}


def _rest(count: int) -> Line:
    return {
        "key": "",
        "name": with_number(ngettext("%(number)s other", "%(number)s others", count), count),
        "machine": "",
        "limits": False,
    }


def _part(part: float) -> Line:
    """Return an averager's part as a percentage, and the thickness of its links in pixels."""
    percent = f"{100 * part:.0f}%" if part >= 0.005 else _("under 1%%") % {}
    width = round(max(THINNEST, THICKEST * part), 1)
    return {"share": round(100 * part, 1), "percent": percent, "width": width}


def _placed(lines: list[Line], height: int) -> list[Line]:
    """Return the lines, each with the `y` of its middle, centred if they do not fill the height."""
    top = (height - ROW * len(lines)) // 2
    return [{**line, "y": top + ROW * place + ROW // 2} for place, line in enumerate(lines)]

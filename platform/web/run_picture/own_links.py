"""What machines' links were measured to carry: to each machine's owner and to who manages the run, to nobody else."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from accounts.models import Machine, Person
from coordination import presence
from coordination.presence import Carried, Link
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.plan import Kind
from runs.access import Viewer, may_manage, person_of
from runs.models import Run
from web.run_picture.averaging import RELAY, key_of, way_key

LINES = 50  # on a page; the API has them all
BITS = 8
MEGA, GIGA = 1e6, 1e9
NOT_YET = gettext_lazy("not measured yet")
EVERYBODYS = gettext_lazy("Measured connections")
OWN = gettext_lazy("Your connections, as measured")
NOTE = gettext_lazy(
    "Only the machine's owner and the organizers see this. “At least” means that more was never needed."
)
MORE = gettext_lazy("The API lists all machines.")


class OwnLink(NamedTuple):
    """One machine that is here. `person` and `machine` are names; `role` is what it does."""

    peer: str
    person: str
    machine: str
    link: Link


def links_for(run: Run, viewer: Viewer) -> list[OwnLink]:
    """Of the machines that are in the run now one's own, or to who manages it all; by person and name."""
    return _links(run, viewer, sees_all=may_manage(run, viewer))


def _links(
    run: Run, viewer: Viewer, stored: Mapping[str, Any] | None = None, *, sees_all: bool, most: int | None = None
) -> list[OwnLink]:
    """`stored`: the links, where the caller has read them. `most`: so many of them at most, relays last."""
    person = person_of(viewer)
    if person is None:
        return []
    known = presence.links(run) if stored is None else presence.links_in(stored)
    if not known:
        return []
    which: dict[str, Any] = {} if sees_all else {"person": person}
    machines = Machine.objects.select_related("person").filter(pk__in=list(known), **which)
    relays_last = machines.order_by("kind", "person__username", "name", "pk")  # agents come before relays
    found = [OwnLink(each.peer_id, *_names(each, person), known[each.peer_id]) for each in relays_last[:most]]
    return sorted(found, key=lambda each: (each.link.role == Role.RELAY, each.person, each.machine, each.peer))


def _names(machine: Machine, person: Person) -> tuple[str, str]:
    """A relay may be called as a computer of the site is: that is its owner's to know."""
    if machine.kind != Machine.Kind.RELAY:
        return machine.person.username, machine.name
    return RELAY, machine.name if machine.person == person else ""


def links_shown(run: Run, viewer: Viewer, stored: Mapping[str, Any] | None = None, *, sees_all: bool) -> dict[str, Any]:
    """The same in words, as the page has them; without a row where there is none to be seen."""
    links = _links(run, viewer, stored, sees_all=sees_all, most=LINES + 1)
    return {
        "title": str(EVERYBODYS if sees_all else OWN),
        "rows": [_row(each) for each in links[:LINES]],
        "note": str(NOTE),
        "more": str(MORE) if len(links) > LINES else "",
    }


def _row(own: OwnLink) -> dict[str, Any]:
    """`up_key` and `down_key` are among the picture's `limiting` where that direction limits the averaging.

    What is not measured (any more, as after a restart) has none.
    """
    return {
        "key": key_of(own.peer),
        "person": own.person,
        "machine": own.machine,
        "up": in_words(own.link.up),
        "up_key": way_key(own.peer, Kind.UP) if own.link.up else "",
        "down": in_words(own.link.down),
        "down_key": way_key(own.peer, Kind.DOWN) if own.link.down else "",
    }


def in_words(carried: Carried | None) -> str:
    """“17 Mb/s”, “at least 40 Mb/s”, “not measured yet”."""
    if carried is None:
        return str(NOT_YET)
    return _("at least %(rate)s") % {"rate": rate(carried.bps)} if carried.is_floor else rate(carried.bps)


def rate(bytes_per_s: float) -> str:
    """Bits per second as connections are sold."""
    bits = BITS * bytes_per_s
    if bits >= GIGA:
        return f"{bits / GIGA:.1f} Gb/s"
    return f"{bits / MEGA:.0f} Mb/s" if bits >= 9.95 * MEGA else f"{max(bits / MEGA, 0.1):.1f} Mb/s"

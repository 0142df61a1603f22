"""The parts of a run's page that only its reader sees: their place, and their machines' links and progress."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Exists, Subquery, Sum
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from accounts.models import Machine, Person, TeamMember
from coordination import presence
from coordination.presence import TRAINER, Carried, Link, OnlinePeer
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.plan import Kind
from runs.access import Viewer, may_manage, person_of
from runs.ledger import standings
from runs.ledger.standings import Place
from runs.models import LedgerEntry, NamedVolunteer, Run
from web.run_picture import counts, status_sentence
from web.run_picture.averaging import RELAY, way_key
from web.run_picture.picture import OWN_BARS, bars_of, tint_of

LINES = 50  # most links on a page; the API returns all of them
BITS = 8
MEGA, GIGA = 1e6, 1e9
# The page shows a person's first credit for `NEWS`, or for `ONLY_NEWS` if it is still their only one.
NEWS, ONLY_NEWS = timedelta(minutes=2), timedelta(days=1)
NOT_YET = gettext_lazy("not measured yet")
EVERYBODYS = gettext_lazy("Measured connections")
OWN = gettext_lazy("Your connections, as measured")
NOTE = gettext_lazy(
    "Only the machine's owner and the organizers see this. “At least” means that the run has never needed more."
)
MORE = gettext_lazy("The API lists all machines.")


class OwnLink(NamedTuple):
    """A connected machine's link. `person` and `machine` are names."""

    peer: str
    person: str
    machine: str
    link: Link


def links_for(run: Run, viewer: Viewer) -> list[OwnLink]:
    """Return the links of the viewer's machines, sorted by name, or of all machines if the viewer manages the run."""
    return _links(run, viewer, sees_all=may_manage(run, viewer))


def _links(
    run: Run, viewer: Viewer, stored: Mapping[str, Any] | None = None, *, sees_all: bool, most: int | None = None
) -> list[OwnLink]:
    """Return the links of the viewer's machines, or of all machines with `sees_all`, sorted by name.

    If there are more than `most`, relays are dropped first. Passing `stored` saves a query.
    """
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
    """Return the names of a machine's owner and of the machine, as this person may see them.

    A relay's name may be that of one of the site's computers, so only the relay's owner sees it.
    """
    if machine.kind != Machine.Kind.RELAY:
        return machine.person.username, machine.name
    return RELAY, machine.name if machine.person == person else ""


def links_shown(
    run: Run,
    viewer: Viewer,
    stored: Mapping[str, Any] | None = None,
    *,
    sees_all: bool,
    limiting: Collection[str] = (),
) -> dict[str, Any]:
    """Return the links as text for a page. `rows` is empty if there is no link to show.

    `limiting` has the key (see `way_key`) of each link direction that limits averaging.
    """
    links = _links(run, viewer, stored, sees_all=sees_all, most=LINES + 1)
    return {
        "title": str(EVERYBODYS if sees_all else OWN),
        "rows": [_row(each, limiting) for each in links[:LINES]],
        "note": str(NOTE),
        "more": str(MORE) if len(links) > LINES else "",
    }


def _row(own: OwnLink, limiting: Collection[str]) -> dict[str, Any]:
    """Return a link as text. A direction whose speed has not been measured is not marked as a limit."""
    return {
        "person": own.person,
        "machine": own.machine,
        "up": in_words(own.link.up),
        "up_limits": own.link.up is not None and way_key(own.peer, Kind.UP) in limiting,
        "down": in_words(own.link.down),
        "down_limits": own.link.down is not None and way_key(own.peer, Kind.DOWN) in limiting,
    }


def in_words(carried: Carried | None) -> str:
    """Return a speed as text, such as “17 Mb/s”, “at least 40 Mb/s” or “not measured yet”."""
    if carried is None:
        return str(NOT_YET)
    return _("at least %(rate)s") % {"rate": rate(carried.bps)} if carried.is_floor else rate(carried.bps)


def rate(bytes_per_s: float) -> str:
    """Return a speed as text in bits per second, the unit in which connections are sold."""
    bits = BITS * bytes_per_s
    if bits >= GIGA:
        return f"{bits / GIGA:.1f} Gb/s"
    return f"{bits / MEGA:.0f} Mb/s" if bits >= 9.95 * MEGA else f"{max(bits / MEGA, 0.1):.1f} Mb/s"


# The reader's place in a run, and the progress of their machines in the step


class FirstCredit(NamedTuple):
    """The first step that gave a person credit, the samples of their machines in this step, and their team."""

    step: int
    samples: int
    at: datetime
    team: str
    team_slug: str


@dataclass
class Own:
    """The viewer's contribution to a run, read from the database once, when first needed."""

    run: Run
    viewer: Viewer

    @property
    def samples(self) -> int | None:
        return self._facts.get("given")

    @property
    def is_named(self) -> bool:
        """True if the viewer has agreed to be named on the model card."""
        return bool(self._facts.get("named"))

    @property
    def first(self) -> FirstCredit | None:
        """The viewer's first credit, or None if it is too long ago. Steps undone by a rollback do not count."""
        facts = self._facts
        if facts.get("first_step") is None:
            return None
        lasts = ONLY_NEWS if facts["rounds"] == 1 else NEWS
        team = facts["team"] or "", facts["team_slug"] or ""
        first = FirstCredit(facts["first_step"], facts["first_given"], facts["first_at"], *team)
        return first if timezone.now() - first.at < lasts else None

    @cached_property
    def _facts(self) -> dict[str, Any]:
        person = person_of(self.viewer)
        if person is None:
            return {}
        totals = self.run.totals.filter(person=person).order_by().values("person")
        ledger = LedgerEntry.objects.filter(run=self.run, person=person)
        first = ledger.filter(samples__gt=0, entry__is_undone=False).order_by("step")[:1]
        in_first = ledger.filter(entry=first.values("entry")).order_by().values("person")
        team = TeamMember.objects.filter(person=person, left_day=None)[:1]
        facts: dict[str, Any] = {
            "given": Subquery(totals.annotate(whole=Sum("samples")).values("whole")),
            "rounds": Subquery(totals.annotate(whole=Sum("person_rounds")).values("whole")),
            "named": Exists(NamedVolunteer.objects.filter(run=self.run, person=person)),
            "first_step": Subquery(first.values("step")),
            "first_at": Subquery(first.values("entry__at")),
            "first_given": Subquery(in_first.annotate(whole=Sum("samples")).values("whole")),
            "team": Subquery(team.values("team__name")),
            "team_slug": Subquery(team.values("team__slug")),
        }
        found: dict[str, Any] = dict(Person.objects.filter(pk=person.pk).values(**facts).get())
        return found

    @cached_property
    def place(self) -> Place | None:
        return standings.place_with(self.run, self.samples) if self.samples is not None else None

    def share(self, whole: int) -> dict[str, Any] | None:
        if not self.samples:
            return None
        return {"samples": self.samples, "percent": f"{100 * self.samples / whole:.1f}%"}


def own_machine_words(own: Own, peers: Sequence[OnlinePeer]) -> str:
    """Return text such as “Your machine: 18,949 samples, 1st”, or "" for a viewer who is not training now."""
    here = len(_own_trainers(own, peers))
    if not here:
        return ""
    if own.samples is None or own.place is None:
        message = ngettext("Your machine: no samples yet", "Your %(number)s machines: no samples yet", here)
        return message % {"number": f"{here:,}"}
    message = ngettext("Your machine: %(samples)s, %(rank)s", "Your %(number)s machines: %(samples)s, %(rank)s", here)
    facts = {"samples": counts.samples(own.samples), "rank": counts.ordinal(own.place.rank)}
    return message % {"number": f"{here:,}", **facts}


def first_credit_facts(own: Own) -> dict[str, Any] | None:
    """Return the viewer's first credit and their tint, or None if the page no longer shows the credit."""
    person, first = person_of(own.viewer), own.first
    return {**first._asdict(), "tint": tint_of(person.username)} if person is not None and first is not None else None


def only_machine(own: Own, peers: Sequence[OnlinePeer]) -> UUID | None:
    """Return the id of the viewer's training machine, if there is exactly one."""
    trainers = _own_trainers(own, peers)
    return UUID(trainers[0].peer) if len(trainers) == 1 else None


def own_bars(own: Own, peers: Sequence[OnlinePeer]) -> list[dict[str, Any]]:
    """Return a bar for each of the viewer's training machines, up to `OWN_BARS`."""
    target = own.run.parsed_recipe.target_batch
    return bars_of(_own_trainers(own, peers), target=target, most=OWN_BARS)


def _own_trainers(own: Own, peers: Sequence[OnlinePeer]) -> list[OnlinePeer]:
    person = person_of(own.viewer)
    return [peer for peer in peers if person is not None and peer.name == person.username and peer.role == TRAINER]


def own_words(own: Own, shown: Collection[str]) -> str:
    """Return text such as “you: 14th, 212 samples short of 13th”; "" if the viewer is in `shown` or has no samples."""
    person = person_of(own.viewer)
    if person is None or person.username in shown:
        return ""
    return status_sentence.standing(own.place) if own.place else ""

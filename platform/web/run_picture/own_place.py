"""Where the one who asks stands in a run, and what their machines do in its step."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import Exists, OuterRef, Subquery, Sum
from django.utils.translation import ngettext

from accounts.models import Person
from coordination.presence import TRAINER, OnlinePeer
from runs.access import Viewer, person_of
from runs.ledger import standings
from runs.ledger.standings import Place
from runs.models import NamedVolunteer, Run
from web.run_picture import counts, status_sentence
from web.run_picture.step_bars import OWN_BARS, bars_of


@dataclass
class Own:
    """What the viewer has given to a run, asked for once and only where it is needed."""

    run: Run
    viewer: Viewer

    @property
    def samples(self) -> int | None:
        """None of who is nobody or gave nothing."""
        return self._facts[0]

    @property
    def is_named(self) -> bool:
        """Whether they agreed to be named on the model's card."""
        return self._facts[1]

    @cached_property
    def _facts(self) -> tuple[int | None, bool]:
        person = person_of(self.viewer)
        if person is None:
            return None, False
        totals = self.run.totals.filter(person=OuterRef("pk")).order_by().values("person")
        given = Subquery(totals.annotate(given=Sum("samples")).values("given"))
        named = Exists(NamedVolunteer.objects.filter(run=self.run, person=OuterRef("pk")))
        samples, is_named = Person.objects.filter(pk=person.pk).values_list(given, named).get()
        return samples, is_named

    @cached_property
    def place(self) -> Place | None:
        """Where they stand, as far as they gave something."""
        return standings.place_with(self.run, self.samples) if self.samples is not None else None

    def share(self, whole: int) -> dict[str, Any] | None:
        """In samples and as a part of all; None for nothing."""
        if not self.samples:
            return None
        return {"samples": self.samples, "percent": f"{100 * self.samples / whole:.1f} %"}


def own_machine_words(own: Own, peers: Sequence[OnlinePeer]) -> str:
    """“Your machine: 18,949 samples, 1st” to those who train now; empty to all others."""
    here = len(_own_trainers(own, peers))
    if not here:
        return ""
    if own.samples is None or own.place is None:
        message = ngettext("Your machine: no samples yet", "Your %(number)s machines: no samples yet", here)
        return message % {"number": f"{here:,}"}
    message = ngettext("Your machine: %(samples)s, %(rank)s", "Your %(number)s machines: %(samples)s, %(rank)s", here)
    facts = {"samples": counts.samples(own.samples), "rank": counts.ordinal(own.place.rank)}
    return message % {"number": f"{here:,}", **facts}


def own_bars(own: Own, peers: Sequence[OnlinePeer]) -> list[dict[str, Any]]:
    """A bar for each of their machines that train now: the feed has those of the first machines alone."""
    target = own.run.parsed_recipe.target_batch
    return bars_of(_own_trainers(own, peers), target=target, most=OWN_BARS)


def _own_trainers(own: Own, peers: Sequence[OnlinePeer]) -> list[OnlinePeer]:
    person = person_of(own.viewer)
    return [peer for peer in peers if person is not None and peer.name == person.username and peer.role == TRAINER]


def own_words(own: Own, shown: Collection[str]) -> str:
    """“you: 14th, 212 samples short of 13th”; empty for those who are among the rows, gave nothing, or are nobody."""
    person = person_of(own.viewer)
    if person is None or person.username in shown:
        return ""
    return status_sentence.standing(own.place) if own.place else ""

"""Where the one who asks stands in a run."""

from collections.abc import Collection, Sequence

from django.db.models import Sum

from runs.access import Viewer, person_of
from runs.ledger import standings
from runs.models import Run
from web.run_picture import status_sentence
from web.run_picture.presence import TRAINER, OnlinePeer


def own_machine_words(run: Run, viewer: Viewer, peers: Sequence[OnlinePeer]) -> str:
    """“Your machine: 18,949 samples, 1st” to those who train now; empty to all others."""
    person = person_of(viewer)
    here = sum(person is not None and peer.name == person.username and peer.role == TRAINER for peer in peers)
    if person is None or not here:
        return ""
    name = "Your machine" if here == 1 else f"Your {here} machines"
    place = standings.place_of(run, person)
    if place is None:
        return f"{name}: no samples yet"
    samples = run.totals.filter(person=person).aggregate(given=Sum("samples"))["given"]
    return f"{name}: {status_sentence.counted(samples, 'sample', 'samples')}, {status_sentence.ordinal(place.rank)}"


def own_words(run: Run, viewer: Viewer, shown: Collection[str]) -> str:
    """“you: 14th, 212 samples short of 13th”; empty for those who are among the rows, gave nothing, or are nobody."""
    person = person_of(viewer)
    if person is None or person.username in shown:
        return ""
    place = standings.place_of(run, person)
    return status_sentence.standing(place) if place else ""

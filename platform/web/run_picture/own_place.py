"""Where the one who asks stands in a run."""

from collections.abc import Collection

from runs.access import Viewer, person_of
from runs.ledger import standings
from runs.models import Run
from web.run_picture import status_sentence


def own_words(run: Run, viewer: Viewer, shown: Collection[str]) -> str:
    """“you: 14th, 212 samples short of 13th”; empty for those who are among the rows, gave nothing, or are nobody."""
    person = person_of(viewer)
    if person is None or person.username in shown:
        return ""
    place = standings.place_of(run, person)
    return status_sentence.standing(place) if place else ""

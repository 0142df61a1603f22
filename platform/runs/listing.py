"""Runs on the front page: which are found, their curves, and what the site does today. A few queries for any number."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import NamedTuple
from uuid import UUID

from django.db.models import Case, IntegerField, OuterRef, Q, QuerySet, Subquery, Sum, When

from accounts.days import day_of
from runs.access import Viewer, listed_runs
from runs.models import IN_MODEL, DailyTotal, LogEntry, Run, Snapshot
from runs.selectors import Point, places
from runs.states import HOSTED, LIVE

CURVE = 40  # points of a curve on a card
MOST_WORDS = 5  # that are searched for
MOST_HOSTED = 1000  # runs whose people are counted
SEARCHED = ("title", "purpose", "organizer__username")
OBJECTIVE = '"objective":"{}"'  # in a recipe as it is stored
STATES = {
    "open": (Run.State.PREPARING, *LIVE, Run.State.FINISHING),
    "finished": (Run.State.FINISHED,),
}


class Search(NamedTuple):
    """What somebody looks for; empty for anything. `recipe` is the objective of one, `state` one of `STATES`."""

    words: str = ""
    recipe: str = ""
    state: str = ""


def hosted_runs(viewer: Viewer) -> list[Run]:
    """Listed runs in which somebody may be now; of each only what says which it is."""
    return list(listed_runs(viewer).filter(state__in=HOSTED).only("pk", "state").order_by("-opened_at")[:MOST_HOSTED])


def found_runs(viewer: Viewer, search: Search, *, busy: Collection[UUID] = ()) -> QuerySet[Run]:
    """Listed runs that fit, with their newest held-out loss as `heldout_loss`. Those that need volunteers come first,
    then the `busy` ones, in which somebody trains, then the others that are under way; within these the newest.
    """
    known = Snapshot.objects.filter(run=OuterRef("pk"), is_undone=False)
    measured = known.filter(heldout_loss__isnull=False).order_by("-index")
    need = Case(
        When(Q(state=Run.State.OPEN) & ~Q(pk__in=list(busy)), then=0),
        When(state=Run.State.OPEN, then=1),
        When(state=Run.State.FINISHED, then=3),
        default=2,
        output_field=IntegerField(),
    )
    runs = listed_runs(viewer).select_related("head", "organizer", "dataset").order_by(need, "-created_at")
    runs = runs.annotate(heldout_loss=Subquery(measured.values("heldout_loss")[:1]))
    for word in search.words.split()[:MOST_WORDS]:
        runs = runs.filter(reduce(or_, (Q(**{f"{name}__icontains": word}) for name in SEARCHED)))
    if search.recipe:
        runs = runs.filter(recipe__contains=OBJECTIVE.format(search.recipe))
    return runs.filter(state__in=STATES[search.state]) if search.state in STATES else runs


def curves(runs: Sequence[Run]) -> dict[UUID, list[Point]]:
    """The loss of each of these runs at about `CURVE` of its steps, in order: one query, by the steps of the log."""
    wanted = [Q(run=run, step__in=places(run.head.step, CURVE)) for run in runs if run.head.step]
    found: dict[UUID, list[Point]] = defaultdict(list)
    if wanted:
        rows = LogEntry.objects.filter(IN_MODEL & reduce(or_, wanted)).order_by("run", "index")
        for run, step, loss in rows.values_list("run", "step", "loss"):
            found[run].append(Point(step, loss))
    return found


def samples_today(viewer: Viewer, now: datetime) -> int:
    """Samples that became part of a listed run's model since midnight (UTC)."""
    today = DailyTotal.objects.filter(day=day_of(now), run__in=listed_runs(viewer).order_by().values("pk"))
    return int(today.aggregate(given=Sum("samples", default=0))["given"])

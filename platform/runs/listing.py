"""Runs on the front page: which are found, their curves, and what the site does today. A few queries for any number."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import NamedTuple
from uuid import UUID

from django.db.models import Min, Q, QuerySet, Sum

from peer_agent.protocol.recipe import USUAL_OBJECTIVE
from runs.access import Viewer, listed_runs
from runs.ledger.totals import day_of
from runs.models import DailyTotal, LogEntry, Run, Snapshot
from runs.selectors import places
from runs.states import LIVE

CURVE = 40  # points of a curve on a card
MOST_WORDS = 5  # that are searched for
SEARCHED = ("title", "purpose", "organizer__username")
OBJECTIVE = '"objective":"{}"'  # in a recipe as it is stored
STATES = {
    "open": (Run.State.PREPARING, *LIVE, Run.State.FINISHING),
    "finished": (Run.State.FINISHED,),
    "draft": (Run.State.DRAFT,),
}

Curve = list[tuple[int, float]]  # steps and losses


class Search(NamedTuple):
    """What somebody looks for; empty for anything. `recipe` is the objective of one, `state` one of `STATES`."""

    words: str = ""
    recipe: str = ""
    state: str = ""


def found_runs(viewer: Viewer, search: Search) -> QuerySet[Run]:
    """Listed runs that fit, the newest first."""
    runs = listed_runs(viewer).select_related("head", "organizer", "dataset")
    for word in search.words.split()[:MOST_WORDS]:
        runs = runs.filter(reduce(or_, (Q(**{f"{name}__icontains": word}) for name in SEARCHED)))
    if search.recipe:
        runs = runs.filter(_of_kind(search.recipe))
    return runs.filter(state__in=STATES[search.state]) if search.state in STATES else runs


def _of_kind(objective: str) -> Q:
    """A recipe of before there were several kinds names none."""
    named = Q(recipe__contains=OBJECTIVE.format(objective))
    return named | ~Q(recipe__contains='"objective":') if objective == USUAL_OBJECTIVE else named


def curves(runs: Sequence[Run]) -> dict[UUID, Curve]:
    """The loss of each of these runs at about `CURVE` of its steps, in order: one query, by the index of the log."""
    wanted = [Q(run=run, index__in=places(run.head.index, CURVE)) for run in runs if run.head.index]
    found: dict[UUID, Curve] = defaultdict(list)
    if wanted:
        rows = LogEntry.objects.filter(reduce(or_, wanted)).order_by("run", "index")
        for run, step, loss in rows.values_list("run", "step", "loss"):
            found[run].append((step, loss))
    return found


def best_heldout(runs: Sequence[Run]) -> dict[UUID, float]:
    """The least held-out loss of each run in which one was measured."""
    known = Snapshot.objects.filter(run__in=runs, heldout_loss__isnull=False).order_by().values_list("run")
    return dict(known.annotate(best=Min("heldout_loss")))


def samples_today(viewer: Viewer, now: datetime) -> int:
    """Samples that became part of a listed run's model since midnight (UTC)."""
    today = DailyTotal.objects.filter(day=day_of(now), run__in=listed_runs(viewer).order_by().values("pk"))
    return int(today.aggregate(given=Sum("samples", default=0))["given"])

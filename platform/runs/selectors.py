"""Database queries about runs. Each function needs only a few, so that pages stay fast."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise
from operator import or_
from statistics import median
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import (
    Case,
    Count,
    DateTimeField,
    F,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    When,
    Window,
)
from django.db.models.functions import Coalesce, Mod, RowNumber

from accounts.days import day_of
from runs.access import Viewer, listed_runs
from runs.ledger.standings import (
    LeaderboardLine,
    Recent,
    Shares,
    Totals,
    board_and_totals,
    recent,
    shares,
    totals,
    totals_of,
)
from runs.ledger.totals import AveragedLine, averaged_lines
from runs.models import (
    IN_MODEL,
    ActivityLine,
    DailyTotal,
    Dataset,
    LedgerEntry,
    LogEntry,
    MachineTotal,
    Release,
    Run,
    Snapshot,
)
from runs.states import HOSTED, LIVE
from runs.timeline import STEP, activity_of

POINTS = 360  # most points in a page's curve
LONG = 1200  # most points in the curve as a table or on a card
PACED = 20  # latest steps, all in the curve, whose median duration is the pace
MEASURED = 120  # most held-out losses shown
WRITTEN = 3  # latest snapshots whose texts a page shows, besides the first
SHORT_S = 3.0  # steps shorter than this are too quick to watch, so pages show shares …
SHARED_STEPS, SHARED = 50, 12  # … of this many people, summed over this many steps
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
MOST_AT_ONCE = 100  # most lines expected to share a timestamp
RECENT, RECENT_STEPS = 8, 1  # timeline lines: other events, and latest steps


class Point(NamedTuple):
    """The loss of one committed step, and other facts from its log entry. A fact is None if unknown or not loaded."""

    step: int
    loss: float
    at: datetime | None = None
    samples_per_s: float | None = None
    machines: int | None = None
    learning_rate: float | None = None
    bytes_averaged: int | None = None


class Measured(NamedTuple):
    """A snapshot's held-out loss, in nats per token that counts towards the loss, and other figures.

    `place` is the snapshot's index in the log.
    """

    place: int
    step: int
    loss: float
    at: datetime
    figures: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True)
class RunLine:
    run: Run
    step: int
    target_steps: int
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    run: Run
    dataset: Dataset
    points: list[Point]
    samples: int
    heldout: list[Measured] = field(default_factory=list)

    @property
    def passes(self) -> float | None:
        """The average number of passes over the dataset. None if a mix gives its files different numbers of passes."""
        if not self.dataset.tokens or self.run.parsed_recipe.mix:
            return None
        return self.samples / max(self.run.parsed_recipe.samples_in(self.dataset.tokens), 1)


@dataclass(frozen=True, kw_only=True)
class RunPicture(RunProgress):
    """The content of a run's page at one moment, except the machines that are online."""

    step: int
    index: int
    target_steps: int
    target_batch: int
    pace_s: float | None  # median seconds per step over the last twenty steps
    people: int
    machines: int
    tokens: int
    release: Release | None
    minimum_trainers: int = 1
    leaderboard: list[LeaderboardLine] = field(default_factory=list)
    activity: list[ActivityLine] = field(default_factory=list)
    written: list[Snapshot] = field(default_factory=list)  # snapshots whose texts are shown, latest first
    averaged: list[AveragedLine] = field(default_factory=list)
    recent: Recent = field(default_factory=lambda: Recent(0, {}))
    shares: Shares | None = None  # over the latest steps, if steps are short

    @property
    def loss(self) -> float | None:
        """The loss of the last committed step, in nats per token."""
        return self.points[-1].loss if self.points else None


def run_lines(viewer: Viewer, *, offset: int = 0, limit: int = 100) -> list[RunLine]:
    """Return the runs listed for a viewer, newest first, each with its last loss, in one query."""
    newest = LogEntry.objects.filter(IN_MODEL, run=OuterRef("pk")).order_by("-index").values("loss")[:1]
    runs = listed_runs(viewer).select_related("head", "organizer", "dataset").annotate(last_loss=Subquery(newest))
    return [
        RunLine(run=run, step=run.head.step, target_steps=run.parsed_recipe.target_steps, loss=run.last_loss)
        for run in runs[offset : offset + limit]
    ]


def run_progress(run: Run) -> RunProgress:
    """Return a run's losses and contributed samples, in three or four queries."""
    given = totals(run).samples
    return RunProgress(
        run=run, dataset=run.dataset, points=loss_points(run), samples=given, heldout=heldout_points(run)
    )


def last_loss(run: Run) -> float | None:
    return run.log.filter(IN_MODEL).order_by("-index").values_list("loss", flat=True).first()


def run_picture(run: Run, *, lines: int = 10, today: int | None = None) -> RunPicture:
    """Return everything that a run's page needs from the database.

    This takes seven or eight queries, however long the run is. `today` is a day number from `day_of`. The leaderboard's
    rank changes are counted from the start of that day. If `today` is None, they are all 0.
    """
    board, sums = board_and_totals(run, limit=lines, today=today)
    head = _head(run, sums)
    is_short = head.pace_s is not None and head.pace_s < SHORT_S
    return replace(
        head,
        shares=shares(run, steps=SHARED_STEPS, limit=SHARED) if is_short else None,
        leaderboard=board,
        averaged=averaged_lines(run),
        recent=recent(run, [line.name for line in board]),
        activity=activity(run),
        heldout=heldout_points(run),
        written=written_at(run) if run.parsed_recipe.writes else [],
    )


def run_head(run: Run) -> RunPicture:
    """Return the figures and the loss curve at the head of a run's page, in two queries. All other lists are empty."""
    return _head(run, totals(run))


def _head(run: Run, sums: Totals) -> RunPicture:
    """Return the figures and the loss curve at the head of a run's page.

    The pace is computed from the latest points of that curve.
    """
    recipe, points = run.parsed_recipe, loss_points(run)
    return RunPicture(
        run=run,
        dataset=run.dataset,
        step=run.head.step,
        index=run.head.index,
        target_steps=recipe.target_steps,
        target_batch=recipe.target_batch,
        minimum_trainers=recipe.minimum_trainers,
        pace_s=pace([point.at for point in reversed(points[-PACED:]) if point.at]),
        points=points,
        release=getattr(run, "release", None),
        **sums._asdict(),
    )


def activity(run: Run) -> list[ActivityLine]:
    """Return the latest lines of a run's timeline, in one query. Commits are frequent, so only the last is included.

    The query finds the time of the oldest line to show, both for commits and for other lines. It then reads all lines
    since that time. Surplus lines with equal times are dropped afterwards.
    """
    lines = activity_of(run)
    is_step = Q(kind=STEP), ~Q(kind=STEP)
    shown = Q()
    for which, most in zip(is_step, (RECENT_STEPS, RECENT), strict=True):
        last = Subquery(lines.filter(which).values("at")[most - 1 : most])
        shown |= which & Q(at__gte=Coalesce(last, EARLIEST, output_field=DateTimeField()))
    found = list(lines.filter(shown)[: MOST_AT_ONCE + RECENT_STEPS + RECENT])
    steps_made = [line for line in found if line.kind == STEP][:RECENT_STEPS]
    others = [line for line in found if line.kind != STEP][:RECENT]
    return sorted([*steps_made, *others], key=lambda line: (line.at, line.pk), reverse=True)


def void_rounds(run: Run) -> int:
    return run.head.void_rounds


def pace(newest_first: list[datetime]) -> float | None:
    """Return the median number of seconds between commits. Unlike the mean, it barely changes after one long pause."""
    gaps = sorted((late - early).total_seconds() for late, early in pairwise(newest_first))
    return gaps[len(gaps) // 2] if gaps else None


def loss_points(run: Run, *, most: int = POINTS) -> list[Point]:
    """Return a run's loss curve with at most `most` points, without undone steps.

    The query reads only the log entries of the steps that the curve shows.
    """
    rows = run.log.filter(IN_MODEL, step__in=places(run.head.step, most)).order_by("step")
    names = ("step", "loss", "at", "samples", "duration_s", "peers", "learning_rate", "bytes_averaged")
    return [_point(*row) for row in rows.values_list(*names)]


def _point(step: int, loss: float, at: datetime, samples: int, duration_s: float, *others: Any) -> Point:
    return Point(step, loss, at, samples / duration_s if duration_s > 0 else None, *others)


def places(last: int, most: int = POINTS) -> list[int]:
    """Return the steps that a curve shows: all recent steps, and every 2nd, 4th, 8th, … of the older ones.

    The number of recent steps is a tenth to a fifth of `most`. Older steps are thinned in groups and the stride rarely
    doubles, so a new step changes few points. Updates to the live feed therefore stay small.
    """
    if last <= most:
        return list(range(1, last + 1))
    tenth = max(1, most // 10)
    whole = max(1, (last // tenth - 1) * tenth + 1)
    stride = 2
    while last // stride > max(1, most - 2 * tenth):
        stride *= 2
    return [*range(stride, whole, stride), *range(whole, last + 1)]


def best_snapshot(run: Run) -> Snapshot | None:
    """Return the run's snapshot with the lowest held-out loss. In a tie, return the earliest."""
    return _current(run).exclude(heldout_loss=None).order_by("heldout_loss", "index").first()


def _current(run: Run) -> QuerySet[Snapshot]:
    """Return the run's snapshots that no rollback has undone."""
    return run.snapshots.filter(is_undone=False)


def heldout_points(run: Run, *, most: int = MEASURED) -> list[Measured]:
    """Return up to `most` held-out losses of a run, in log order, plus the best one if it is not among them.

    The database thins them evenly, and always keeps the latest.
    """
    newer = Window(RowNumber(), order_by=F("index").desc()) - 1
    best = Window(RowNumber(), order_by=(F("heldout_loss").asc(), F("index").asc()))
    stride = (Window(Count("pk")) - 1) / most + 1
    known = _current(run).exclude(heldout_loss=None).annotate(part=Mod(newer, stride), best=best)
    rows = (
        known.filter(Q(part=0) | Q(best=1))
        .order_by("index")
        .values_list("index", "step", "heldout_loss", "created_at", "heldout_figures")
    )
    return [Measured(place, step, loss, at, figures) for place, step, loss, at, figures in rows if loss is not None]


def written_at(run: Run) -> list[Snapshot]:
    """Return the snapshots whose texts a page shows, latest first: the last few, and the first for comparison."""
    known = _current(run).exclude(written=[])
    last = Coalesce(Subquery(known.order_by("-index").values("index")[WRITTEN - 1 : WRITTEN]), 0)
    first = Subquery(known.order_by("index").values("index")[:1])
    shown = known.filter(Q(index__gte=last) | Q(index=first)).order_by("-index")
    return list(shown.only("run", "index", "step", "written"))


def ledger_rows(run: Run, *, after: int = 0) -> QuerySet[LedgerEntry]:
    """Return the ledger's rows with primary keys above `after`, in the order in which they were written."""
    return run.ledger.filter(pk__gt=after).select_related("person", "machine").order_by("pk")


def steps(run: Run, *, after: int = -1) -> QuerySet[LogEntry]:
    """Return the log entries of updates after the log index `after`, in order, including undone ones."""
    return run.log.filter(index__gt=after, kind=LogEntry.Kind.UPDATE).order_by("index")


def snapshots(run: Run, *, after: int = -1) -> QuerySet[Snapshot]:
    """Return the snapshots after the log index `after` that machines can load, in order."""
    return _current(run).filter(index__gt=after, is_stored=True).order_by("index")


# Progress, judged by median losses, since a single step's loss depends on its samples

TYPICAL = 9  # steps; a single step's loss is noisy
RISEN = 1.02  # times the best held-out loss; smaller rises are noise
SINCE_BEST = 2  # number of snapshots measured since the best one


class Overfitting(NamedTuple):
    """The best and the latest snapshot of a run whose held-out loss has risen while its training loss fell."""

    best: Measured
    newest: Measured


def typical_loss(points: Sequence[Point]) -> float | None:
    """Return the median training loss of the last steps, or None if none of their losses is finite.

    The unit is nats per token that counts towards the loss.
    """
    losses = [point.loss for point in points[-TYPICAL:] if math.isfinite(point.loss)]
    return median(losses) if losses else None


class Change(NamedTuple):
    """A change in the training loss, in nats, over a number of steps."""

    loss: float
    steps: int


def change(points: Sequence[Point], before: int) -> Change | None:
    """Return the change from the loss near `points[before]` to the last loss, or None if either is missing.

    Both losses are medians over groups of points. The groups are equally large and do not overlap. `steps` is the
    distance between the middles of the groups.
    """
    last = max(1, min(TYPICAL, len(points) // 2, len(points) - 1 - before))
    recent, earlier = points[-last:], points[max(before + 1 - last, 0) : max(before + 1, last)]
    now, then = typical_loss(recent), typical_loss(earlier)
    if now is None or then is None:
        return None
    return Change(now - then, recent[last // 2].step - earlier[last // 2].step)


def overfitting(points: Sequence[Point], heldout: Sequence[Measured]) -> Overfitting | None:
    """Return the best and the latest snapshot if the run is overfitting its data, otherwise None."""
    if not heldout:
        return None
    newest, best = heldout[-1], min(heldout, key=lambda measured: measured.loss)
    since = sum(measured.place > best.place for measured in heldout)
    if since < SINCE_BEST or newest.loss < RISEN * best.loss:
        return None
    now, then = typical_loss(points), typical_loss([point for point in points if point.step <= best.step])
    fell = now is not None and then is not None and now < then
    return Overfitting(best, newest) if fell else None


# Runs on the front page. A few queries are enough for any number of runs

CURVE = 40  # points in a card's curve …
CURVE_PACED = CURVE // 10  # … which has at least this many of the latest steps without a gap
MOST_WORDS = 5  # most words in a search
MOST_HOSTED = 1000  # most runs whose people are counted
SEARCHED = ("title", "purpose", "organizer__username")
OBJECTIVE = '"objective":"{}"'  # as it appears in a stored recipe
STATES = {
    "open": (Run.State.PREPARING, *LIVE, Run.State.FINISHING),
    "finished": (Run.State.FINISHED,),
}


class Search(NamedTuple):
    """A visitor's search. Empty fields match anything. `recipe` is an objective, `state` a key of `STATES`."""

    words: str = ""
    recipe: str = ""
    state: str = ""


def hosted_runs(viewer: Viewer) -> list[Run]:
    """Return listed runs that machines may be connected to. Only the columns that identify a run are loaded."""
    runs = listed_runs(viewer).filter(state__in=HOSTED).only("pk", "state", "visibility")
    return list(runs.order_by("-opened_at")[:MOST_HOSTED])


def found_runs(viewer: Viewer, search: Search, *, busy: Collection[UUID] = ()) -> QuerySet[Run]:
    """Return listed runs that match a search, with their latest `heldout_loss` and its `heldout_step`.

    The runs in `busy` come first. Other open runs, other runs under way and finished runs follow. Each group is ordered
    by age, newest first.
    """
    known = Snapshot.objects.filter(run=OuterRef("pk"), is_undone=False)
    measured = known.filter(heldout_loss__isnull=False).order_by("-index")
    need = Case(
        When(Q(state=Run.State.OPEN) & Q(pk__in=list(busy)), then=0),
        When(state=Run.State.OPEN, then=1),
        When(state=Run.State.FINISHED, then=3),
        default=2,
        output_field=IntegerField(),
    )
    related = listed_runs(viewer).select_related("head", "organizer", "dataset", "release")
    runs = related.order_by(need, "-created_at")
    loss, step = (Subquery(measured.values(name)[:1]) for name in ("heldout_loss", "step"))
    runs = runs.annotate(heldout_loss=loss, heldout_step=step)
    for word in search.words.split()[:MOST_WORDS]:
        runs = runs.filter(reduce(or_, (Q(**{f"{name}__icontains": word}) for name in SEARCHED)))
    if search.recipe:
        runs = runs.filter(recipe__contains=OBJECTIVE.format(search.recipe))
    return runs.filter(state__in=STATES[search.state]) if search.state in STATES else runs


def curves(runs: Sequence[Run]) -> dict[UUID, list[Point]]:
    """Return each run's losses at about `CURVE` steps, in order, with one query for all runs."""
    wanted = [Q(run=run, step__in=places(run.head.step, CURVE)) for run in runs if run.head.step]
    found: dict[UUID, list[Point]] = defaultdict(list)
    if wanted:
        rows = LogEntry.objects.filter(IN_MODEL & reduce(or_, wanted)).order_by("run", "index")
        for run, step, loss, at in rows.values_list("run", "step", "loss", "at"):
            found[run].append(Point(step, loss, at))
    return found


def curve_pace(curve: Sequence[Point]) -> float | None:
    """Return the pace of a run from its card's curve, or None before the second step."""
    return pace([point.at for point in reversed(curve[-CURVE_PACED:]) if point.at])


def newest_written(run: Run) -> Snapshot | None:
    """Return the latest snapshot whose model wrote texts."""
    return _current(run).exclude(written=[]).order_by("-index").only("step", "written").first()


def newest_releases(*, most: int) -> list[Release]:
    """Return the latest released models of finished runs that everyone may see.

    In `written`, each release has the texts that its model wrote.
    """
    ready = Release.objects.filter(state=Release.State.READY, run__state=Run.State.FINISHED)
    same = Snapshot.objects.filter(run=OuterRef("run"), index=OuterRef("index")).values("written")
    found = ready.filter(run__in=_public()).select_related("run").annotate(written=Subquery(same[:1]))
    return list(found.order_by("-run__finished_at", "-pk")[:most])


def public_totals() -> Totals:
    """Return the total people, machines, samples and tokens of all runs that everyone may see."""
    return totals_of(MachineTotal.objects.filter(run__in=_public()))


def _public() -> Any:
    """Return a query for the primary keys of the runs that everyone may see."""
    return listed_runs(None).order_by().values("pk")


def samples_today(viewer: Viewer, now: datetime) -> int:
    """Return how many samples have been contributed since midnight (UTC) to the runs listed for the viewer."""
    today = DailyTotal.objects.filter(day=day_of(now), run__in=listed_runs(viewer).order_by().values("pk"))
    return int(today.aggregate(given=Sum("samples", default=0))["given"])

"""What is read about runs. Everything a page shows comes in a handful of queries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from django.db.models import F, OuterRef, Q, QuerySet, Subquery, Window
from django.db.models.functions import Mod, RowNumber

from runs.access import Viewer, listed_runs
from runs.ledger.averaged import AveragedLine, averaged_lines
from runs.ledger.standings import LeaderboardLine, Recent, Shares, leaderboard, recent, shares, totals
from runs.models import ActivityLine, Dataset, LedgerEntry, LogEntry, Release, Run, Snapshot
from runs.timeline import STEP, activity_of

POINTS = 360  # of the curve on a page at most
LONG = 1200  # of the curve as a table and on a card
MEASURED = 120  # held-out losses of snapshots
WRITTEN = 3  # snapshots whose texts a page shows, beside the first
SHORT_S = 3.0  # a step, before anybody can watch it grow; then shares are shown …
SHARED_STEPS, SHARED = 50, 12  # … of so many steps together, and of so many people
RECENT, RECENT_STEPS = 14, 6  # lines of the timeline: what else happened, and the newest steps


class Point(NamedTuple):
    """The loss of one committed step."""

    step: int
    loss: float
    at: datetime | None = None


class Measured(NamedTuple):
    """The held-out loss of the snapshot at a place of the log, in nats per loss unit, and what else was measured."""

    place: int
    step: int
    loss: float
    at: datetime
    figures: Mapping[str, float] = {}


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """A run on a list."""

    run: Run
    step: int
    target_steps: int
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How a run learns, so far."""

    run: Run
    dataset: Dataset
    points: list[Point]
    samples: int
    heldout: list[Measured] = field(default_factory=list)

    @property
    def passes(self) -> float | None:
        """How often the average sample of the dataset was trained on; None where that differs between its files."""
        if not self.dataset.tokens or self.run.parsed_recipe.mix:
            return None
        return self.samples / max(self.run.parsed_recipe.samples_in(self.dataset.tokens), 1)


@dataclass(frozen=True, kw_only=True)
class RunPicture(RunProgress):
    """A run's page at one moment, but for who is online."""

    step: int
    index: int
    target_steps: int
    target_batch: int
    last: LogEntry | None
    pace_s: float | None  # seconds a step, over the last twenty
    leaderboard: list[LeaderboardLine]
    people: int
    machines: int
    tokens: int
    activity: list[ActivityLine]
    release: Release | None
    written: list[Snapshot] = field(default_factory=list)  # those whose texts are shown, newest first
    averaged: list[AveragedLine] = field(default_factory=list)
    recent: Recent = field(default_factory=lambda: Recent(0, {}))
    shares: Shares | None = None  # of the newest steps, where these are short

    @property
    def loss(self) -> float | None:
        """Of the last committed step, in nats per token."""
        return self.last.loss if self.last else None


def run_lines(viewer: Viewer, *, offset: int = 0, limit: int = 100) -> list[RunLine]:
    """Runs for the front page, newest first, each with its last loss: one query."""
    newest = LogEntry.objects.filter(run=OuterRef("pk")).order_by("-index").values("loss")[:1]
    runs = listed_runs(viewer).select_related("head", "organizer", "dataset").annotate(last_loss=Subquery(newest))
    return [
        RunLine(run=run, step=run.head.step, target_steps=run.parsed_recipe.target_steps, loss=run.last_loss)
        for run in runs[offset : offset + limit]
    ]


def run_progress(run: Run) -> RunProgress:
    """How a run learns: three queries, or four."""
    given = totals(run).samples
    return RunProgress(
        run=run, dataset=run.dataset, points=loss_points(run), samples=given, heldout=heldout_points(run)
    )


def last_loss(run: Run) -> float | None:
    """Mean nats per token of the last step."""
    return run.log.order_by("-index").values_list("loss", flat=True).first()


def run_picture(run: Run, *, lines: int = 10) -> RunPicture:
    """Everything of a run's page that rows know: fourteen queries at any length of the run, or seventeen."""
    recipe = run.parsed_recipe
    newest = list(run.log.order_by("-index")[:20])
    board = leaderboard(run, limit=lines)
    pace_s = pace([entry.at for entry in newest])
    return RunPicture(
        run=run,
        dataset=run.dataset,
        step=run.head.step,
        index=run.head.index,
        target_steps=recipe.target_steps,
        target_batch=recipe.target_batch,
        last=newest[0] if newest else None,
        pace_s=pace_s,
        shares=shares(run, steps=SHARED_STEPS, limit=SHARED) if pace_s is not None and pace_s < SHORT_S else None,
        points=loss_points(run),
        leaderboard=board,
        averaged=averaged_lines(run),
        recent=recent(run, [line.name for line in board]),
        activity=activity(run),
        release=Release.objects.filter(run=run).first(),
        heldout=heldout_points(run),
        written=written_at(run) if recipe.writes else [],
        **totals(run)._asdict(),
    )


def activity(run: Run) -> list[ActivityLine]:
    """The timeline, newest first: commits come every second and leave room for everything else."""
    lines = activity_of(run)
    steps_made, others = lines.filter(kind=STEP)[:RECENT_STEPS], lines.exclude(kind=STEP)[:RECENT]
    return sorted([*steps_made, *others], key=lambda line: (line.at, line.pk), reverse=True)


def void_rounds(run: Run) -> int:
    """Rounds that could not finish, since the run began."""
    return run.head.void_rounds


def pace(newest_first: list[datetime]) -> float | None:
    """Seconds between commits: the median, so that one long pause does not count."""
    gaps = sorted((late - early).total_seconds() for late, early in pairwise(newest_first))
    return gaps[len(gaps) // 2] if gaps else None


def loss_points(run: Run, *, most: int = POINTS) -> list[Point]:
    """The curve: at most `most` points, however long the run is, and no other rows are read for them."""
    rows = run.log.filter(index__in=places(run.head.index, most)).order_by("index")
    return [Point(*row) for row in rows.values_list("step", "loss", "at")]


def places(last: int, most: int = POINTS) -> list[int]:
    """Which entries of a log of `last` make the curve: all, or every 2nd, 4th, 8th, … and the newest ones whole.

    Whole are a tenth of `most` at least and a fifth at most. From one entry to the next the places stay the same but
    for the new one; some of the whole ones leave at once, and rarely all are thinned: so a feed sends a short change.
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
    """The one with the least held-out loss; of several alike, the first."""
    return run.snapshots.exclude(heldout_loss=None).order_by("heldout_loss", "index").first()


def heldout_points(run: Run, *, most: int = MEASURED) -> list[Measured]:
    """Held-out losses in order, evenly thinned by the database, always with the newest and the best."""
    known = run.snapshots.exclude(heldout_loss=None)
    stride = max(1, -(-known.count() // most))
    if stride > 1:
        newer = Window(RowNumber(), order_by=F("index").desc()) - 1
        best = best_snapshot(run)
        known = known.annotate(part=Mod(newer, stride)).filter(Q(part=0) | Q(pk=best.pk if best else 0))
    found = known.order_by("index").values_list("index", "step", "heldout_loss", "created_at", "heldout_figures")
    return [Measured(place, step, loss, at, figures) for place, step, loss, at, figures in found if loss is not None]


def written_at(run: Run) -> list[Snapshot]:
    """The snapshots whose texts are shown, newest first: the last ones, and the first, so that one sees it learn."""
    known = run.snapshots.exclude(written=[]).only("run", "index", "step", "written")
    newest = list(known.order_by("-index")[: WRITTEN + 1])
    first = known.order_by("index").first() if len(newest) > WRITTEN else None
    return [*newest[:WRITTEN], *([first] if first else [])]


def ledger_rows(run: Run, *, after: int = 0) -> QuerySet[LedgerEntry]:
    """Contributions in the order they were written, behind the row `after`."""
    return run.ledger.filter(pk__gt=after).select_related("person", "machine").order_by("pk")


def steps(run: Run, *, after: int = -1) -> QuerySet[LogEntry]:
    """The commits in order, behind the index `after`: each a `LogEntry`, whose signed bytes are a `SealedRecord`."""
    return run.log.filter(index__gt=after).order_by("index")


def snapshots(run: Run, *, after: int = -1) -> QuerySet[Snapshot]:
    """Snapshots that can be loaded, in order, behind the index `after`."""
    return run.snapshots.filter(index__gt=after, is_stored=True).order_by("index")

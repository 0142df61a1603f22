"""What those who manage a run are warned of while it goes: a step that takes far too long, few machines, a loss that
jumped. Numbered errors, as `troubles` has them. Pure.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from statistics import median
from typing import NamedTuple

from coordination.presence import Crowd
from peer_agent.protocol.errors import Fault
from runs.models import Run
from runs.selectors import Point
from web.run_picture.counts import duration, machines
from web.run_picture.picture import Seen

STALLED_TIMES = 5  # the usual step …
STALLED_S = 600.0  # … and so long at least
FIRST_S = 1800.0  # for the first step, of which no usual time is known
FEW_S = 60.0  # a machine that connects again is not missed
BEFORE, LEAST_BEFORE = 30, 8  # steps that a loss is compared with
SPREADS = 8  # median deviations …
RISE = 0.25  # … and so much of the median itself, that a loss lies above it


class Watch(NamedTuple):
    """What alerts need beside the picture: how many trained since when, and when the run was last resumed."""

    crowd: Sequence[Crowd] = ()
    resumed_at: Callable[[], datetime | None] = lambda: None


def run_alerts(seen: Seen, watch: Watch) -> Iterator[Fault]:
    """All that hold now. None of a run that is not meant to make steps."""
    run = seen.run.run
    if run.state != Run.State.OPEN or run.wanted == Run.Wanted.FINISHED:
        return
    yield from _stalled(seen, watch)
    yield from _few(seen, watch.crowd)
    yield from _jumped(seen.run.points)


def since_words(at: datetime) -> str:
    """“12:04 on 3 Dec (UTC)”."""
    return f"{at:%H:%M} on {at.day} {at:%b} (UTC)"


def _stalled(seen: Seen, watch: Watch) -> Iterator[Fault]:
    """Counted from when all of these held: the last step was made, the run goes, and somebody trains."""
    pace_s, last = seen.run.pace_s, seen.run.points[-1] if seen.run.points else None
    manned = _since(watch.crowd, lambda trainers: trainers > 0)
    if manned is None or seen.run.step >= seen.run.target_steps:
        return
    marks = (last.at if last else None, seen.run.run.opened_at, manned)
    since = max(mark for mark in marks if mark is not None)
    bound = timedelta(seconds=FIRST_S if pace_s is None else max(STALLED_S, STALLED_TIMES * pace_s))
    if seen.now - since > bound:
        since = max(since, watch.resumed_at() or since)  # asked for where it matters: it is a query
    if seen.now - since > bound:
        usual = f"A step usually takes about {duration(pace_s)}. " if pace_s is not None else ""
        yield Fault.of("E421", since=since_words(since), machines=machines(watch.crowd[-1].trainers), usual=usual)


def _few(seen: Seen, crowd: Sequence[Crowd]) -> Iterator[Fault]:
    """Where the organizer has named a number."""
    least = seen.run.run.least_machines or 0
    since = _since(crowd, lambda trainers: trainers < least)
    if since is not None and seen.now - since > timedelta(seconds=FEW_S):
        few = f"Fewer than {least:,} machines have" if least > 1 else "No machine has"
        yield Fault.of("E422", few=few, since=since_words(since))


def _since(crowd: Sequence[Crowd], holds: Callable[[int], bool]) -> datetime | None:
    """Since when this holds of how many there are, without a gap; as far as is known. None where it does not."""
    since = None
    for each in reversed(crowd):
        if not holds(each.trainers):
            break
        since = each.since
    return since


def _jumped(points: Sequence[Point]) -> Iterator[Fault]:
    """The last step's loss beside the median of those before it; told from the first of the steps that jumped."""
    *before, last = points[-BEFORE - 1 :] or [Point(0, 0.0)]
    usual = [point.loss for point in before if math.isfinite(point.loss)]
    if len(usual) < LEAST_BEFORE:
        return
    middle = median(usual)
    spread = median(abs(loss - middle) for loss in usual)
    most = middle + max(SPREADS * spread, RISE * abs(middle))
    jumped = list(takewhile(lambda point: not point.loss <= most, [last, *reversed(before)]))  # also where it is NaN
    if jumped:
        first = jumped[-1]
        shown = f"{last.loss:.2f}" if math.isfinite(last.loss) else "not a finite number"
        since = since_words(first.at) if first.at else "an unknown time"
        yield Fault.of("E423", step=f"{first.step:,}", since=since, loss=shown, usual=f"about {middle:.2f}")

"""Alerts for a run's managers, as numbered errors: a stall, too few machines, a jump in the loss. Pure functions."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from statistics import median

from django.utils.translation import override
from msgspec.structs import replace

from coordination.presence import Crowd
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.errors.troubles import first_causes
from runs.models import Dataset, Publication, Release, Run, Verification
from runs.releases.publishing import LONG
from runs.selectors import Point
from runs.states import LIVE
from web.run_picture.counts import duration, machines
from web.run_picture.picture import Seen, since_change, stuck_since

FEW_S = 60.0  # seconds in which machines may reconnect before an alert
BEFORE, LEAST_BEFORE = 30, 8  # how many earlier steps a loss is compared with, and how many are needed
SPREADS = 8  # a jump is a loss this many median deviations above the median …
RISE = 0.25  # … and also at least this fraction of the median above it


def run_alerts(seen: Seen) -> Iterator[Fault]:
    """Yield all current alerts. A run that is not open, or that is being ended, has none."""
    run = seen.run.run
    if run.state != Run.State.OPEN or run.wanted == Run.Wanted.FINISHED:
        return
    yield from _stalled(seen)
    yield from _few(seen, seen.crowd)
    yield from _jumped(seen.run.points)


def since_words(at: datetime) -> str:
    """Return a time as text, such as “12:04 on 3 Dec (UTC)”."""
    return f"{at:%H:%M} on {at.day} {at:%b} (UTC)"


def _stalled(seen: Seen) -> Iterator[Fault]:
    """Yield E421 if the current step is taking far too long."""
    pace_s, since = seen.run.pace_s, stuck_since(seen)
    if since is not None:
        usual = f"A step usually takes about {duration(pace_s)}. " if pace_s is not None else ""
        yield Fault.of("E421", since=since_words(since), machines=machines(seen.crowd[-1].trainers), usual=usual)


def _few(seen: Seen, crowd: Sequence[Crowd]) -> Iterator[Fault]:
    """Yield E422 if fewer machines than the organizer wants have been training for more than `FEW_S` seconds.

    The error says when the number of machines last changed.
    """
    least = seen.run.run.least_machines or 0
    since = since_change(crowd, lambda trainers: trainers < least)
    if since is not None and seen.now - since > timedelta(seconds=FEW_S):
        now = crowd[-1]
        few = f"Only {machines(now.trainers)}" if now.trainers else "No machine"
        few += " has" if now.trainers < 2 else " have"
        yield Fault.of("E422", few=few, since=since_words(now.since), least=f"{least:,}")


def _jumped(points: Sequence[Point]) -> Iterator[Fault]:
    """Yield E423 if the last loss is far above the median of earlier losses. The error names the jump's first step."""
    *before, last = points[-BEFORE - 1 :] or [Point(0, 0.0)]
    usual = [point.loss for point in before if math.isfinite(point.loss)]
    if len(usual) < LEAST_BEFORE:
        return
    middle = median(usual)
    spread = median(abs(loss - middle) for loss in usual)
    most = middle + max(SPREADS * spread, RISE * abs(middle))
    jumped = list(takewhile(lambda point: not point.loss <= most, [last, *reversed(before)]))  # also true for NaN
    if jumped:
        first = jumped[-1]
        shown = f"{last.loss:.2f}" if math.isfinite(last.loss) else "not a finite number"
        since = since_words(first.at) if first.at else "an unknown time"
        yield Fault.of("E423", step=f"{first.step:,}", since=since, loss=shown, usual=f"about {middle:.2f}")


def run_troubles(seen: Seen, verification: Verification | None, publication: Publication | None) -> Sequence[Fault]:
    """Return the errors to show a run's managers, leaving out any that another of them explains."""
    with override("en"):  # numbered errors are only in English so far, and a mixed sentence would not help
        return first_causes((*_all(seen, verification, publication), *run_alerts(seen)))


def _all(seen: Seen, verification: Verification | None, publication: Publication | None) -> Iterator[Fault]:
    dataset, release = seen.run.dataset, seen.run.release
    if dataset.state != Dataset.State.READY and dataset.fault is not None:
        yield dataset.fault
    if _lacks_relay(seen):
        yield Fault.of("E409")
    if seen.run.run.state == Run.State.FINISHING and verification is not None and verification.fault:
        yield Fault.read(verification.fault)
    if release is not None and release.state == Release.State.FAILED and release.fault:
        yield Fault.read(release.fault)
    if publication is not None:
        yield from _unpublished(publication, seen)


def _unpublished(publication: Publication, seen: Seen) -> Iterator[Fault]:
    """Yield the error that keeps the model off the Hub.

    Once uploads have been failing for `LONG`, first yield E383, which says since when.
    """
    is_there = publication.state == Publication.State.PUBLISHED
    fault = "" if is_there else publication.fault
    if seen.run.run.state in LIVE and publication.checkpoint_fault:
        fault = publication.checkpoint_fault
    since = publication.failing_since
    is_long = since is not None and seen.now - since >= LONG
    if fault and since is not None and is_long:
        yield Fault.of("E383", since=since_words(since), reason=Fault.read(fault).code)
    if fault:
        told = f"Since {since_words(since)}." if since is not None and not is_long else ""
        yield replace(Fault.read(fault), remedy=told)


def _lacks_relay(seen: Seen) -> bool:
    """Return True if a host is driving the run but no relay or auxiliary is connected."""
    is_driven = seen.run.run.state == Run.State.OPEN and bool(seen.phase)
    return is_driven and not any(peer.role in {Role.RELAY, Role.AUXILIARY} for peer in seen.peers)

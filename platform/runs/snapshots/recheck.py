"""Find out whose contributions were false, after a run's loss rose, or if too few people are there to judge each other.

A child process computes the contributions of the last steps again. The coordinator kept the sketches that reducers made
of them, and the replica that replays the log has the parameters. So the verdict is the site's own arithmetic.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone
from msgspec import Struct
from msgspec.structs import replace

from accounts.models import Machine
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.coordinator.events import Finding, Sketched, Work
from peer_agent.protocol.coordinator.round.audits import Verdict, work_of
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import PeerId
from runs import storage
from runs.models import LogEntry, Recheck, Run, Snapshot
from runs.processes import ChildStopped, faults_to
from runs.snapshots import replay
from runs.timeline import add_line

LATELY = timedelta(hours=1)  # in which findings are reported to new hosts
CLEARED = "The site computed {checked:,} contributions to steps {first:,} to {last:,} again, and found none false."
FAULTY = (
    "The site computed {checked:,} contributions to steps {first:,} to {last:,} again, and found {faulty} false. "
    "Others of the same machine were true, as with bad memory. Its owner has been told."
)
BLAMED = (
    "The site computed {checked:,} contributions to steps {first:,} to {last:,} again. Those of {names} were not the "
    "gradients of their samples."
)


class Blamed(Struct, frozen=True):
    """A machine with false contributions, by the site's own arithmetic. `index`: the first false one's log entry."""

    machine: str
    index: int


class Outcome(Struct, frozen=True):
    """The result of a recheck: the first and last step, and the machines to blame.

    `checked` contributions were computed; for `left` of them the time did not suffice. `cleared`: machines whose last
    contributions were all true. `faulty`: machines with one false contribution among true ones. `index`: the last log
    entry that was checked.
    """

    first: int
    last: int
    checked: int
    left: int
    index: int
    blamed: tuple[Blamed, ...] = ()
    cleared: tuple[str, ...] = ()
    faulty: tuple[Blamed, ...] = ()


@transaction.atomic
def request_recheck(run: Run, sketched: Sequence[Sketched]) -> None:
    """Request that contributions be computed again, beside those of an earlier request that is not done yet.

    Do nothing if there are none, or if the data are on the Hub.
    """
    if not sketched or run.dataset.streamed:
        return
    waiting = Recheck.objects.select_for_update().filter(run=run, outcome__isnull=True).first()
    both = _joined(sketched, _read(waiting)) if waiting is not None else list(sketched)
    made = {"evidence": msgspec.json.encode(both), "outcome": None, "fault": "", "asked_at": timezone.now()}
    Recheck.objects.update_or_create(run=run, defaults=made)
    queue.put(Kind.RECHECK, run.pk)


def _read(asked: Recheck) -> list[Sketched]:
    return msgspec.json.decode(bytes(asked.evidence), type=list[Sketched])


def _joined(new: Sequence[Sketched], old: Sequence[Sketched]) -> list[Sketched]:
    """Join requests by log entry. Of an entry that was replaced after a rollback, the new one stays."""
    entries = {each.index: each for each in old} | {each.index: each for each in new}
    for each in old:
        found = entries[each.index]
        if (found.seed, found.parts) == (each.seed, each.parts):
            entries[each.index] = replace(found, gradients={**each.gradients, **found.gradients})
    return [entries[index] for index in sorted(entries)]


def recheck_run(run_id: UUID) -> Fault | None:
    """Carry out a request, and report the outcome on the timeline. Return any error, after which to try again."""
    asked = Recheck.objects.select_related("run__dataset").filter(run=run_id, outcome__isnull=True).first()
    faults: list[Fault] = []
    if asked is not None:
        with faults_to(faults.append, "E312"), storage.workspace() as work:
            _recheck(asked, work)
    if asked is not None and faults:
        Recheck.objects.filter(run=run_id).update(fault=str(faults[0]))
    return faults[0] if faults else None


def outcome_of(run: Run) -> Outcome | None:
    """Return the outcome of the last recheck, or None if there was none, or if it is still under way."""
    found = Recheck.objects.filter(run=run, outcome__isnull=False).values_list("outcome", flat=True).first()
    return msgspec.convert(found, Outcome) if found is not None else None


def findings_of(run: Run) -> frozenset[Finding]:
    """Return what the last recheck found, for the coordinator. Empty while a manager has yet to decide.

    After an hour, only blame is left, until it has led to a reversal of credit. A later host need not act on the rest.
    """
    outcome = outcome_of(run) if not run.is_halted else None
    if outcome is None:
        return frozenset()
    found = [Finding(PeerId(each.machine), each.index, Work.FALSE) for each in outcome.blamed]
    if Recheck.objects.filter(run=run, asked_at__gt=timezone.now() - LATELY).exists():
        found += [Finding(PeerId(each.machine), each.index, Work.FAULTY) for each in outcome.faulty]
        found += [Finding(PeerId(each), outcome.index, Work.TRUE) for each in outcome.cleared]
    return frozenset(found)


def forget_blame(run: Run, machine: UUID) -> None:
    """Forget that a machine is to blame, once its credit has been taken back. In a pause, managers still see it."""
    outcome = outcome_of(run)
    if outcome is not None and not run.is_halted:
        left = tuple(each for each in outcome.blamed if UUID(each.machine) != machine)
        rest = replace(outcome, blamed=left)
        Recheck.objects.filter(run=run).update(outcome=msgspec.to_builtins(rest))


def _recheck(asked: Recheck, work: Path) -> None:
    run, sketched = asked.run, _read(asked)
    if run.log.filter(index__in=[each.index for each in sketched], is_undone=True).exists():
        asked.delete()  # a rollback has undone these steps, and relays may have deleted their averages
        return
    start = _start_of(run, min(each.index for each in sketched))
    shards = list(run.dataset.shards.order_by("position").values_list("digest", flat=True))
    wanted = {"run": run.run_id, "sketched": sketched, "shards": shards}
    try:
        found = replay.recheck(run, start, [each.index for each in sketched], msgspec.json.encode(wanted), work)
    except ChildStopped:
        return  # the site is shutting down, and its next start does this again
    outcome = judged(found["found"], found["left"])
    names = _names([each.machine for each in outcome.blamed])
    facts = {"checked": outcome.checked, "first": outcome.first, "last": outcome.last}
    if outcome.faulty and not names:
        text = FAULTY.format(faulty=len(outcome.faulty), **facts)
    else:
        text = BLAMED.format(names=" and ".join(names), **facts) if names else CLEARED.format(**facts)
    with transaction.atomic():
        made = {"outcome": msgspec.to_builtins(outcome), "evidence": b"", "fault": ""}
        same = Recheck.objects.filter(pk=run.pk, outcome__isnull=True, asked_at=asked.asked_at)
        if same.update(**made) and outcome.checked:
            add_line(run=run, kind="rechecked", text=text, names=names)


def judged(found: Sequence[dict[str, Any]], left: int) -> Outcome:
    """Return the outcome that follows from single verdicts, in log order."""
    steps, last = [each["step"] for each in found] or [0], max((each["index"] for each in found), default=0)
    work = {kind: list[Blamed]() for kind in Work}
    for machine in sorted({each["machine"] for each in found}):
        own = [each for each in found if each["machine"] == machine]
        failed = [each["index"] for each in own if each["verdict"] == Verdict.FAILED]
        kind = work_of([Verdict(each["verdict"]) for each in own])
        if kind is not None:
            work[kind].append(Blamed(machine, min(failed, default=last)))
    return Outcome(
        min(steps),
        max(steps),
        len(found),
        left,
        last,
        blamed=tuple(work[Work.FALSE]),
        cleared=tuple(each.machine for each in work[Work.TRUE]),
        faulty=tuple(work[Work.FAULTY]),
    )


def _start_of(run: Run, first: int) -> Snapshot:
    """Return the latest verified snapshot before an entry, if possible two entries before.

    Contributions to the entry may contain work on the parameters of two entries before. No replay goes past a rollback.
    """
    rolled_back = run.log.filter(kind=LogEntry.Kind.ROLLBACK, index__lt=first).order_by("-index")
    since: int = rolled_back.values_list("index", flat=True).first() or 0
    trusted = run.snapshots.filter(state=Snapshot.State.VERIFIED, is_stored=True, index__gte=since, index__lt=first)
    found = trusted.filter(index__lt=first - 1).order_by("-index").first() or trusted.first()
    if found is None:
        raise Problem.of("E342", step=first, reason="no verified snapshot before it is stored")
    return found


def _names(machines: Sequence[str]) -> list[str]:
    found = Machine.objects.filter(pk__in=[UUID(each) for each in machines]).select_related("person")
    return sorted({machine.person.username for machine in found})
